"""The study against a server whose memory follows a rule, so that all that it finds is known."""

import json
import pathlib
from concurrent import futures

import pytest

pytest.importorskip("mneme")

import grpc
from generic_service import add_service
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from mneme.v1 import inference_pb2 as pb
from mneme.v1 import sessions_pb2
from mneme.v1.descriptors import namespace

from demo import engram_study

memory = namespace("mneme/v1/memory.proto")

SEGMENT, WORKING, SHORT_SEGMENTS = 4, 2, 2
FINGERPRINT = "00000000000000a1"


class RuleServer:
    """Segments of 4 tokens become 2 engrams each, which are short-term for 2 segments.

    Then those of even births live on; of these every second one is always recalled. Short-term ones are
    recalled in even segments. Engrams of segments a and b are linked by 1 / (1 + |a - b|), those of one reading of 8
    segments with those at the same place in the other one by 0.75.
    """

    def __init__(self):
        self.positions = {}
        self.deleted = []
        self.refuses = False
        self._server = grpc.server(futures.ThreadPoolExecutor(1))
        add_service(self._server, self, pb, "Inference")
        add_service(self._server, self, sessions_pb2, "Sessions")
        checks = health.HealthServicer()
        checks.set("", health_pb2.HealthCheckResponse.SERVING)
        health_pb2_grpc.add_HealthServicer_to_server(checks, self._server)
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def stop(self):
        self._server.stop(None).wait()

    def GetInfo(self, request, context):
        return pb.GetInfoResponse(model=pb.ModelDescription(fingerprint=FINGERPRINT))

    def Create(self, request, context):
        self.positions[request.name] = 0
        return sessions_pb2.Session(name=request.name)

    def Delete(self, request, context):
        self.deleted.append(request.name)
        return sessions_pb2.DeleteSessionResponse()

    def Tokenize(self, request, context):
        return pb.TokenizeResponse(token_ids=[len(word) for word in request.text.split()])

    def Generate(self, request, context):
        name = request.session.name
        assert request.stopping.max_tokens == 0
        assert len(request.token_ids.ids) == SEGMENT
        self.positions[name] += SEGMENT
        yield pb.GenerateResponse(
            finished=pb.Finished(session=pb.SessionState(name=name, position=self.positions[name]))
        )

    def InspectMemory(self, request, context):
        if self.refuses:
            context.abort(grpc.StatusCode.UNIMPLEMENTED, "the memory is of one piece")
        segment = max(0, self.positions[request.name] - 1) // SEGMENT
        living = {birth: self.kind(birth, segment) for birth in range(segment * WORKING)}
        living = {birth: kind for birth, kind in living.items() if kind}
        response = memory["InspectMemoryResponse"]()
        response.summary.segment_tokens = SEGMENT
        response.summary.segment = segment
        response.summary.found = 3
        response.summary.lifespan_sum = 10 * segment
        if request.HasField("engrams"):
            assert request.engrams.limit >= len(living)
            for birth, kind in living.items():
                recalled = (kind == 2 and segment % 2 == 0) or (kind == 3 and birth % 4 == 0)
                item = response.engrams.add(birth=birth, kind=kind, recalled=recalled)
                item.source.segment = birth // WORKING
        if request.HasField("edges"):
            edges = self.edges(living, request.edges)
            response.edges.extend(edges[: request.edges.limit])
        if request.HasField("contiguity"):
            response.contiguity.add(distance=0, mean_weight=0.5, pairs=4)
            response.contiguity.add(distance=1, mean_weight=0.25, pairs=8)
        if request.HasField("histogram"):
            assert request.histogram.logarithmic
            response.histogram.add(**{"from": 1, "to": 10, "engrams": len(living)})
        return response

    @staticmethod
    def kind(birth, segment):
        """0: dead."""
        age = segment - 1 - birth // WORKING
        if age == 0:
            return 1
        if age <= SHORT_SEGMENTS:
            return 2
        return 3 if birth % 2 == 0 else 0

    @staticmethod
    def edges(living, view):
        found = []
        for i in living:
            for j in living:
                if i < j and (not view.HasField("birth") or view.birth in (i, j)):
                    apart = j // WORKING - i // WORKING
                    weight = 0.75 if apart == 8 else 1 / (1 + apart)
                    found.append({"from": i, "to": j, "count": 1, "weight": weight, "weight_back": weight})
        return [memory["EngramEdge"](**edge) for edge in sorted(found, key=lambda edge: -edge["weight"])]


@pytest.fixture
def server():
    running = RuleServer()
    yield running
    running.stop()


def run(server, tmp_path, words, *more):
    text = tmp_path / "text.txt"
    text.write_text("word " * words, encoding="utf-8")
    out = tmp_path / "study.json"
    engram_study.main(["--server", server.address, "--text", str(text), "--json", str(out), *more])
    assert server.deleted == list(server.positions)
    return json.loads(out.read_text(encoding="utf-8"))


def test_a_text_is_looked_at_in_every_segment(server, tmp_path, capsys):
    result = run(server, tmp_path, 8 * SEGMENT + 3, "--graph-at", "3", "--links", "5")
    assert result["segments"] == 8
    last = result["by_segment"][-1]
    # In segment 7: working engrams of segment 6, short-term ones of 4 and 5, long-term ones of 0 to 3.
    assert (last["working"], last["short_term"], last["long_term"]) == (2, 4, 4)
    # Births 0 and 4, of segments 0 and 2, are recalled: 6 and 4 segments before.
    assert (last["recalled_short_term"], last["recalled_long_term"], last["mean_age"]) == (0, 2, 5)
    assert last["lifespan_sum"] == 70
    assert result["creation"] == [1, 1, 1, 1, 0, 0, 0, 0, 0, 0]
    # Short-term engrams are recalled in one of their two segments: deviations 1/2 and -1/2. Those of
    # segment 5 were seen in one only.
    short, long = (result["autocorrelation"][kind] for kind in ("short_term", "long_term"))
    assert short == [{"lag": 1, "mean": -0.5, "series": 10}]
    assert [one["mean"] for one in long] == [1, 1, 1]
    graph = result["graphs"][0]
    assert graph["segment"] == 3
    assert [link["weight"] for link in graph["links"]] == [1, 1, 1, 0.5, 0.5]
    out = capsys.readouterr().out
    assert "| 7 | 4 | 4 | 3 | 0 + 2 | 5.0 | 70 |" in out
    assert "| 1 | 0.2500 | 8 |" in out


def test_a_text_read_twice_is_compared_with_itself(server, tmp_path, capsys):
    result = run(server, tmp_path, 8 * SEGMENT, "--twice")
    assert result["segments"] == 16
    by_offset = {one["offset"]: one for one in result["second_reading"]}
    # The second reading's segments 0 to 4 left one engram each, 5 and 6 two, those of the first one each.
    assert by_offset[0]["mean_weight"] == 0.75
    assert by_offset[0]["pairs"] == 4 + 2 * 3
    assert by_offset[1]["mean_weight"] == pytest.approx(1 / 10)
    assert by_offset[-1]["mean_weight"] == pytest.approx(1 / 8)
    assert "second reading" in capsys.readouterr().out


def test_a_summary_has_what_the_tables_show(server, tmp_path):
    path = tmp_path / "summary.json"
    more = ["--graph-at", "3", "--links", "5", "--twice", "--tokens", "100", "--summary", str(path)]
    result = run(server, tmp_path, 30 * SEGMENT, *more)
    told = json.loads(path.read_text(encoding="utf-8"))
    assert told["command"] == "python -m demo.engram_study --tokens 100 --text text.txt --twice"
    assert told["model_fingerprint"] == FINGERPRINT
    assert (told["segments"], told["readings"]) == (50, 2)
    assert [one["segment"] for one in told["by_segment"]] == [4, 9, 14, 19, 24, 29, 34, 39, 44, 49]
    assert told["by_segment"][-1] == pytest.approx(result["by_segment"][-1], rel=1e-5)
    assert (told["creation"], told["lifespans"]) == (result["creation"], result["lifespans"])
    for kind, lags in result["autocorrelation"].items():
        assert [one["mean"] for one in told["autocorrelation"][kind]] == pytest.approx(
            [one["mean"] for one in lags], rel=1e-5
        )
    # The five strongest links of segment 3 are between engrams of one segment, and of neighbours.
    assert told["strongest_links"] == [
        {"segment": 3, "engrams": 6, "links": 5, "share_within_5_segments": 1.0}
    ]
    assert len(told["second_reading"]) == len(result["second_reading"])


def test_a_text_of_one_segment_is_refused(server, tmp_path):
    with pytest.raises(SystemExit, match="expected two segments of 4"):
        run(server, tmp_path, 7)


def test_a_server_that_refuses_is_told_in_one_line(server, tmp_path):
    server.refuses = True
    text = tmp_path / "text"
    text.write_text("a b c d e f g h")
    with pytest.raises(SystemExit, match="the memory is of one piece"):
        engram_study.main(["--server", server.address, "--text", str(text)])


def test_pictures_are_made_of_what_was_found(server, tmp_path):
    pytest.importorskip("matplotlib")
    run(server, tmp_path, 8 * SEGMENT, "--twice", "--graph-at", "3,9", "--plots", str(tmp_path / "plots"))
    names = sorted(path.stem for path in pathlib.Path(tmp_path / "plots").glob("*.png"))
    assert names == [
        "figure_12_graph_3",
        "figure_12_graph_9",
        "figure_13_second_reading",
        "figure_5_age",
        "figure_6_creation",
        "figure_7_autocorrelation",
        "figure_8_contiguity",
        "lifespans",
    ]
