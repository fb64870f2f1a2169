"""Sessions of the blocking client, and looks into their memory."""

import math

import grpc
import pytest

import mneme
from mneme.v1 import memory_pb2, sessions_pb2

from fake_server import answer, session


def test_sessions(server, client):
    server.says(session("a", position=3, ttl_ms=1500))
    info = client.sessions.get("a")
    assert (info.name, info.position, info.ttl, info.state_bytes) == ("a", 3, 1.5, 1024)
    assert info.create_time.tzinfo is not None
    assert (info.max_context, info.context_full) == (0, False)
    assert info.residency == "device"
    assert info.may_have_been_at is None
    server.says(session("a", position=3, may_have_been_at=0))
    assert client.sessions.get("a").may_have_been_at == 0
    server.says(
        session("a", max_context=16, context_full=True, residency=sessions_pb2.RESIDENCY_HOST)
    )
    info = client.sessions.get("a")
    assert (info.max_context, info.context_full, info.residency) == (16, True, "host")

    assert info.memory_seed is None

    server.says(session("a"))
    assert client.sessions.create("a", ttl=math.inf).ttl == math.inf
    assert server.requests[-1].ttl_ms == -1
    assert not server.requests[-1].HasField("memory_seed")
    server.says(session("a", memory_seed=2**64 - 1))
    assert client.sessions.create("a", memory_seed=2**64 - 1).memory_seed == 2**64 - 1
    assert server.requests[-1].memory_seed == 2**64 - 1
    with pytest.raises(mneme.InvalidArgument, match="memory_seed"):
        client.sessions.create("a", memory_seed=2**64)

    server.says(
        sessions_pb2.ListSessionsResponse(
            sessions=[session("a"), session("b")], next_page_token="t", total_count=3
        )
    )
    server.says(sessions_pb2.ListSessionsResponse(sessions=[session("c")], total_count=3))
    assert [s.name for s in client.sessions.list("p", page_size=2)] == ["a", "b", "c"]
    assert server.requests[-1].page_token == "t"
    assert server.requests[-1].name_prefix == "p"

    usage = sessions_pb2.SessionUsage(
        sessions=3, max_sessions=4, stored_bytes=5, max_stored_bytes=6, checkpoints=7
    )
    server.says(sessions_pb2.ListSessionsResponse(sessions=[session("a")], usage=usage))
    assert client.sessions.usage() == mneme.SessionUsage(3, 4, 5, 6, 7, None)
    server.says(sessions_pb2.ListSessionsResponse(sessions=[session("a", stored_bytes=9)]))
    page = client.sessions.list_page()
    assert page.sessions[0].stored_bytes == 9
    assert page.usage == mneme.SessionUsage(), "an older server's"

    server.says(session("b"))
    assert client.sessions.fork("a", "b").name == "b"
    server.says(sessions_pb2.DeleteSessionResponse())
    client.sessions.delete("b")
    assert server.requests[-1].name == "b"


def test_a_session_goes_back(server, client):
    made = sessions_pb2.Checkpoint(name="c", position=5, has_pending_token=True)
    server.says(made)
    checkpoint = client.sessions.create_checkpoint("s", "c")
    assert (checkpoint.name, checkpoint.position, checkpoint.has_pending_token) == ("c", 5, True)
    assert checkpoint.create_time.tzinfo is not None
    assert (server.requests[-1].session, server.requests[-1].name) == ("s", "c")
    server.says(sessions_pb2.ListCheckpointsResponse(checkpoints=[made]))
    assert client.sessions.list_checkpoints("s") == (checkpoint,)
    server.says(sessions_pb2.DeleteCheckpointResponse())
    client.sessions.delete_checkpoint("s", "c")
    server.says(session("s", 5))
    assert client.sessions.rewind("s", "c").position == 5
    assert server.requests[-1].WhichOneof("to") == "checkpoint"
    server.says(session("s", 0))
    assert client.sessions.rewind("s", 0).position == 0
    assert server.requests[-1].WhichOneof("to") == "position"
    for place, field in ((3, "position"), ("c", "checkpoint"), (None, None)):
        server.says(session("t", 3))
        client.sessions.fork("s", "t", at=place)
        assert server.requests[-1].WhichOneof("at") == field

    chat = client.session("s", exclusive=True)
    server.says(made)
    assert chat.checkpoint().name == "c"
    server.says(sessions_pb2.ListCheckpointsResponse())
    assert chat.checkpoints() == ()
    server.says(session("s", 5))
    chat.rewind("c")
    assert chat.position == 5
    server.says(answer("one", position=9, name="s"))
    chat.send("again")
    assert server.requests[-1].expected_position == 5


def test_a_session_sends_only_what_is_new(server, client):
    chat = client.session("s")
    server.says(answer("one", position=4, name="s"))
    server.says(answer("two", position=8, name="s"))
    server.says(session("t", position=8))
    assert chat.send("first").text == "one"
    assert list(chat.stream("second").texts()) == ["two"]
    assert [r.text for r in server.requests] == ["first", "second"]
    assert {r.session.name for r in server.requests} == {"s"}
    assert not server.requests[1].HasField("expected_position")
    assert chat.position == 8
    fork = chat.fork("t")
    assert (fork.name, fork.position) == ("t", 8)
    server.says(session("s", position=8))
    assert chat.info().position == 8
    server.says(sessions_pb2.DeleteSessionResponse())
    chat.delete()
    assert chat.position is None


def test_an_exclusive_session_says_where_it_expects_to_be(server, client):
    chat = client.session("s", exclusive=True)
    server.says(answer("one", position=4, name="s"))
    chat.send("first")
    server.says(answer("two", position=8, name="s"))
    for event in chat.stream("second"):
        if isinstance(event, mneme.Chunk) and event.finish_reason is None:
            break
    assert server.requests[1].expected_position == 4
    assert chat.position == 8
    server.says(answer("three", position=9, name="s"))
    chat.send(expected_position=1)
    assert server.requests[2].expected_position == 1
    server.fails(grpc.StatusCode.ABORTED, "m", "POSITION_MISMATCH", metadata={"position": "12"})
    with pytest.raises(mneme.PositionMismatch):
        chat.send("fourth")
    assert chat.position is None


def test_a_mismatch_is_told_once(server, client):
    chat = client.session("s", exclusive=True)
    server.says(answer("one", position=4, name="s"))
    chat.send("first")
    server.fails(
        grpc.StatusCode.ABORTED, "elsewhere", "POSITION_MISMATCH", metadata={"position": "9"}
    )
    with pytest.raises(mneme.PositionMismatch) as caught:
        chat.send("second")
    assert caught.value.position == 9
    assert chat.position is None
    server.says(answer("two", position=12, name="s"))
    chat.send("second")
    assert [r.HasField("expected_position") for r in server.requests] == [False, True, False]
    assert chat.position == 12


def test_a_session_that_must_exist_says_so_with_every_request(server, client):
    session = client.session("s", must_exist=True)
    for call in (session.chat, session.send):
        server.says(answer("one", name="s"))
        call("Hello")
    for call in (session.stream_chat, session.stream):
        server.says(answer("one", name="s"))
        call("Hello").result()
    assert [request.session.must_exist for request in server.requests] == [True] * 4
    server.fails(grpc.StatusCode.NOT_FOUND, "no session s", reason="NO_SUCH_SESSION")
    with pytest.raises(mneme.SessionNotFound):
        session.chat("Hello")


def test_memory_is_inspected_by_views(server, client):
    server.says(
        memory_pb2.InspectMemoryResponse(
            summary=memory_pb2.MemorySummary(position=300, segment=1, working=2, free=62),
            engrams=[
                memory_pb2.Engram(
                    birth=5,
                    kind=memory_pb2.ENGRAM_KIND_LONG_TERM,
                    lifespan=2.5,
                    recalled=True,
                    source=memory_pb2.SegmentRange(segment=2, first_token=20, end_token=30),
                )
            ],
            edges=[memory_pb2.EngramEdge(**{"from": 3}, to=5, count=4, weight=0.5, weight_back=1)],
            histogram=[memory_pb2.HistogramBin(**{"from": 1}, to=2, engrams=7)],
            contiguity=[memory_pb2.ContiguityBin(distance=1, mean_weight=0.25, pairs=8)],
        )
    )
    report = client.sessions.inspect_memory(
        "anna",
        engrams=mneme.EngramsView(
            order=mneme.EngramOrder.LIFESPAN, kind=mneme.EngramKind.LONG_TERM, limit=3
        ),
        edges=mneme.EdgesView(birth=0, min_weight=0.5),
        histogram=mneme.HistogramView(mneme.HistogramQuantity.AGE, logarithmic=True),
        contiguity=mneme.ContiguityView(),
    )
    assert report.summary.free == 62
    assert report.engrams[0].kind is mneme.EngramKind.LONG_TERM
    assert report.engrams[0].source == mneme.SegmentRange(2, 20, 30)
    assert report.edges == (mneme.EngramEdge(3, 5, 4, 0.5, 1.0),)
    assert report.histogram == (mneme.HistogramBin(1.0, 2.0, 7),)
    assert report.contiguity == (mneme.ContiguityBin(1, 0.25, 8),)
    request = server.requests[-1]
    assert request.name == "anna"
    assert request.engrams.order == memory_pb2.EngramsView.ORDER_LIFESPAN
    assert request.engrams.kind == memory_pb2.ENGRAM_KIND_LONG_TERM
    assert request.engrams.limit == 3
    assert not request.engrams.HasField("birth")
    assert request.edges.HasField("birth")
    assert request.edges.min_weight == 0.5
    assert request.histogram.quantity == memory_pb2.HistogramView.QUANTITY_AGE
    assert request.histogram.logarithmic
    assert request.contiguity.max_distance == 200

    server.says(memory_pb2.InspectMemoryResponse())
    assert client.session("anna").inspect_memory().engrams == ()
    assert not server.requests[-1].HasField("engrams")


def test_segments_are_forgotten(server, client):
    server.says(
        memory_pb2.ForgetSegmentsResponse(working=1, long_term=3, dropped_checkpoints=["early"])
    )
    forgotten = client.session("anna").forget_segments(2, 5)
    assert forgotten == mneme.ForgottenEngrams(1, 0, 3, ("early",))
    request = server.requests[-1]
    assert (request.name, request.first, request.end) == ("anna", 2, 5)


def test_what_no_request_can_hold_is_refused_by_its_field(server, client):
    age = mneme.HistogramQuantity.AGE
    sessions = client.sessions
    for field, call in {
        "engrams.birth": lambda: sessions.inspect_memory(
            "a", engrams=mneme.EngramsView(birth=2**32)
        ),
        "edges.min_count": lambda: sessions.inspect_memory(
            "a", edges=mneme.EdgesView(min_count=2**31)
        ),
        "histogram.quantity": lambda: sessions.inspect_memory(
            "a", histogram=mneme.HistogramView(quantity="foo")
        ),
        "histogram.bins": lambda: sessions.inspect_memory(
            "a", histogram=mneme.HistogramView(age, bins="many")
        ),
        "end": lambda: sessions.forget_segments("a", 0, 2**70),
        "documents[1]": lambda: client.classify(["a text", None]),
        "priority": lambda: client.classify(["a text"], priority=2**40),
    }.items():
        with pytest.raises(mneme.InvalidArgument) as refused:
            call()
        assert [one.field for one in refused.value.field_violations] == [field]
    assert server.requests == []
