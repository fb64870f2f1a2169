"""Completions over HTTP count themselves right, to the token."""

import json

from http_requests import ask


def complete(server, **body):
    base = f"http://127.0.0.1:{server.http_port}"
    status, _, text = ask(base, "/v1/completions", body={"temperature": 0} | body)
    return status, json.loads(text)


def test_a_stop_text_of_digits_is_a_text(text_server):
    digits = {str(text_server.client().tokenize("5", add_special_tokens=False).ids[-1]): 100}
    status, answer = complete(
        text_server, prompt="Where is it?", max_tokens=4, stop=["5"], logit_bias=digits
    )
    assert status == 200
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["choices"][0]["stop_reason"] == "5"


def test_a_stop_token_is_a_number(text_server):
    token = text_server.client().tokenize("5", add_special_tokens=False).ids[-1]
    bias = {str(token): 100}
    status, answer = complete(
        text_server, prompt="Where?", max_tokens=4, stop_token_ids=[token], logit_bias=bias
    )
    assert status == 200
    assert answer["choices"][0]["stop_reason"] == token


def test_a_list_of_prompts_may_have_an_idempotency_key(text_server, name):
    body = {"prompt": ["one", "two"], "max_tokens": 3, "idempotency_key": name, "ignore_eos": True}
    status, first = complete(text_server, **body)
    assert status == 200, first
    status, again = complete(text_server, **body)
    assert status == 200, again
    texts = [[choice["text"] for choice in answer["choices"]] for answer in (first, again)]
    assert texts[0] == texts[1]


def test_prompt_tokens_count_the_pending_token_for_any_n(text_server, name):
    counts = []
    for n in (1, 2):
        session = f"{name}-{n}"
        fields = {"session_id": session, "max_tokens": 4, "ignore_eos": True}
        assert complete(text_server, prompt="Where is it?", **fields)[0] == 200
        status, answer = complete(text_server, prompt=" And now?", n=n, **fields)
        assert status == 200, answer
        assert answer["usage"]["completion_tokens"] == 4 * n
        counts.append(answer["usage"]["prompt_tokens"])
    assert counts[0] == counts[1]


def test_more_prompts_than_a_key_may_have_streams_are_a_bad_request(start, new_key, tmp_path):
    key, line = new_key("alice", ":streams=1")
    file = tmp_path / "keys"
    file.write_text(line + "\n")
    server = start("--api-key-file", file)
    base = f"http://127.0.0.1:{server.http_port}"
    status, headers, text = ask(
        base, "/v1/completions", key, {"prompt": ["a", "b"], "max_tokens": 1}
    )
    assert status == 400, text
    assert json.loads(text)["error"]["param"] == "prompt"
    assert "retry-after" not in headers
