"""Memories that are trained while they read: their surprise, and one that diverges beside another."""

import json
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

import mneme

from http_requests import ask
from ports import held_port
from test_metrics import scrape, value

POISON = 7
HARMLESS = [20, 21, 22, 23, 24]


def set_first_column(tensors: dict, data: bytearray, name: str, number) -> None:
    """Overwrites column 0 of a bf16 matrix; `number` makes it from the row."""
    tensor = tensors[name]
    assert tensor["dtype"] == "BF16", tensor
    rows, columns = tensor["shape"]
    for row in range(rows):
        at = tensor["data_offsets"][0] + 2 * columns * row
        data[at : at + 2] = struct.pack("<f", number(row))[2:]


@pytest.fixture(scope="module")
def diverging_model(bin_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Titans whose memory learns next to nothing of all tokens but one, and far too much of that one:
    one channel tells it from others, and the rate follows from that channel."""
    folder = tmp_path_factory.mktemp("models") / "diverging"
    make = [bin_dir / "mneme-make-model", "--shape", "titans-lmm-tiny", "--out", folder]
    subprocess.run(make, check=True, capture_output=True)
    config = json.loads((folder / "config.json").read_text())
    config["memory_theta_max"] = 1e6
    (folder / "config.json").write_text(json.dumps(config))
    content = (folder / "model.safetensors").read_bytes()
    begin = 8 + struct.unpack("<Q", content[:8])[0]
    tensors = json.loads(content[8:begin])
    data = bytearray(content[begin:])
    set_first_column(
        tensors, data, "model.embed_tokens.weight", lambda row: 1.0 if row == POISON else -1.0
    )
    for name in tensors:
        if name.endswith("memory.b_proj.weight"):
            set_first_column(tensors, data, name, lambda row: 10.0)
    (folder / "model.safetensors").write_bytes(content[:begin] + bytes(data))
    return folder


@pytest.fixture(scope="module")
def served(start_any, diverging_model):
    with held_port() as port:
        yield start_any(diverging_model, "--metrics-port", str(port)), port


def harmless(client, **options):
    return client.generate(
        HARMLESS, max_tokens=20, ignore_eos=True, temperature=0, logit_bias={POISON: -100.0}, **options
    )


def test_surprise_is_told_to_those_who_ask(served):
    server, port = served
    client = server.client()
    before = scrape(port)
    told = harmless(client, surprise=True)
    assert told.usage.surprise is not None
    assert 0 <= told.usage.surprise < 1e3
    assert harmless(client).usage.surprise is None
    body = {"prompt": HARMLESS, "max_tokens": 2, "ignore_eos": True, "surprise": True}
    status, _, text = ask(f"http://127.0.0.1:{server.http_port}", "/v1/completions", body=body)
    assert status == 200, text
    assert json.loads(text)["usage"]["surprise"] >= 0
    after = scrape(port)
    fed = 2 * (len(HARMLESS) + 19) + len(HARMLESS) + 1
    for layers in ('layers="0-0"', 'layers="1-1"'):
        for name in ("mneme_memory_surprise_count", "mneme_memory_steps_total"):
            assert value(after, name, layers) - value(before, name, layers) == fed


def test_a_memory_that_diverges_fails_its_request_alone(served):
    server, port = served
    client = server.client()
    alone = harmless(client)
    before = scrape(port)
    # In the middle of its answer when the other one comes.
    stream = client.stream(
        HARMLESS, max_tokens=20, ignore_eos=True, temperature=0, logit_bias={POISON: -100.0}
    )
    events = iter(stream)
    next(events)
    with pytest.raises(mneme.MnemeError) as failure:
        client.generate([20] + 12 * [POISON], session="bad", max_tokens=4, ignore_eos=True)
    assert failure.value.code.name == "INTERNAL"
    assert failure.value.reason == "MEMORY_DIVERGED"
    assert "the memory of layer 0 diverged at position " in str(failure.value)
    assert 1 <= int(failure.value.metadata["position"]) < 13
    body = {"prompt": [20] + 12 * [POISON], "max_tokens": 4, "session_id": "worse"}
    status, _, text = ask(f"http://127.0.0.1:{server.http_port}", "/v1/completions", body=body)
    assert status == 500, text
    assert json.loads(text)["error"]["code"] == "memory_diverged"
    assert b"diverged at position" in text
    assert [i for event in events for i in getattr(event, "token_ids", ())] == list(alone.token_ids)
    assert harmless(client).token_ids == alone.token_ids
    after = scrape(port)
    for name, label in (
        ("mneme_memory_divergences_total", ""),
        ("mneme_sessions_ended_total", 'reason="spoilt"'),
    ):
        assert value(after, name, label) - value(before, name, label) == 2
    assert value(after, "mneme_ready") == 1
    for session in ("bad", "worse"):
        with pytest.raises(mneme.SessionNotFound):
            client.generate([1], session=session, must_exist=True, max_tokens=1)
    assert client.generate([1], session="bad", max_tokens=1, ignore_eos=True).usage.resumed_tokens == 0


def test_a_stored_session_is_then_as_it_was_before(start_any, diverging_model, tmp_path):
    server = start_any(diverging_model, "--session-dir", str(tmp_path / "sessions"))
    client = server.client()
    before = harmless(client, session="s")
    with pytest.raises(mneme.MnemeError) as failure:
        client.generate(12 * [POISON], session="s", max_tokens=4, ignore_eos=True)
    assert failure.value.reason == "MEMORY_DIVERGED"
    stands = before.session.position
    assert f"the session is as it was before the request, at position {stands}" in str(failure.value)
    info = client.session("s").info()
    assert (info.position, info.has_pending_token) == (stands, True)
    harmless(client, session="peer")
    assert harmless(client, session="s").token_ids == harmless(client, session="peer").token_ids


def test_models_of_other_memories_have_no_surprise(golden_server):
    with pytest.raises(mneme.InvalidArgument, match="response.surprise"):
        golden_server.client().generate([1], max_tokens=1, surprise=True)
