"""Prompts that begin alike, as clients see them: the same answers, and how much was not computed."""

import http.client
import json

import pytest

from http_requests import ask
from mneme import HistoryMismatch, InvalidArgument
from waiting import wait_for

COMMON = [(7 * i) % 250 for i in range(200)]
GREEDY = {"max_tokens": 8, "temperature": 0.0, "ignore_eos": True}


@pytest.fixture(scope="module")
def caching(start_any, golden_model):
    return start_any(golden_model, "--prefix-cache-memory", "16MiB")


def test_the_third_prompt_is_fed_what_is_its_own(caching, client):
    own = [[i, i + 1, i + 2] for i in range(3)]
    answers = [caching.client().generate(COMMON + ids, **GREEDY) for ids in own]
    assert [answer.usage.cached_tokens for answer in answers] == [0, 128, 200]
    assert [answer.usage.prompt_tokens for answer in answers] == [203, 75, 3]
    for ids, answer in zip(own, answers):
        plain = client.generate(COMMON + ids, **GREEDY)
        assert plain.usage.cached_tokens == 0
        assert answer.token_ids == plain.token_ids


def test_salts_and_bypassing_keep_apart(caching):
    client = caching.client()
    ids = [1, *COMMON]
    cached = lambda **options: client.generate(ids, **GREEDY, **options).usage.cached_tokens
    assert cached(cache_salt="one") == 0
    assert cached(cache_salt="one", cache_marks=[10]) == 128
    assert cached(cache_salt="two") == 0
    assert cached(cache_salt="one", bypass_prefix_cache=True) == 0
    assert cached(cache_salt="one") == 200
    with pytest.raises(InvalidArgument, match="marks"):
        cached(cache_marks=[202])


def test_openai_clients_are_told(caching):
    base = f"http://127.0.0.1:{caching.http_port}"
    body = {"prompt": [2, *COMMON], "max_tokens": 4, "cache_salt": "http"}

    def usage(**more):
        status, _, text = ask(base, "/v1/completions", body={**body, **more})
        assert status == 200, text
        return json.loads(text)["usage"]

    first, second, third = usage(), usage(), usage()
    assert [u["prompt_tokens"] for u in (first, second, third)] == [201] * 3
    cached = [u["prompt_tokens_details"]["cached_tokens"] for u in (first, second, third)]
    assert cached == [0, 128, 200]
    assert usage(cache_prompt=False)["prompt_tokens_details"]["cached_tokens"] == 0
    status, _, text = ask(base, "/v1/completions", body={**body, "cache_marks": [202]})
    assert status == 400 and json.loads(text)["error"]["param"] == "cache_marks"


def test_a_chat_begins_behind_its_system_message(start_any, chat_model):
    client = start_any(chat_model, "--prefix-cache-memory", "64MiB").client()
    system = {"role": "system", "content": "You are told many things, and remember all of them. " * 3}
    answers = [
        client.chat([system, {"role": "user", "content": text}], **GREEDY)
        for text in ("Who?", "And where is that?")
    ]
    first, second = (answer.usage for answer in answers)
    assert first.cached_tokens == 0
    # More than a power of two: the template says where the message ends.
    assert second.cached_tokens > 32
    assert second.cached_tokens & (second.cached_tokens - 1) != 0


def words(count, salt):
    return " ".join(f"w{(i * 7 + salt * 13) % 97}" for i in range(count))


def history_of(usage):
    return usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"]


@pytest.fixture(scope="module")
def chats(start_any, chat_model):
    server = start_any(chat_model, "--prefix-cache-memory", "256MiB")
    base = f"http://127.0.0.1:{server.http_port}"

    def chat(messages, session=None, **fields):
        body = {"messages": messages, "max_tokens": 16, "temperature": 0, "ignore_eos": True}
        if session is not None:
            body["session_id"] = session
        status, headers, text = ask(base, "/v1/chat/completions", body=body | fields)
        return status, headers, json.loads(text)

    def leave(messages, session, **fields):
        """Sends a chat and goes as soon as the server has begun it."""
        body = {"messages": messages, "session_id": session} | fields
        connection = http.client.HTTPConnection("127.0.0.1", server.http_port)
        connection.request(
            "POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"}
        )
        wait_for(lambda: ask(base, f"/v1/sessions/{session}")[0] == 200, "the session of a chat")
        connection.close()

    chat.server = server
    chat.leave = leave
    return chat


def test_an_edited_message_costs_what_follows_it(chats, name):
    """20 equal turns; the tenth message is edited, what came after it dropped."""
    messages, sent, said = [], [], []
    for turn in range(20):
        messages.append({"role": "user", "content": words(12, turn)})
        sent.append(list(messages))
        status, _, body = chats(messages, name)
        assert status == 200, body
        said.append(body["choices"][0]["message"]["content"])
        messages.append({"role": "assistant", "content": said[-1]})
    edited = [*sent[9][:-1], {"role": "user", "content": words(12, 99)}]
    status, headers, body = chats(edited, name)
    assert status == 200, body
    assert headers["x-session-reuse"] == "rewound"
    assert int(headers["x-session-rewound-from"]) > body["session"]["position"]
    usage = body["usage"]
    assert usage["prompt_tokens"] >= 8 * history_of(usage)
    # Unedited it is answered as it was.
    assert chats(sent[9], name)[2]["choices"][0]["message"]["content"] == said[9]

    # The same answer anew costs next to nothing.
    status, headers, again = chats(edited, name)
    assert status == 200 and headers["x-session-reuse"] == "rewound"
    assert again["choices"] == body["choices"]
    assert history_of(again["usage"]) <= history_of(usage)


def test_clients_choose_what_becomes_of_a_session(chats, name):
    first = [{"role": "user", "content": "One."}]
    other = [{"role": "user", "content": "Another."}]
    assert chats(first, name)[0] == 200
    assert chats(first, name, on_mismatch="refuse")[0] == 412
    status, _, body = chats(other, name)
    assert (status, body["error"]["code"]) == (412, "history_mismatch")
    status, headers, _ = chats(other, name, on_mismatch="replace")
    assert (status, headers["x-session-reuse"]) == (200, "rewound")
    for fields, param in (
        ({"on_mismatch": "perhaps"}, "on_mismatch"),
        ({"on_mismatch": "rewind", "session_mode": "append"}, "on_mismatch"),
        ({"remember": False, "session_ttl_ms": 5}, "session_ttl_ms"),
    ):
        status, _, body = chats(first, name, **fields)
        assert (status, body["error"]["param"]) == (400, param)
    status, _, body = chats(first, on_mismatch="rewind")
    assert (status, body["error"]["param"]) == (400, "on_mismatch")
    with pytest.raises(InvalidArgument, match="on_mismatch"):
        chats.server.client().chat(first, session=name, on_mismatch="rewind")


def test_python_clients_may_edit_too(chats, name):
    session = chats.server.client().session(name)
    told = [{"role": "user", "content": "One."}]
    whole = {"whole_conversation": True, "temperature": 0, "max_tokens": 8}
    first = session.chat(told, **whole)
    with pytest.raises(HistoryMismatch):
        session.chat(told, **whole)
    again = session.chat(told, **whole, on_mismatch="rewind")
    assert again.text == first.text
    assert again.usage.rewound_from == first.session.position


def test_what_is_not_to_be_remembered_is_not(chats, name):
    told = [{"role": "user", "content": "One."}]
    status, _, body = chats(told, name)
    position = body["session"]["position"]
    status, headers, aside = chats(
        [{"role": "user", "content": "Aside."}], name, session_mode="append", remember=False
    )
    assert status == 200, aside
    assert "session" not in aside and "x-session-id" not in headers
    client = chats.server.client()
    assert client.sessions.get(name).position == position
    over_grpc = client.chat("Aside.", session=name, temperature=0, remember=False, max_tokens=16)
    assert over_grpc.session is None
    assert over_grpc.usage.resumed_tokens == position - 1
    assert client.sessions.get(name).position == position
    assert client.generate("Nobody.", session=f"{name}-none", remember=False).session is None
    assert name in [s.name for s in client.sessions.list(name)]
    assert f"{name}-none" not in [s.name for s in client.sessions.list(name)]


def test_a_detached_chat_is_fetched_later(chats, name):
    told = [{"role": "user", "content": "One."}]
    fields = {"detached": True, "idempotency_key": name, "max_tokens": 1500, "temperature": 0, "ignore_eos": True}
    chats.leave(told, name, **fields)
    status, headers, body = chats(told, name, **fields)
    assert status == 200, body
    assert headers["x-idempotent-replay"] == "true"
    assert body["usage"]["completion_tokens"] == 1500
    assert chats(told, name, **fields)[2]["choices"] == body["choices"]
