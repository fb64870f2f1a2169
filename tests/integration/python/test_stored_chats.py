"""Chats of stored sessions: answers fetched after a restart, and edits of what was said before it."""

import http.client
import json

import pytest

from http_requests import ask
from waiting import wait_for


def chat_of(server):
    """Sends whole conversations to a session, as OpenAI's clients do: (status, headers, body)."""

    def chat(messages, session, **fields):
        body = {"messages": messages, "session_id": session, "max_tokens": 12, "temperature": 0}
        body |= {"ignore_eos": True} | fields
        base = f"http://127.0.0.1:{server.http_port}"
        status, headers, text = ask(base, "/v1/chat/completions", body=body)
        return status, headers, json.loads(text)

    return chat


@pytest.mark.parametrize("ends_in_order", [True, False])
def test_a_detached_chat_is_fetched_after_a_restart(start, chat_model, tmp_path, ends_in_order):
    flags = ("--session-dir", str(tmp_path / "sessions"))
    server = start(*flags, model=chat_model)
    told = [{"role": "user", "content": "One."}]
    fields = {"detached": True, "idempotency_key": "key", "max_tokens": 300}
    # Its client leaves as soon as it is begun.
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port)
    body = {"messages": told, "session_id": "s", "temperature": 0, "ignore_eos": True} | fields
    connection.request(
        "POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"}
    )
    session = server.client().session("s")
    wait_for(lambda: [s.name for s in server.client().sessions.list()] == ["s"], "the session")
    connection.close()
    wait_for(lambda: not session.info().busy, "the end of the answer")
    position = session.info().position
    if ends_in_order:
        server.stop()
    else:
        server.kill()

    server = start(*flags, model=chat_model)
    for _ in range(2):
        status, headers, fetched = chat_of(server)(told, "s", **fields)
        assert status == 200, fetched
        assert headers["x-idempotent-replay"] == "true"
        assert fetched["usage"]["completion_tokens"] == 300
        assert server.client().session("s").info().position == position
    # It says what one says that is waited for.
    status, _, other = chat_of(server)(told, "other", max_tokens=300)
    assert status == 200, other
    assert fetched["choices"] == other["choices"]


def test_an_edited_chat_keeps_what_is_in_front_of_the_edit(start, chat_model, tmp_path):
    def begin(folder):
        flags = ("--session-dir", str(tmp_path / folder), "--snapshot-tokens", "0")
        return start(*flags, model=chat_model)

    def talk(server):
        messages = []
        for turn in range(6):
            messages.append({"role": "user", "content": f"Number {turn * 1117} of them."})
            status, _, body = chat_of(server)(messages, "s")
            assert status == 200, body
            messages.append(body["choices"][0]["message"])
            if turn in (2, 4):
                session = server.client().session("s")
                log = session.info().stored_bytes
                session.checkpoint(f"turn-{turn}")
                wait_for(lambda: session.info().stored_bytes > log, "the checkpoint's snapshot")
        return messages, body["session"]["position"]

    server, unstopped = begin("sessions"), begin("unstopped")
    messages, position = talk(server)
    assert talk(unstopped) == (messages, position)
    server.stop()

    server = begin("sessions")
    edited = [*messages[:6], {"role": "user", "content": "Another."}]
    status, headers, body = chat_of(server)(edited, "s")
    assert status == 200, body
    assert headers["x-session-reuse"] == "rewound"
    assert headers["x-session-rewound-from"] == str(position)
    cached = body["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert 0 < body["usage"]["prompt_tokens"] - cached < body["usage"]["prompt_tokens"] / 2
    session = server.client().session("s")
    assert [one.name for one in session.checkpoints()] == ["turn-2"]
    assert body["choices"] == chat_of(unstopped)(edited, "s")[2]["choices"]
    server.kill()

    server = begin("sessions")
    edited += [body["choices"][0]["message"], {"role": "user", "content": "And then?"}]
    answers = [chat_of(one)(edited, "s") for one in (server, unstopped)]
    assert answers[0][2]["choices"] == answers[1][2]["choices"]
