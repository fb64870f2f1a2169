"""Refusals over HTTP name what the caller sent: the field of the body, as `param` and in the message."""

import json

import pytest
from http_requests import ask

COMPLETIONS = "/v1/completions"
CHATS = "/v1/chat/completions"
SESSIONS = "/v1/sessions"
MESSAGES = [{"role": "user", "content": "a"}]
LONG = "a" * 129


@pytest.fixture(scope="module")
def narrow_server(start_any, golden_model):
    """Tokens are bytes here."""
    return start_any(golden_model, "--max-model-len", "64", "--max-prompt-tokens", "32",
                     "--max-text-size", "1000")  # fmt: skip


def refusal(server, path, body):
    status, _, text = ask(f"http://127.0.0.1:{server.http_port}", path, body=body)
    assert status == 400, text
    return json.loads(text)["error"]


def check(error, param):
    assert error["param"] == param, error
    assert error["message"].startswith(param + " "), error
    for name in ("sampling.", "stopping.", "response.", "session.", "token_ids.", "stop_strings"):
        assert name not in error["message"], error


# Out of range; types are tested beside the code that reads them.
OF_BOTH = [
    ({"temperature": -1}, "temperature"),
    ({"temperature": 101}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_p": 1.5}, "top_p"),
    ({"top_k": -2}, "top_k"),
    ({"min_p": -0.1}, "min_p"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"presence_penalty": 3}, "presence_penalty"),
    ({"frequency_penalty": -3}, "frequency_penalty"),
    ({"logit_bias": {"100000": 1}}, "logit_bias"),
    ({"logit_bias": {"5": 1000}}, "logit_bias"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"min_tokens": -1}, "min_tokens"),
    ({"min_tokens": 9, "max_tokens": 8}, "min_tokens"),
    ({"stop": ""}, "stop"),
    ({"stop": ["a", "b" * 257]}, "stop"),
    ({"stop": ["a"] * 17}, "stop"),
    ({"stop_token_ids": [100000]}, "stop_token_ids"),
    ({"stop_token_ids": [1] * 65}, "stop_token_ids"),
    ({"n": 0}, "n"),
    ({"n": 129}, "n"),
    ({"priority": 1001}, "priority"),
    ({"session_id": LONG}, "session_id"),
    ({"session_id": "a b"}, "session_id"),
    ({"session_id": "s", "session_ttl_ms": -2}, "session_ttl_ms"),
    ({"session_id": "s", "expected_position": -1}, "expected_position"),
    ({"idempotency_key": LONG}, "idempotency_key"),
]


@pytest.mark.parametrize(("body", "param"), OF_BOTH)
def test_out_of_range(golden_server, body, param):
    check(refusal(golden_server, COMPLETIONS, {"prompt": "a"} | body), param)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": [1, 2, 100000]}, "prompt[2]"),
        ({"prompt": [[1], [1, 100000]]}, "prompt[1][1]"),
        ({"prompt": ["a", ""]}, "prompt[1]"),
        ({"prompt": ["a", "b"], "top_p": 2}, "top_p"),
        ({"prompt": "a", "logprobs": 21}, "logprobs"),
        ({"prompt": "a", "logprobs": 21, "echo": True}, "logprobs"),
    ],
)
def test_of_completions(golden_server, body, param):
    check(refusal(golden_server, COMPLETIONS, body), param)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt": "a" * 40, "max_tokens": 1}, "prompt"),
        ({"prompt": [5] * 40, "max_tokens": 1}, "prompt"),
        ({"prompt": ["a", "a" * 40], "max_tokens": 1}, "prompt[1]"),
        ({"prompt": "a" * 20, "max_tokens": 60}, "prompt"),
        ({"prompt": "a" * 1001}, "prompt"),
    ],
)
def test_too_long(narrow_server, body, param):
    check(refusal(narrow_server, COMPLETIONS, body), param)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        *OF_BOTH,
        ({"max_completion_tokens": -1}, "max_completion_tokens"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"messages": []}, "messages"),
        ({"messages": ["a"]}, "messages[0]"),
        ({"messages": [{"content": "a"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "contents": "a"}]}, "messages[0].contents"),
        ({"messages": [*MESSAGES, {"role": "user", "content": "a", "x": 1}]}, "messages[1].x"),
    ],
)
def test_of_chats(chat_server, body, param):
    check(refusal(chat_server, CHATS, {"messages": MESSAGES} | body), param)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"session_id": ""}, "session_id"),
        ({"session_id": LONG}, "session_id"),
        ({"session_id": 5}, "session_id"),
        ({"session_ttl_ms": -2}, "session_ttl_ms"),
        ({"fork_of": ""}, "fork_of"),
        ({"name": "a"}, "name"),
    ],
)
def test_of_sessions(golden_server, body, param):
    check(refusal(golden_server, SESSIONS, body), param)


@pytest.mark.parametrize(
    ("query", "param"),
    [("limit=0", "limit"), ("limit=a", "limit"), ("a=b", "a"), ("after=a&after=b", "after")],
)
def test_of_listings(golden_server, query, param):
    check(refusal(golden_server, f"{SESSIONS}?{query}", None), param)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": MESSAGES}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"messages": MESSAGES, "chat_template_kwargs": [1]}, "chat_template_kwargs"),
        ("/tokenize", {"messages": MESSAGES, "add_special_tokens": True}, "add_special_tokens"),
        ("/tokenize", {"messages": MESSAGES, "parse_special": True}, "parse_special"),
        ("/tokenize", {"prompt": "a", "parse_special": 1}, "parse_special"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [1, 100000]}, "tokens[1]"),
        ("/detokenize", {"tokens": [1, 1.5]}, "tokens[1]"),
    ],
)
def test_of_tokenizing(chat_server, path, body, param):
    check(refusal(chat_server, path, body), param)


def test_a_model_that_is_not_served(golden_server):
    base = f"http://127.0.0.1:{golden_server.http_port}"
    status, _, text = ask(base, COMPLETIONS, body={"prompt": "a", "model": "other"})
    assert status == 404
    check(json.loads(text)["error"], "model")
