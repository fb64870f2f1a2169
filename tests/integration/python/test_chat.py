"""Chats by the Python client, with the demo model: the server's template, sessions, control tokens."""

import asyncio

import pytest

import mneme
from mneme import AsyncClient

SAID = [
    {"role": "user", "content": "My code is 7281."},
    {"role": "assistant", "content": "Noted. Your code is 7281."},
    {"role": "user", "content": "What is my code?"},
]


@pytest.fixture
def demo_client(demo_server):
    return demo_server.client()


def test_a_session_is_told_only_what_is_new(demo_client, name):
    session = demo_client.session(name)
    first = session.chat("My name is Clara.", temperature=0)
    second = session.chat("What is my name?", temperature=0)
    assert "Clara" in second.text
    assert first.usage.resumed_tokens == 0
    assert second.usage.resumed_tokens == first.session.position - 1  # all but the pending token
    assert session.position == session.info().position == second.session.position


def test_a_stream_says_what_the_whole_answer_says(demo_client, name):
    demo_client.session(name).chat("My code is 7281.", temperature=0)
    demo_client.session(name).fork(f"{name}-2")
    whole = demo_client.session(name).chat("What is my code?", temperature=0)
    stream = demo_client.session(f"{name}-2").stream_chat("What is my code?", temperature=0)
    assert "".join(stream.texts()) == whole.text
    assert "7281" in whole.text


def test_a_conversation_needs_no_session(demo_client):
    answer = demo_client.chat(SAID, temperature=0)
    assert "7281" in answer.text
    assert answer.session is None


def test_a_whole_conversation_goes_on_behind_what_the_session_knows(demo_client, name):
    options = {"session": name, "whole_conversation": True, "temperature": 0}
    first = demo_client.chat(SAID, **options)
    told = [
        *SAID,
        {"role": "assistant", "content": first.text},
        {"role": "user", "content": "Thanks."},
    ]
    assert demo_client.chat(told, **options).usage.resumed_tokens >= first.usage.prompt_tokens
    with pytest.raises(mneme.HistoryMismatch):
        demo_client.chat([{"role": "user", "content": "Something else."}], **options)


def test_asyncio_chats(demo_server, name):
    async def talk():
        async with AsyncClient(demo_server.target, api_key="") as client:
            session = client.session(name)
            await session.chat("My name is Ben.", temperature=0)
            whole = await session.chat("What is my name?", temperature=0)
            stream = session.stream_chat("What is my name?", temperature=0)
            return whole.text, "".join([text async for text in stream.texts()])

    whole, streamed = asyncio.run(talk())
    assert "Ben" in whole
    assert "Ben" in streamed


def test_a_session_that_is_gone_is_not_begun_anew(demo_client, name):
    session = demo_client.session(name, must_exist=True)
    for call in (session.chat, session.send):
        with pytest.raises(mneme.SessionNotFound):
            call("What is my code?", max_tokens=4)
    demo_client.session(name).chat("My code is 7281.")
    assert session.chat("What is my code?", max_tokens=20).usage.resumed_tokens > 0
    session.delete()
    with pytest.raises(mneme.SessionNotFound):
        session.chat("What is my code?")


def test_control_tokens_in_a_text_are_tokens_unless_told_otherwise(demo_client):
    eos = demo_client.info().model.eos_token_id
    assert demo_client.tokenize("</s>", add_special_tokens=False).ids == (eos,)
    plain = demo_client.tokenize("</s>", add_special_tokens=False, parse_special=False).ids
    assert len(plain) > 1
    assert eos not in plain
    tokens = [
        demo_client.generate("a</s>", max_tokens=0, parse_special=p).usage for p in (True, False)
    ]
    assert tokens[0].prompt_tokens < tokens[1].prompt_tokens


def test_a_model_without_a_template_takes_no_chats(client):
    assert not client.info().model.has_chat_template
    with pytest.raises(mneme.FailedPrecondition) as caught:
        client.chat("Hello")
    assert isinstance(caught.value, mneme.NoChatTemplate)


def test_a_message_s_control_tokens_are_text(demo_client):
    plain = demo_client.chat("Hello.", max_tokens=0).usage.prompt_tokens
    spelled = demo_client.chat("Hello.</s>", max_tokens=0).usage.prompt_tokens
    assert spelled > plain + 1
