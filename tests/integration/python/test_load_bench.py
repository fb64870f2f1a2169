"""`mneme bench` against real servers over both protocols: its books are those of the server."""

import asyncio
import json
from types import SimpleNamespace

import pytest

import mneme

from certificates import tls_flags
from ports import held_port
from waiting import wait_for_value
from wire import ask

BACKENDS = ("grpc", "openai")
COUNTERS = {
    "mneme_requests_total": '"completed"',
    "mneme_prompt_tokens_total": "",
    "mneme_generation_tokens_total": "",
    "mneme_resumed_tokens_total": "",
}


def counters(server):
    """Those of the server, in the order above."""
    lines = asyncio.run(ask(server.http_port, "GET", "/metrics")).body.decode().splitlines()
    return [
        sum(float(x.rsplit(" ", 1)[1]) for x in lines if x.startswith(name + "{") and label in x)
        for name, label in COUNTERS.items()
    ]


def moved(server, before):
    return [after - b for after, b in zip(counters(server), before)]


@pytest.fixture(scope="module")
def server(start_any, golden_model):
    """A server for these tests alone, so that nothing else moves its counters."""
    return start_any(golden_model)


@pytest.fixture
def bench(run, tmp_path):
    """Runs it: exit code, what it prints and what it saves."""

    def start(server, backend, *flags, **environment):
        port = server.port if backend == "grpc" else server.http_port
        code, out, err = run(
            *("mneme", "bench", "--backend", backend, "--server", f"localhost:{port}"),
            *("--num-prompts", "30", "--random-input-len", "12", "--random-output-len", "9"),
            *("--save-detailed", "--result-dir", tmp_path, "--result-filename", "result.json"),
            *flags,
            **environment,
        )
        file = tmp_path / "result.json"
        return code, out + err, json.loads(file.read_text()) if file.exists() else {}

    return start


def test_its_counts_are_those_of_the_server(bench, server):
    results = {}
    for backend in BACKENDS:
        before = counters(server)
        code, out, result = bench(
            *(server, backend, "--random-range-ratio", "0.5", "--max-concurrency", "8"),
            *("--request-rate", "500", "--goodput", "ttft:60000"),
        )
        assert code == 0, out
        assert result["completed"] == 30
        assert result["failed"] == 0
        assert result["total_input_tokens"] == sum(result["input_lens"])
        assert result["total_output_tokens"] == sum(result["output_lens"])
        counted = [30, result["total_input_tokens"], result["total_output_tokens"], 0]
        wait_for_value(lambda: moved(server, before), counted)
        assert result["start_times"] == sorted(result["start_times"])
        assert all(
            len(itls) < tokens for itls, tokens in zip(result["itls"], result["output_lens"])
        )
        assert result["server_steps"] > 0
        assert "Request goodput (req/s):" in out
        results[backend] = result
    # One seed is one load, whatever carries it.
    for key in ("input_lens", "output_lens", "generated_texts"):
        assert results["grpc"][key] == results["openai"][key], key


@pytest.mark.parametrize("backend", BACKENDS)
def test_conversations_send_what_is_new(bench, server, backend):
    before = counters(server)
    code, out, result = bench(
        *(server, backend, "--num-prompts", "6", "--turns", "3", "--think-time", "5ms"),
        *("--request-rate", "200"),
    )
    assert code == 0, out
    assert result["completed"] == 18
    assert result["total_input_tokens"] == 18 * 12
    assert result["total_output_tokens"] == 18 * 9
    # 12 of a prompt and 8 of an answer are fed in a turn; the ninth is pending, and the server
    # counts it with the prompt that follows.
    counted = [18, 18 * 12 + 12, 18 * 9, 6 * (20 + 41)]
    wait_for_value(lambda: moved(server, before), counted)
    assert f"   2   {20:14d}" in out
    assert f"   3   {41:14d}" in out
    assert len(result["resume_ttfts"]) == 12
    assert "fork latency" in out


def test_prompts_come_from_files(bench, text_server, tmp_path):
    file = tmp_path / "conversations.json"
    turns = [("human", "Where is it?"), ("gpt", "over there"), ("human", "Where?"), ("gpt", "hm")]
    conversation = [{"from": who, "value": text} for who, text in turns]
    file.write_text(json.dumps([{"conversations": conversation}] * 3))
    flags = ("--dataset-name", "sharegpt", "--dataset-path", file, "--num-prompts", "6")
    results = [bench(text_server, backend, *flags, "--turns", "2") for backend in BACKENDS]
    for code, out, result in results:
        assert code == 0, out
        assert result["completed"] == 12
        answer = text_server.client().tokenize("over there", add_special_tokens=False)
        assert result["output_lens"][0] == len(answer.ids)
        assert result["input_lens"][0] > 1
    for key in ("input_lens", "output_lens", "generated_texts"):
        assert results[0][2][key] == results[1][2][key], key
    code, out, _ = bench(text_server, "grpc", "--dataset-name", "custom", "--dataset-path", "/no")
    assert (code, "/no" in out) == (4, True), out


def test_chats_too(bench, chat_server):
    code, out, result = bench(chat_server, "openai-chat", "--turns", "2", "--num-prompts", "4")
    assert code == 0, out
    assert result["completed"] == 8
    assert set(result["output_lens"]) == {9}


def test_keys_and_certificates(bench, start, new_key, certificates, tmp_path):
    key, line = new_key("alice")
    file = tmp_path / "keys"
    file.write_text(line + "\n")
    server = start(
        *("--api-key-file", str(file), *tls_flags(certificates)),
        client_options={
            "credentials": mneme.tls_credentials(certificates.path("ca.pem")),
            "api_key": key,
        },
    )
    tls = ("--tls-ca", certificates.path("ca.pem"))
    for backend in BACKENDS:
        code, out, result = bench(server, backend, *tls, MNEME_API_KEY=key)
        assert code == 0, out
        assert result["completed"] == 30
        assert bench(server, backend, *tls)[0] == 7, "no key"
        assert bench(server, backend, "--tls", MNEME_API_KEY=key)[0] == 3, (
            "a stranger's certificate"
        )


@pytest.mark.parametrize("backend", BACKENDS)
def test_failures_are_counted_and_named(bench, start, backend):
    server = start("--max-model-len", "20")
    code, out, result = bench(server, backend, "--random-range-ratio", "0.5")
    assert code == 1, out
    assert 0 < result["failed"] < 30
    assert result["failed"] + result["completed"] == 30
    assert "--max-model-len" in out or "max_tokens" in out
    assert sum(map(bool, result["errors"])) == result["failed"]
    with held_port() as port:
        code, out, _ = bench(SimpleNamespace(port=port, http_port=port), backend)
        assert code == 3, out
