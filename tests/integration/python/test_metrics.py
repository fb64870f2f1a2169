"""The operators' view: metrics, request lines, traces, and a log that changes while the server runs."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
import urllib.request
from pathlib import Path

import grpc
import pytest

import mneme
from mneme.v1 import inference_pb2

from http_requests import ask
from ports import held_port
from waiting import wait_for, wait_for_value

ROOT = Path(__file__).resolve().parents[3]
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"


def scrape(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        return answer.read().decode()


def value(text: str, name: str, label: str = "") -> float:
    """Zero where there is none, because not all are there before they are first counted."""
    for line in text.splitlines():
        if re.match(rf"{name}[ {{]", line) and label in line:
            return float(line.rsplit(" ", 1)[1])
    return 0.0


def wait_for_line(server, pattern: str) -> str:
    found = []

    def is_there():
        found[:] = [line for line in server.log.splitlines() if re.search(pattern, line)]
        return found

    wait_for(is_there, f"a line with {pattern}")
    return found[0]


def generate(server, *metadata, **fields):
    """One call with metadata of its own: the initial metadata of the answer."""
    with grpc.insecure_channel(server.target) as channel:
        call = channel.unary_stream(
            "/mneme.v1.Inference/Generate",
            request_serializer=inference_pb2.GenerateRequest.SerializeToString,
            response_deserializer=inference_pb2.GenerateResponse.FromString,
        )(inference_pb2.GenerateRequest(**fields), metadata=metadata, timeout=30)
        list(call)
        return dict(call.initial_metadata())


@pytest.fixture(scope="module")
def served(start_any, golden_model):
    with held_port() as port:
        flags = ("--metrics-port", str(port), "--metrics-compat", "vllm")
        yield start_any(golden_model, *flags), port


def test_counters_move_with_what_is_done(served):
    server, port = served
    before = scrape(port)
    client = server.client()
    client.generate([1, 2, 3], session="s", max_tokens=5, ignore_eos=True)
    client.generate([4], session="s", max_tokens=2, ignore_eos=True)
    client.sessions.fork("s", "t")
    with pytest.raises(mneme.InvalidArgument):
        client.generate([1], max_tokens=1, top_p=7.0)
    expected = {
        ("mneme_requests_total", 'outcome="completed"'): 2,
        ("mneme_requests_total", 'outcome="rejected"'): 1,
        ("mneme_requests_rejected_total", 'code="INVALID_ARGUMENT"'): 1,
        ("mneme_generation_tokens_total", ""): 7,
        ("mneme_resumed_tokens_total", ""): 7,  # 3 of the prompt, 4 fed of the answer
        ("mneme_session_resumes_total", 'outcome="hot"'): 1,
        ("mneme_session_fork_seconds_count", ""): 1,
        ("mneme_rpcs_total", 'method="Generate",code="OK"'): 2,
        ("mneme_rpcs_total", 'method="ForkSession",code="OK"'): 1,
        ("mneme_time_to_first_token_seconds_count", ""): 2,
        ("vllm:request_success_total", 'finished_reason="length"'): 2,
        ("mneme_sessions", 'residency="device"'): 2,
    }

    def moved():
        after = scrape(port)
        return {key: value(after, *key) - value(before, *key) for key in expected}

    wait_for_value(moved, expected)
    # Every token goes to two of the memories in each of the layers.
    assert sum(
        float(line.rsplit(" ", 1)[1])
        for line in scrape(port).splitlines()
        if line.startswith("mneme_routed_tokens_total")
    )


def test_prompt_tokens_are_counted_in_one_way(served):
    server, port = served
    client = server.client()
    base = f"http://127.0.0.1:{server.http_port}"
    client.generate([1, 2, 3], session="counted", max_tokens=4, ignore_eos=True)  # 6 fed, 1 pending
    before = scrape(port)
    first = client.generate(
        [4, 5], session="counted", max_tokens=3, ignore_eos=True, request_id="by-grpc"
    ).usage
    body = {"prompt": [6], "session_id": "counted", "max_tokens": 2, "n": 2, "ignore_eos": True}
    status, _, text = ask(base, "/v1/completions", body=body, headers={"x-request-id": "by-http"})
    assert status == 200, text
    usage = json.loads(text)["usage"]
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    counted = {
        "by-grpc": (first.prompt_tokens, first.resumed_tokens),
        "by-http": (usage["prompt_tokens"] - cached, cached),
    }
    assert counted == {"by-grpc": (3, 6), "by-http": (2, 11)}
    for name, (new, old) in counted.items():
        line = wait_for_line(server, f" request id={name} ")
        assert f"prompt_tokens={new} cached_tokens={old} " in line

    def moved():
        after = scrape(port)
        names = ("prompt_tokens_total", "request_prompt_tokens_sum", "resumed_tokens_total")
        return [value(after, f"mneme_{n}") - value(before, f"mneme_{n}") for n in names]

    wait_for_value(moved, [5, 5, 17])


def test_promtool_finds_nothing_wrong(served):
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed (Debian package prometheus)")
    # It does not like the colon in the names of vLLM.
    lines = [line for line in scrape(served[1]).splitlines() if not re.search(r"\bvllm:", line)]
    done = subprocess.run(
        ["promtool", "check", "metrics"], input="\n".join(lines) + "\n", capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_metric_and_every_alert_is_described(served):
    text = (ROOT / "docs/operations.md").read_text()
    names = re.findall(r"^# TYPE (\w+) ", scrape(served[1]), re.MULTILINE)
    assert len(names) > 50
    assert [name for name in names if f"`{name}" not in text] == []
    alerts = re.findall(
        r"- alert: (\w+)", (ROOT / "deploy/prometheus/alerts.yml").read_text()
    )
    assert [alert for alert in alerts if f"`{alert}`" not in text] == []


def test_a_trace_is_logged_and_sent_back(served):
    server, _ = served
    answer = generate(
        server,
        ("traceparent", f"00-{TRACE}-{PARENT}-01"),
        ("tracestate", "vendor=1"),
        request_id="traced",
        token_ids={"ids": [1, 2]},
    )
    version, trace, span, flags = answer["traceparent"].split("-")
    assert (version, trace, flags) == ("00", TRACE, "01")
    assert span != PARENT
    assert answer["tracestate"] == "vendor=1"
    line = wait_for_line(server, " request id=traced ")
    assert f"trace_id={TRACE} span_id={span} api=grpc client=127.0.0.1:" in line


def test_http_requests_are_logged_and_traced_as_others(served):
    server, port = served
    base = f"http://127.0.0.1:{server.http_port}"

    def complete(request_id, body, **headers):
        return ask(
            base, "/v1/completions", body=body, headers={"x-request-id": request_id, **headers}
        )

    rejected = value(scrape(port), "mneme_requests_rejected_total", 'code="INVALID_ARGUMENT"')
    trace = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "vendor=1"}
    status, headers, _ = complete(
        "web", {"prompt": [[1, 2], [3]], "max_tokens": 3, "ignore_eos": True}, **trace
    )
    assert status == 200
    version, trace_id, span, _ = headers["traceparent"].split("-")
    assert (version, trace_id, headers["tracestate"]) == ("00", TRACE, "vendor=1")
    for i, tokens in enumerate((2, 1)):
        line = wait_for_line(server, f" request id=web-{i} ")
        assert f"trace_id={TRACE} span_id={span} api=http client=127.0.0.1:" in line
        assert f"outcome=completed finish=length prompt_tokens={tokens} " in line

    refused = {
        "bad-json": b"{",
        "bad-field": {"prompt": "a", "no_such_field": 1},
        "bad-range": {"prompt": "a", "top_p": 7},
        "wrong-model": {"prompt": "a", "model": "other"},
    }
    for request_id, body in refused.items():
        status, headers, _ = complete(request_id, body, **trace)
        assert status in (400, 404), request_id
        span = headers["traceparent"].split("-")[2]
        line = wait_for_line(server, f" request id={request_id} ")
        assert f"trace_id={TRACE} span_id={span} api=http" in line
        assert "outcome=rejected code=" in line
    wait_for_value(
        lambda: value(scrape(port), "mneme_requests_rejected_total", 'code="INVALID_ARGUMENT"'),
        rejected + 3,
    )
    _, headers, _ = complete("untraced", {"prompt": "a", "max_tokens": 1}, traceparent="00-x")
    assert "traceparent" not in headers
    assert "trace_id" not in wait_for_line(server, " request id=untraced ")


def test_every_call_over_http_has_a_line(served):
    server, port = served
    base = f"http://127.0.0.1:{server.http_port}"

    def call(request_id, path, status, **options):
        answer = ask(base, path, headers={"x-request-id": request_id}, **options)
        assert answer[0] == status, answer

    call("line-models", "/v1/models?key=xylophone", 200)
    call("line-health", "/health", 200)
    call("line-tokenize", "/tokenize", 200, body={"prompt": "xylophone"})
    call("line-nowhere", "/no%0Awhere%20at=all", 404)
    call("line-broken", "/v1/completions", 400, body=b"{")
    call("line-answer", "/v1/completions", 200, body={"prompt": "a", "max_tokens": 2})
    assert ask(f"http://127.0.0.1:{port}", "/other")[0] == 404
    client = r"api=http client=127\.0\.0\.1:\d+"
    tail = r"bytes=\d+ duration_ms=[\d.]+$"
    for request_id, said in {
        "line-models": "method=GET path=/v1/models status=200",
        "line-tokenize": "method=POST path=/tokenize status=200",
        "line-nowhere": 'method=GET path="/no%0Awhere%20at=all" status=404',
        "line-broken": "method=POST path=/v1/completions status=400",
        "line-answer": "method=POST path=/v1/completions status=200",
    }.items():
        wait_for_line(server, f" I http id={request_id} {client} {re.escape(said)} {tail}")
    wait_for_line(server, r" I http id=\S+ api=metrics .* path=/other status=404 ")
    assert "id=line-health" not in server.log
    assert "path=/metrics" not in server.log
    assert "xylophone" not in server.log


def test_which_calls_have_a_line_changes_at_run_time(start, tmp_path):
    file = tmp_path / "mneme.textproto"
    file.write_text('log { http: "all" }')
    server = start("--config", str(file))
    base = f"http://127.0.0.1:{server.http_port}"

    def call(request_id, path):
        ask(base, path, headers={"x-request-id": request_id})

    call("probe", "/health")
    wait_for_line(server, " http id=probe .* path=/health status=200 ")
    file.write_text('log { http: "failed" }')
    server.signal(signal.SIGHUP)
    wait_for_line(server, "log_settings .*http=failed")
    call("fine", "/v1/models")
    call("wrong", "/nowhere")
    wait_for_line(server, " http id=wrong ")
    assert "id=fine" not in server.log


def test_a_trace_that_is_not_valid_is_ignored(served):
    server, _ = served
    answer = generate(
        server, ("traceparent", "00-not-a-trace"), request_id="bad-trace", token_ids={"ids": [1]}
    )
    assert "traceparent" not in answer
    assert "trace_id" not in wait_for_line(server, " request id=bad-trace ")


def test_a_request_is_one_object_of_json(start):
    server = start("--log-format", "json")
    client = server.client()
    client.generate([7, 8, 9], session="chat", max_tokens=4, ignore_eos=True, request_id="r1")
    line = json.loads(wait_for_line(server, '"id":"r1"'))
    assert line["event"] == "request"
    assert (line["outcome"], line["finish"], line["session"]) == ("completed", "length", "chat")
    assert (line["prompt_tokens"], line["cached_tokens"], line["generated_tokens"]) == (3, 0, 4)
    assert line["total_ms"] >= line["prefill_ms"] + line["decode_ms"]
    with pytest.raises(mneme.NotFound):
        client.generate([1], session="none", create_if_missing=False, request_id="r2")
    line = json.loads(wait_for_line(server, '"id":"r2"'))
    assert (line["outcome"], line["code"]) == ("rejected", "NOT_FOUND")
    assert line["reason"] == "NO_SUCH_SESSION"


def test_no_line_holds_a_word_of_a_prompt(served):
    server, _ = served
    secret = "xylophone-in-the-attic"
    generate(server, request_id="quiet", text=secret)
    with pytest.raises(grpc.RpcError):
        generate(server, request_id="quiet-too", text=secret, sampling={"top_p": 9})
    wait_for_line(server, " request id=quiet ")
    wait_for_line(server, " request id=quiet-too ")
    assert "xylophone" not in server.log


def test_a_configuration_from_a_pipe_is_read_once(start, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=('log { level: "info" }',))
    writer.start()
    server = start("--config", str(pipe))
    writer.join()
    server.signal(signal.SIGHUP)
    wait_for_line(server, "reload_failed: SIGHUP: .*is a pipe, which cannot be read again files=config")
    server.stop()


def test_the_log_changes_at_run_time(start, tmp_path):
    file = tmp_path / "mneme.textproto"
    file.write_text('log { level: "info" }')
    server = start("--config", str(file))

    def is_in_order() -> float:
        text = ask(f"http://127.0.0.1:{server.http_port}", "/metrics")[2].decode()
        return value(text, "mneme_config_last_reload_successful")

    client = server.client()
    client.generate([1], max_tokens=1, request_id="before")
    wait_for_line(server, " request id=before ")
    file.write_text('log { level: "info" requests: "none" format: "json" } server { grpc_port: 1 }')
    server.signal(signal.SIGHUP)
    wait_for_line(server, r'"event":"log_settings","level":"info","format":"json","requests":"none","http":"no-probes"')
    client.generate([1], max_tokens=1, request_id="while-off")
    file.write_text("log { level: nonsense }")
    server.signal(signal.SIGHUP)
    wait_for_line(server, r'"severity":"ERROR".*SIGHUP')
    assert is_in_order() == 0
    file.write_text('log { requests: "all" }')
    server.signal(signal.SIGHUP)
    wait_for_line(server, "format=text requests=all")
    assert is_in_order() == 1
    client.generate([1], max_tokens=1, request_id="after")
    wait_for_line(server, " request id=after ")
    assert "while-off" not in server.log


def test_a_taken_metrics_port_is_named(bin_dir, golden_model):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        done = subprocess.run(
            [bin_dir / "mneme-server", "--model", golden_model, "--grpc-port", "0"]
            + ["--metrics-port", str(port)],
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert done.returncode == 5
    assert f"{port}" in done.stderr and "--metrics-port" in done.stderr


def test_transfers_of_sessions_are_counted(start, name):
    server = start()
    client = server.client()
    client.generate([1, 2, 3], session=name, max_tokens=2)
    file = client.sessions.export_bytes(name)
    client.sessions.import_file(file, "copy")
    with pytest.raises(mneme.MnemeError):
        client.sessions.import_file(file[:-1], "damaged")
    with pytest.raises(mneme.NotFound):
        client.sessions.export_bytes("nobody")
    base = f"http://127.0.0.1:{server.http_port}"
    _, _, body = ask(base, f"/v1/sessions/{name}/export?format=safetensors", method="GET")
    assert body == file

    def count(what, *labels):
        text = scrape(server.http_port)
        return sum(
            float(line.rsplit(" ", 1)[1])
            for line in text.splitlines()
            if line.startswith(f"mneme_session_transfer{what}{{") and all(x in line for x in labels)
        )

    wait_for_value(lambda: count("s_running"), 0)
    assert count("s_total", 'direction="export"', 'outcome="whole"') == 2
    assert count("s_total", 'direction="export"', 'outcome="failed"') == 1
    assert count("s_total", 'direction="import"', 'outcome="whole"') == 1
    assert count("s_total", 'direction="import"', 'outcome="failed"') == 1
    assert count("_bytes_total", 'direction="export"') == 2 * len(file)
    assert count("_bytes_total", 'direction="import"') == len(file)
