"""A session's engrams, as a running server tells them over either protocol."""

import json
import subprocess
from pathlib import Path

import pytest

import mneme

from http_requests import ask

SEGMENT, WORKING = 7, 3  # of the tiny shape


@pytest.fixture(scope="module")
def memoria_server(bin_dir: Path, start_any, tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("models") / "memoria"
    make = [bin_dir / "mneme-make-model", "--shape", "gpt2-with-memoria-tiny", "--out", folder]
    subprocess.run(make, check=True, capture_output=True)
    return start_any(folder, "--engram-capacity", "15")


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
    engrams = [look(memoria_server, n, "view=engrams")[1]["engrams"] for n in (name, f"{name}-2")]
    assert engrams[0] == engrams[1]

    status, _, said = ask(base, "/v1/completions", body={**body, "memory_seed": 5})
    assert (status, json.loads(said)["error"]["code"]) == (412, "memory_seed_mismatch")
    with pytest.raises(mneme.FailedPrecondition) as refused:
        client.session(name).send([1], max_tokens=1, memory_seed=5)
    assert refused.value.reason == "MEMORY_SEED_MISMATCH"
    with pytest.raises(mneme.InvalidArgument, match="drawn at random"):
        text_server.client().sessions.create(f"{name}-3", memory_seed=5)
