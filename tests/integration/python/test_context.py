"""Sessions of models with attention: how they fill up, over gRPC and HTTP."""

import json
import subprocess

import pytest

import mneme
from http_requests import ask

MAX_CONTEXT = 40


@pytest.fixture
def server(bin_dir, start, tmp_path):
    folder = tmp_path / "transformer"
    make = [bin_dir / "mneme-make-model", "--shape", "transformer-tiny", "--out", folder]
    subprocess.run(make, check=True, capture_output=True)
    return start("--max-context", str(MAX_CONTEXT), model=folder)


def complete(server, **body):
    base = f"http://127.0.0.1:{server.http_port}"
    fields = {"temperature": 0, "ignore_eos": True} | body
    status, _, text = ask(base, "/v1/completions", body=fields)
    return status, text.decode()


def test_a_full_session_ends_its_answer_and_says_so(server, name):
    prompt = list(range(5, 35))
    drawn = MAX_CONTEXT - len(prompt) + 1  # the last one is not fed
    client = server.client()
    short = client.generate(prompt, max_tokens=4, ignore_eos=True)
    assert short.finish_reason is mneme.FinishReason.LENGTH
    assert not short.context_full
    full = client.generate(prompt, max_tokens=1000, ignore_eos=True, session=name)
    assert full.finish_reason is mneme.FinishReason.LENGTH
    assert full.context_full
    assert len(full.token_ids) == drawn
    session = client.sessions.get(name)
    assert session.position == MAX_CONTEXT + 1
    assert (session.max_context, session.context_full) == (MAX_CONTEXT, True)
    assert client.info().limits.max_context == MAX_CONTEXT
    base = f"http://127.0.0.1:{server.http_port}"
    over_http = json.loads(ask(base, f"/v1/sessions/{name}")[2])
    assert (over_http["max_context"], over_http["context_full"]) == (MAX_CONTEXT, True)
    assert json.loads(ask(base, "/v1/models")[2])["data"][0]["max_model_len"] == MAX_CONTEXT

    status, text = complete(server, prompt=prompt, max_tokens=4)
    assert status == 200
    assert "context_full" not in text
    status, text = complete(server, prompt=prompt, max_tokens=1000)
    answer = json.loads(text)
    assert status == 200
    assert answer["usage"]["completion_tokens"] == drawn
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["choices"][0]["context_full"] is True
    status, text = complete(server, prompt=prompt, max_tokens=1000, stream=True)
    assert status == 200
    assert text.count('"context_full":true') == 1


def test_every_choice_that_fills_its_session_says_so(server):
    prompt = list(range(5, 35))
    full = {"finish_reason": "length", "context_full": True}
    for n in (1, 2, 5):
        completion = server.client().generate(prompt, n=n, max_tokens=1000, ignore_eos=True)
        assert [c.context_full for c in completion.choices] == [True] * n

        status, text = complete(server, prompt=prompt, n=n, max_tokens=1000)
        assert status == 200
        choices = json.loads(text)["choices"]
        assert [c | full for c in choices] == choices
        assert [c["index"] for c in choices] == list(range(n))

        status, text = complete(server, prompt=prompt, n=n, max_tokens=1000, stream=True)
        assert status == 200
        lines = [line for line in text.splitlines() if line.startswith("data: {")]
        ends = [c for line in lines for c in json.loads(line[6:])["choices"] if c["finish_reason"]]
        assert [c | full for c in ends] == ends
        assert sorted(c["index"] for c in ends) == list(range(n))

        status, text = complete(server, prompt=prompt, n=n, max_tokens=4)
        assert "context_full" not in text


def test_a_prompt_beyond_the_context_is_refused_before_any_work(server, name):
    prompt = [7] * (MAX_CONTEXT + 1)
    numbers = f"would feed {MAX_CONTEXT + 1} tokens to a session that was fed 0, expected at most"
    client = server.client()
    with pytest.raises(mneme.InvalidArgument, match=numbers) as refused:
        client.generate(prompt, max_tokens=1, session=name)
    assert refused.value.reason == "CONTEXT_FULL"
    with pytest.raises(mneme.NotFound):
        client.sessions.get(name)

    status, text = complete(server, prompt=prompt, max_tokens=1, session_id=name)
    error = json.loads(text)["error"]
    assert status == 400
    assert error["code"] == "context_full"
    assert error["param"] == "prompt"
    assert numbers in error["message"]
    assert f"{MAX_CONTEXT} together (--max-context)" in error["message"]
    with pytest.raises(mneme.NotFound):
        client.sessions.get(name)

    # The same of what is left to a session.
    client.generate(prompt[:30], max_tokens=1, ignore_eos=True, session=name)
    left = "would feed 12 tokens to a session that was fed 30"
    with pytest.raises(mneme.InvalidArgument, match=left):
        client.generate(prompt[:11], max_tokens=1, session=name)
    assert client.sessions.get(name).position == 31
