"""A session's engrams, as a running server tells them over either protocol."""

import json
import re
import struct
import subprocess
from pathlib import Path

import pytest

import mneme

from http_requests import ask

SEGMENT, WORKING = 7, 3  # of the tiny shape


@pytest.fixture(scope="module")
def memoria_model(bin_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "memoria"
    make = [bin_dir / "mneme-make-model", "--shape", "gpt2-with-memoria-tiny", "--out", folder]
    subprocess.run(make, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def memoria_server(start_any, memoria_model: Path):
    return start_any(memoria_model, "--engram-capacity", "15")


def look(server, name, query):
    base = f"http://127.0.0.1:{server.http_port}"
    status, _, text = ask(base, f"/v1/sessions/{name}/memory?{query}", method="GET")
    return status, json.loads(text)


def test_engrams_are_the_same_over_both_protocols(memoria_server, name):
    client = memoria_server.client()
    session = client.session(name)
    session.send([i % 250 for i in range(40 * SEGMENT)], max_tokens=1)
    report = session.inspect_memory(
        engrams=mneme.EngramsView(order=mneme.EngramOrder.LIFESPAN),
        edges=mneme.EdgesView(limit=20),
        histogram=mneme.HistogramView(mneme.HistogramQuantity.AGE),
        contiguity=mneme.ContiguityView(),
    )
    summary = report.summary
    assert (summary.segment, summary.segment_tokens) == (39, SEGMENT)
    assert summary.capacity == 15
    assert summary.working == WORKING
    assert summary.evictions > 0, "there is no room for what would live on"
    assert len(report.engrams) == summary.capacity - summary.free
    lifespans = [engram.lifespan for engram in report.engrams]
    assert lifespans == sorted(lifespans, reverse=True)
    assert sum(b.engrams for b in report.histogram) == len(report.engrams)
    for engram in report.engrams:
        assert engram.source.segment == engram.birth // WORKING
        assert engram.source.first_token == engram.source.segment * SEGMENT

    status, seen = look(memoria_server, name, "view=engrams&order=lifespan")
    assert status == 200
    assert seen["summary"]["evictions"] == summary.evictions
    assert [e["birth"] for e in seen["engrams"]] == [e.birth for e in report.engrams]
    assert [e["kind"].upper() for e in seen["engrams"]] == [e.kind.name for e in report.engrams]
    edges = look(memoria_server, name, "view=edges&limit=20")[1]["edges"]
    assert [(e["from"], e["to"], e["weight"]) for e in edges] == [
        (e.origin, e.target, e.weight) for e in report.edges
    ]


def test_what_cannot_be_looked_at(memoria_server, text_server, name):
    with pytest.raises(mneme.SessionNotFound):
        memoria_server.client().sessions.inspect_memory(name)
    assert look(memoria_server, name, "view=summary")[0] == 404
    client = text_server.client()
    client.sessions.create(name)
    with pytest.raises(mneme.Unimplemented, match="of one piece"):
        client.sessions.inspect_memory(name)
    status, error = look(text_server, name, "view=summary")
    assert (status, error["error"]["code"]) == (501, "wrong_kind_of_model")
    with pytest.raises(mneme.InvalidArgument, match=r"edges\.limit"):
        memoria_server.client().sessions.inspect_memory(name, edges=mneme.EdgesView(limit=20001))


def test_a_session_brings_a_seed(memoria_server, text_server, name):
    client = memoria_server.client()
    text = [i % 250 for i in range(40 * SEGMENT)]
    assert client.sessions.create(name, memory_seed=2**64 - 1).memory_seed == 2**64 - 1
    client.session(name).send(text, max_tokens=20, temperature=0.0)
    base = f"http://127.0.0.1:{memoria_server.http_port}"
    body = {
        "prompt": text,
        "max_tokens": 20,
        "temperature": 0,
        "session_id": f"{name}-2",
        "memory_seed": 2**64 - 1,
    }
    assert ask(base, "/v1/completions", body=body)[0] == 200
    shown = json.loads(ask(base, f"/v1/sessions/{name}-2", method="GET")[2])
    assert shown["memory_seed"] == 2**64 - 1
    assert shown["memory_seed_text"] == str(2**64 - 1)
    as_text = {**body, "session_id": f"{name}-text", "memory_seed": str(2**64 - 2)}
    assert ask(base, "/v1/completions", body=as_text)[0] == 200
    told = client.session(f"{name}-text").info().memory_seed
    assert told == 2**64 - 2
    for seed in (2**64, str(2**64)):
        status, _, said = ask(base, "/v1/completions", body={**body, "memory_seed": seed})
        assert (status, json.loads(said)["error"]["param"]) == (400, "memory_seed")
    with pytest.raises(mneme.InvalidArgument, match=f"memory_seed.*{2**64}"):
        client.sessions.create(f"{name}-large", memory_seed=2**64)
    engrams = [look(memoria_server, n, "view=engrams")[1]["engrams"] for n in (name, f"{name}-2")]
    assert engrams[0] == engrams[1]

    status, _, said = ask(base, "/v1/completions", body={**body, "memory_seed": 5})
    assert (status, json.loads(said)["error"]["code"]) == (412, "memory_seed_mismatch")
    with pytest.raises(mneme.FailedPrecondition) as refused:
        client.session(name).send([1], max_tokens=1, memory_seed=5)
    assert refused.value.reason == "MEMORY_SEED_MISMATCH"
    with pytest.raises(mneme.InvalidArgument, match="drawn at random"):
        text_server.client().sessions.create(f"{name}-3", memory_seed=5)


DREW_ON = re.compile(r"\[drew on .*\d+% of (short|long)-term segment \d+ \(tokens \d+ to \d+\).*\]")


def test_chat_tells_what_each_answer_drew_on(memoria_server, text_server, run, name):
    def chat(server, *words):
        said = "A first turn that is long enough for several segments of seven tokens.\nAnother one.\n"
        flags = ("--session", name, "--max-tokens", "12", "--ignore-eos", *words)
        return run("mneme", "chat", *flags, stdin=said, MNEME_SERVER=server.target)

    code, out, err = chat(memoria_server, "--memory-use")
    assert code == 0, err
    told = [line for line in err.splitlines() if line.startswith("[drew on ")]
    assert len(told) == 2 and all(DREW_ON.fullmatch(line) for line in told), err
    assert "drew on" not in out
    code, _, err = chat(memoria_server)
    assert code == 0 and "drew on" not in err
    code, out, err = chat(text_server, "--memory-use")
    assert (code, out) == (4, "") and "memory_use" in err


def test_a_picture_of_the_graph_is_a_png(memoria_server, run, name, tmp_path):
    memoria_server.client().session(name).send([i % 250 for i in range(20 * SEGMENT)], max_tokens=1)
    path = tmp_path / "memory.png"
    code, out, err = run(
        "mneme", "memory", "graph", name, "--png", path, MNEME_SERVER=memoria_server.target
    )
    assert code == 0, err
    assert re.fullmatch(rf"\d+ engrams and \d+ edges in {re.escape(str(path))}\n", out)
    head = path.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", head[16:24])
    assert width > 300 and height > 250, "axes and a legend have room"


def test_a_file_goes_to_a_server_with_other_room(memoria_model, start, run, name, tmp_path):
    usual = start("--engram-capacity", "64", model=memoria_model)
    more = start("--engram-capacity", "96", model=memoria_model)
    few = start("--engram-capacity", "12", model=memoria_model)
    text = [i * 7 % 250 for i in range(30 * SEGMENT)]
    usual.client().session(name).send(text, max_tokens=4, temperature=0)
    path = tmp_path / "s.safetensors"
    code, _, err = run("mneme", "session", "export", name, path, MNEME_SERVER=usual.target)
    assert code == 0, err
    code, out, err = run("mneme", "session", "import", path, name, MNEME_SERVER=more.target)
    assert code == 0, err
    assert "it had room for 64 engrams and now has room for 96" in out
    want, got = (
        server.client().session(name).send(text, max_tokens=20, temperature=0, logprobs=0)
        for server in (usual, more)
    )
    assert got.token_ids == want.token_ids
    assert [one.logprob for one in got.choices[0].logprobs] == pytest.approx(
        [one.logprob for one in want.choices[0].logprobs], rel=1e-6
    )
    made = more.client().sessions.import_file(path, f"{name}-2")
    assert (made.file_engram_capacity, made.engram_capacity) == (64, 96)
    with pytest.raises(mneme.FailedPrecondition, match="room for 64 .* room for 12 ") as refused:
        few.client().sessions.import_file(path, name)
    assert refused.value.reason == "ENGRAM_CAPACITY"
