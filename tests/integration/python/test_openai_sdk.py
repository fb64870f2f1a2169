"""The openai package against the HTTP door: what its users do, sync, async and streaming."""

import asyncio
import json
import urllib.error
import urllib.request

import pytest

from waiting import wait_for

openai = pytest.importorskip("openai")

MESSAGES = [{"role": "user", "content": "Where is the key?"}]
# Bytes by themselves are banned: texts of random weights need not be UTF-8.
PLAIN = {"logit_bias": {str(token): -100 for token in range(3, 261)}}


@pytest.fixture
def sdk(chat_server):
    return openai.OpenAI(
        base_url=f"http://127.0.0.1:{chat_server.http_port}/v1", api_key="none", max_retries=0
    )


@pytest.fixture
def chat(sdk):
    """One greedy answer that never ends by itself: messages, then fields of the body."""

    def ask(messages, **fields):
        extra = {"ignore_eos": True, **fields.pop("extra_body", {})}
        return sdk.chat.completions.create(
            model="chat",
            messages=messages,
            max_tokens=fields.pop("max_tokens", 6),
            temperature=0,
            extra_body=extra,
            **{**PLAIN, **fields},
        )

    return ask


def test_lists_and_retrieves_the_model(sdk):
    assert [model.id for model in sdk.models.list()] == ["chat"]
    assert sdk.models.retrieve("chat").object == "model"
    with pytest.raises(openai.NotFoundError) as error:
        sdk.models.retrieve("other")
    assert error.value.code == "model_not_found"


def test_a_stream_says_what_the_whole_answer_says(chat):
    whole = chat(MESSAGES, max_tokens=12)
    chunks = list(chat(MESSAGES, max_tokens=12, stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason == "length"
    assert chunks[-1].choices == []
    assert chunks[-1].usage == whole.usage
    assert whole.usage.completion_tokens == 12


def test_async_requests_run_side_by_side(chat_server):
    async def run():
        async with openai.AsyncOpenAI(
            base_url=f"http://127.0.0.1:{chat_server.http_port}/v1", api_key="none", max_retries=0
        ) as sdk:

            async def one(index):
                stream = await sdk.completions.create(
                    model="chat", prompt=f"number {index}", max_tokens=20, temperature=0, stream=True
                )
                return "".join([chunk.choices[0].text async for chunk in stream])

            together = await asyncio.gather(*(one(i) for i in range(16)))
            alone = [await one(i) for i in range(16)]
            return together, alone

    together, alone = asyncio.run(run())
    assert together == alone


def test_several_prompts_and_choices_have_indexes_in_order(sdk):
    answer = sdk.completions.create(
        model="chat", prompt=["one", "two"], n=2, max_tokens=4, temperature=1, seed=7
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    single = sdk.completions.create(
        model="chat", prompt="two", n=2, max_tokens=4, temperature=1, seed=7
    )
    assert [c.text for c in answer.choices[2:]] == [c.text for c in single.choices]
    assert answer.usage.completion_tokens == 16


def test_the_same_seed_gives_the_same_text(sdk):
    def draw(seed):
        return sdk.completions.create(
            model="chat", prompt="dice", max_tokens=16, temperature=1, seed=seed
        ).choices[0].text

    assert draw(1) == draw(1) != draw(2)


def test_token_ids_are_a_prompt(sdk, chat_server):
    ids = post(chat_server, "/tokenize", {"prompt": "Where is it?"})["tokens"]
    by_text, by_ids = (
        sdk.completions.create(model="chat", prompt=prompt, max_tokens=5, temperature=0)
        for prompt in ("Where is it?", ids)
    )
    assert by_text.choices[0].text == by_ids.choices[0].text
    assert by_text.usage == by_ids.usage


def test_echo_scores_the_prompt_and_shows_it(sdk):
    answer = sdk.completions.create(
        model="chat", prompt="Where is it?", max_tokens=0, echo=True, logprobs=3
    )
    choice = answer.choices[0]
    assert choice.text == "Where is it?"
    assert len(choice.logprobs.tokens) == answer.usage.prompt_tokens
    assert choice.logprobs.token_logprobs[0] is None
    assert all(value < 0 for value in choice.logprobs.token_logprobs[1:])
    assert answer.usage.completion_tokens == 0


def test_chat_logprobs_have_their_alternatives(chat):
    answer = chat(MESSAGES, logprobs=True, top_logprobs=2)
    content = answer.choices[0].logprobs.content
    assert len(content) == 6
    for entry in content:
        assert len(entry.top_logprobs) == 2
        assert entry.logprob <= entry.top_logprobs[0].logprob  # the model's own, without bias
        assert bytes(entry.bytes).decode() == entry.token


def test_stop_ends_in_front_of_the_text(sdk):
    free = sdk.completions.create(model="chat", prompt="a", max_tokens=20, temperature=0, **PLAIN)
    text = free.choices[0].text
    stop = text[len(text) // 2 :][:3]
    cut = sdk.completions.create(
        model="chat", prompt="a", max_tokens=20, temperature=0, stop=[stop], **PLAIN
    )
    assert cut.choices[0].text == text[: text.index(stop)]
    assert cut.choices[0].finish_reason == "stop"
    assert cut.choices[0].stop_reason == stop


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tools", [{"type": "function", "function": {"name": "f"}}]),
        ("response_format", {"type": "json_object"}),
        ("guided_regex", "a*"),
        ("no_such_field", 1),
        ("temperature", 1000),
        ("top_p", "high"),
        ("n", 0),
        ("logit_bias", {"x": 1}),
        ("stop", 3),
    ],
)
def test_refuses_by_name(sdk, field, value):
    with pytest.raises(openai.BadRequestError) as error:
        sdk.chat.completions.create(model="chat", messages=MESSAGES, extra_body={field: value})
    assert error.value.param == field
    assert error.value.type == "invalid_request_error"
    assert field in error.value.message


def test_what_sdks_send_for_other_models_changes_no_answer(chat):
    plain = chat([{"role": "system", "content": "Be brief."}, *MESSAGES])
    other = chat(
        [{"role": "developer", "content": "Be brief."}, *MESSAGES],
        store=True,
        metadata={"a": "b"},
        reasoning_effort="low",
        user="u",
        safety_identifier="s",
        prompt_cache_key="k",
        service_tier="auto",
        response_format={"type": "text"},
        modalities=["text"],
        verbosity="medium",
        tool_choice="auto",
        parallel_tool_calls=True,
    )
    assert other.choices[0].message.content == plain.choices[0].message.content
    assert other.usage == plain.usage


def test_the_tokenizer_is_described_as_its_files_describe_it(chat_server):
    address = f"http://127.0.0.1:{chat_server.http_port}/tokenizer_info"
    with urllib.request.urlopen(address) as answer:
        info = json.load(answer)
    assert (info["bos_token"], info["eos_token"], info["unk_token"]) == ("<s>", "</s>", "<unk>")
    assert (info["add_bos_token"], info["add_eos_token"]) == (True, False)
    assert info["tokenizer_class"] == "LlamaTokenizer"
    assert info["added_tokens_decoder"]["2"]["content"] == "</s>"
    assert "raise_exception" in info["chat_template"]
    # As lm-eval's remote tokenizer asks for them.
    for name in ("bos_token", "eos_token"):
        body = {"prompt": info[name], "add_special_tokens": False}
        assert post(chat_server, "/tokenize", body)["tokens"] == [info[f"{name}_id"]]


def test_refuses_messages_that_the_template_does_not_take(sdk):
    with pytest.raises(openai.BadRequestError, match="no role tool"):
        sdk.chat.completions.create(
            model="chat", messages=[{"role": "tool", "content": "x", "tool_call_id": ""}]
        )


def test_control_tokens_in_a_message_are_text(chat_server):
    tokens = post(
        chat_server, "/tokenize", {"messages": [{"role": "user", "content": "</s><s>"}]}
    )["tokens"]
    assert tokens.count(1) == 1  # the template's BOS
    assert tokens.count(2) == 0


def test_control_tokens_in_a_text_are_tokens_unless_they_are_not_to_be(chat_server):
    def tokens(path="/tokenize", field="tokens", **fields):
        return post(chat_server, path, {"prompt": "</s>", **fields})[field]

    assert tokens() == [1, 2]
    assert tokens(add_special_tokens=False) == [2]
    literal = tokens(parse_special=False)
    assert len(literal) > 3
    assert 2 not in literal
    completions = {"path": "/v1/completions", "field": "usage", "max_tokens": 1}
    assert tokens(**completions)["prompt_tokens"] == 2
    assert tokens(**completions, parse_special=False)["prompt_tokens"] == len(literal)


# --- Sessions ---


def test_a_session_that_must_exist_is_not_begun(sdk, chat, name):
    gone = {"session_id": name, "session_mode": "append", "must_exist": True}
    with pytest.raises(openai.NotFoundError) as error:
        chat(MESSAGES, extra_body=gone)
    assert error.value.code == "no_such_session"
    chat(MESSAGES, extra_body={"session_id": name})
    assert chat(MESSAGES, extra_body=gone).usage.prompt_tokens_details.cached_tokens > 0
    with pytest.raises(openai.BadRequestError) as error:
        chat(MESSAGES, extra_body={**gone, "create_session": True})
    assert error.value.param == "must_exist"


def test_a_conversation_sent_again_is_not_read_again(chat, name):
    session = {"extra_body": {"session_id": name}}
    first = chat(MESSAGES, **session)
    assert first.usage.prompt_tokens_details.cached_tokens == 0
    history = [*MESSAGES, {"role": "assistant", "content": first.choices[0].message.content}]
    more = [*history, {"role": "user", "content": "And now?"}]
    second = chat(more, **session)
    # All but the answer's last token, which was sampled and not fed.
    assert second.usage.prompt_tokens_details.cached_tokens == first.usage.total_tokens - 1
    fresh = chat(more)
    assert second.choices[0].message.content == fresh.choices[0].message.content


def test_only_new_messages_can_be_appended(chat, name):
    first = chat(MESSAGES, extra_body={"session_id": name})
    history = [*MESSAGES, {"role": "assistant", "content": first.choices[0].message.content}]
    new = [{"role": "user", "content": "And now?"}]
    second = chat(new, extra_body={"session_id": name, "session_mode": "append"})
    fresh = chat([*history, *new])
    assert second.choices[0].message.content == fresh.choices[0].message.content
    assert second.usage.prompt_tokens_details.cached_tokens == first.usage.total_tokens - 1
    assert second.usage.prompt_tokens == fresh.usage.prompt_tokens


def test_another_conversation_is_refused_and_changes_nothing(chat, sdk, name):
    first = chat(MESSAGES, extra_body={"session_id": name})
    with pytest.raises(openai.APIStatusError) as error:
        chat([{"role": "user", "content": "Something else"}], extra_body={"session_id": name})
    assert error.value.status_code == 412
    assert error.value.code == "history_mismatch"
    assert error.value.response.headers["x-should-retry"] == "false"
    history = [*MESSAGES, {"role": "assistant", "content": first.choices[0].message.content}]
    again = chat([*history, {"role": "user", "content": "x"}], extra_body={"session_id": name})
    assert again.usage.prompt_tokens_details.cached_tokens == first.usage.total_tokens - 1


def test_a_text_cut_otherwise_than_the_tokenizer_would_is_recognised(sdk, chat_server, name):
    """A session fed byte by byte, then told the same text as a conversation."""
    text = "[USER] Where is the key?\n[ASSISTANT] "
    pieces = post(chat_server, "/tokenize", {"messages": MESSAGES})["tokens"]
    as_bytes = [1, *(5 + byte for byte in (" " + text).encode())]
    assert len(as_bytes) != len(pieces)
    sdk.completions.create(
        model="chat", prompt=as_bytes[:-7], max_tokens=0, extra_body={"session_id": name}
    )
    answer = sdk.chat.completions.create(
        model="chat", messages=MESSAGES, max_tokens=1, extra_body={"session_id": name}
    )
    assert answer.usage.prompt_tokens_details.cached_tokens == len(as_bytes) - 7


def test_the_session_may_come_in_a_header(sdk, name):
    raw = sdk.completions.with_raw_response.create(
        model="chat", prompt="a", max_tokens=3, extra_headers={"x-session-id": name}
    )
    assert raw.headers["x-session-id"] == name
    assert raw.headers["x-session-reuse"] == "new"
    position = raw.parse().usage.total_tokens
    raw = sdk.completions.with_raw_response.create(
        model="chat", prompt="b", max_tokens=3, extra_headers={"x-session-id": name}
    )
    assert raw.headers["x-session-resumed-tokens"] == str(position - 1)


def test_an_unknown_session_is_404_where_it_must_exist(sdk, name):
    with pytest.raises(openai.NotFoundError) as error:
        sdk.completions.create(
            model="chat",
            prompt="a",
            extra_body={"session_id": name, "create_session": False},
        )
    assert error.value.code == "no_such_session"


def test_a_wrong_position_is_409_and_not_retried(chat_server, sdk, name):
    with pytest.raises(openai.ConflictError) as error:
        sdk.completions.create(
            model="chat", prompt="a", extra_body={"session_id": name, "expected_position": 5}
        )
    assert error.value.response.headers["x-should-retry"] == "false"


def test_an_expired_request_is_408(sdk):
    with pytest.raises(openai.APIStatusError) as error:
        sdk.completions.create(
            model="chat",
            prompt="a",
            max_tokens=100000000,
            extra_body={"ignore_eos": True},
            extra_headers={"x-request-timeout-ms": "100"},
        )
    assert error.value.status_code == 408


def test_a_client_that_leaves_ends_its_request(sdk, chat_server):
    stream = sdk.completions.create(
        model="chat", prompt="a", max_tokens=100000000, stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    stream.close()
    client = chat_server.client()
    wait_for(lambda: client.info().statistics.requests_running == 0, "the end of the request")


def test_health_and_version_need_no_body(chat_server):
    for path in ("/health", "/ping", "/version"):
        with urllib.request.urlopen(f"http://127.0.0.1:{chat_server.http_port}{path}") as answer:
            assert answer.status == 200


def test_a_model_without_a_template_refuses_chats(text_server):
    with pytest.raises(urllib.error.HTTPError) as error:
        post(text_server, "/v1/chat/completions", {"messages": MESSAGES})
    assert error.value.code == 412
    assert "chat template" in json.load(error.value)["error"]["message"]


def post(server, path, body):
    request = urllib.request.Request(
        f"http://127.0.0.1:{server.http_port}{path}",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)
