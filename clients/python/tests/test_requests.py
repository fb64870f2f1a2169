"""Arguments to messages."""

import math
from datetime import timedelta

import pytest

import mneme
from mneme.requests import (
    chat_request,
    create_session_request,
    fork_session_request,
    generate_request,
    make_repeatable,
    milliseconds,
    rewind_session_request,
)
from mneme.v1 import sessions_pb2


def test_text_and_token_prompts_and_none():
    assert generate_request("héllo", None, {}).text == "héllo"
    assert list(generate_request([3, 1, 2], None, {}).token_ids.ids) == [3, 1, 2]
    assert generate_request([], None, {}).WhichOneof("prompt") == "token_ids"
    assert generate_request(None, None, {}).WhichOneof("prompt") is None


def test_bytes_are_no_prompt():
    with pytest.raises(TypeError, match="not bytes"):
        generate_request(b"abc", None, {})


def test_every_option_reaches_its_field():
    request = generate_request(
        "x",
        "s",
        {
            "temperature": 0.5,
            "top_k": 3,
            "top_p": 0.25,
            "min_p": 0.125,
            "repetition_penalty": 1.5,
            "presence_penalty": -1.0,
            "frequency_penalty": 1.0,
            "logit_bias": {5: -100.0},
            "seed": 2**64 - 1,
            "max_tokens": 0,
            "min_tokens": 0,
            "ignore_eos": True,
            "stop": ["a", "b"],
            "stop_token_ids": [7],
            "include_stop_in_output": True,
            "n": 2,
            "logprobs": 0,
            "prompt_logprobs": 4,
            "echo": True,
            "skip_special_tokens": False,
            "surprise": True,
            "memory_use": True,
            "create_if_missing": False,
            "memory_seed": 2**64 - 1,
            "ttl": 2.5,
            "expected_position": 0,
            "add_special_tokens": False,
            "parse_special": False,
            "idempotency_key": "k",
            "priority": -3,
            "detached": True,
            "request_id": "id",
            "model": "m",
            "timeout": 1.0,
        },
    )
    assert request.sampling.temperature == 0.5
    assert (request.sampling.top_k, request.sampling.top_p, request.sampling.min_p) == (
        3,
        0.25,
        0.125,
    )
    assert request.sampling.repetition_penalty == 1.5
    assert request.sampling.presence_penalty == -1.0
    assert request.sampling.frequency_penalty == 1.0
    assert dict(request.sampling.logit_bias) == {5: -100.0}
    assert request.sampling.seed == 2**64 - 1
    assert request.stopping.HasField("max_tokens")
    assert request.stopping.max_tokens == 0
    assert request.stopping.ignore_eos
    assert list(request.stopping.stop_strings) == ["a", "b"]
    assert list(request.stopping.stop_token_ids) == [7]
    assert request.stopping.include_stop_in_output
    assert request.response.n == 2
    assert request.response.HasField("logprobs")
    assert request.response.prompt_logprobs == 4
    assert request.response.echo
    assert request.response.HasField("skip_special_tokens")
    assert request.response.surprise
    assert request.response.memory_use
    assert not request.session.create_if_missing
    assert request.session.memory_seed == 2**64 - 1
    assert request.session.ttl_ms == 2500
    assert request.HasField("expected_position")
    assert request.HasField("add_special_tokens")
    assert request.HasField("parse_special")
    assert not request.session.must_exist
    assert request.idempotency_key == "k"
    assert (request.priority, request.detached) == (-3, True)
    assert (request.request_id, request.model) == ("id", "m")


def test_what_is_not_given_or_none_is_not_sent():
    assert generate_request("x", None, {"temperature": None, "stop": None}).ByteSize() == 3


def test_a_session_without_a_name_may_bring_a_seed():
    assert generate_request("x", None, {"memory_seed": 0}).session.HasField("memory_seed")


def test_one_stop_string_needs_no_list():
    assert list(generate_request("x", None, {"stop": "end"}).stopping.stop_strings) == ["end"]


def test_an_unknown_option_is_named():
    with pytest.raises(TypeError, match="temprature"):
        generate_request("x", None, {"temprature": 1.0})  # type: ignore[typeddict-unknown-key]


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"seed": -1}, "sampling.seed"),
        ({"seed": 2**64}, "sampling.seed"),
        ({"temperature": "hot"}, "sampling.temperature"),
        ({"top_k": 2**31}, "sampling.top_k"),
        ({"logit_bias": [5]}, "sampling.logit_bias"),
        ({"logit_bias": {"a": 1.0}}, "sampling.logit_bias"),
        ({"stop": [5]}, "stopping.stop_strings"),
        ({"stop": 5}, "stopping.stop_strings"),
        ({"stop_token_ids": ["a"]}, "stopping.stop_token_ids"),
        ({"max_tokens": "many"}, "stopping.max_tokens"),
        ({"n": 2**40}, "response.n"),
        ({"echo": "yes"}, "response.echo"),
        ({"ttl": -1.0}, "session.ttl_ms"),
        ({"create_if_missing": "no"}, "session.create_if_missing"),
        ({"must_exist": "yes"}, "session.must_exist"),
        ({"memory_seed": -1}, "session.memory_seed"),
        ({"priority": 0.5}, "priority"),
        ({"request_id": 5}, "request_id"),
        ({"timeout": "soon"}, "timeout"),
        ({"timeout": -1}, "timeout"),
        ({"timeout": math.nan}, "timeout"),
        ({"retry": 3}, "retry"),
    ],
)
def test_a_value_that_no_field_holds_is_an_invalid_argument(options, field):
    with mneme.Client("127.0.0.1:1") as client, pytest.raises(mneme.InvalidArgument) as caught:
        client.generate("x", session="s", **options)
    assert [v.field for v in caught.value.field_violations] == [field]
    assert field in str(caught.value)
    assert not caught.value.refused_by_server


def test_a_prompt_that_no_field_holds_is_an_invalid_argument():
    for prompt, field in (([2**40], "token_ids.ids"), ("\ud800", "text")):
        with pytest.raises(mneme.InvalidArgument) as caught:
            generate_request(prompt, None, {})
        assert caught.value.field_violations[0].field == field


def test_a_text_or_a_message_or_a_list_of_them_is_a_chat():
    for messages in (
        "hé",
        {"role": "user", "content": "hé"},
        [{"role": "user", "content": "hé"}],
    ):
        request = chat_request(messages, None, {})
        assert [(m.role, m.content) for m in request.messages] == [("user", "hé")]
        assert not request.HasField("add_generation_prompt")
    named = chat_request([{"role": "user", "content": "a", "name": "Ben"}], None, {}).messages[0]
    assert (named.name, named.HasField("reasoning_content")) == ("Ben", False)


def test_every_option_of_a_chat_reaches_its_field():
    request = chat_request(
        "a",
        "s",
        {
            "whole_conversation": True,
            "template_arguments": {"enable_thinking": False, "depth": 2},
            "add_generation_prompt": False,
            "must_exist": True,
            "max_tokens": 3,
            "temperature": 0,
            "expected_position": 4,
        },
    )
    assert request.whole_conversation
    assert dict(request.template_arguments) == {"enable_thinking": False, "depth": 2}
    assert not request.add_generation_prompt
    assert request.HasField("add_generation_prompt")
    assert (request.session.name, request.session.must_exist) == ("s", True)
    assert (request.stopping.max_tokens, request.expected_position) == (3, 4)
    assert request.sampling.HasField("temperature")


@pytest.mark.parametrize(
    ("messages", "field"),
    [
        (["a"], "messages[0]"),
        ([{"role": "user", "content": "a"}, {"role": "user"}], "messages[1].content"),
        ({"content": "a"}, "messages[0].role"),
        ({"role": "user", "content": ["a"]}, "messages[0].content"),
        ({"role": "user", "content": "a", "tool_calls": []}, "messages[0].tool_calls"),
    ],
)
def test_a_message_that_is_none_is_refused_by_its_place(messages, field):
    with pytest.raises(mneme.InvalidArgument) as caught:
        chat_request(messages, None, {})
    assert caught.value.field_violations[0].field == field


def test_options_of_prompts_are_none_of_chats():
    with pytest.raises(TypeError, match="parse_special"):
        chat_request("a", None, {"parse_special": True})  # type: ignore[typeddict-unknown-key]
    with pytest.raises(TypeError, match="whole_conversation"):
        generate_request("a", None, {"whole_conversation": True})  # type: ignore[typeddict-unknown-key]


def test_session_options_need_a_session():
    with pytest.raises(TypeError, match="ttl"):
        generate_request("x", None, {"ttl": 5.0})
    with pytest.raises(TypeError, match="must_exist"):
        chat_request("x", None, {"must_exist": True})
    with pytest.raises(ValueError, match="empty"):
        generate_request("x", "", {})


def test_durations():
    assert milliseconds(None) == 0
    assert milliseconds(math.inf) == -1
    assert milliseconds(timedelta(minutes=1)) == 60_000
    assert milliseconds(0.0001) == 1  # not 0, which would mean the server's default
    for wrong in (0, -1.0, math.nan):
        with pytest.raises(ValueError, match="positive"):
            milliseconds(wrong)


def test_only_requests_to_named_sessions_need_a_key():
    ephemeral = generate_request("x", None, {})
    make_repeatable(ephemeral)
    assert ephemeral.idempotency_key == ""
    named = generate_request("x", "s", {})
    make_repeatable(named)
    other = generate_request("x", "s", {})
    make_repeatable(other)
    assert named.idempotency_key
    assert named.idempotency_key != other.idempotency_key
    chosen = generate_request("x", "s", {"idempotency_key": "mine"})
    make_repeatable(chosen)
    assert chosen.idempotency_key == "mine"


def test_a_session_is_created_as_durable_as_it_is_asked_for():
    request = create_session_request("s", None, None, "none", True)
    assert request.durability == sessions_pb2.DURABILITY_NONE
    assert request.replace_lost
    request = create_session_request("s", None)
    assert request.durability == sessions_pb2.DURABILITY_UNSPECIFIED
    assert not request.replace_lost
    with pytest.raises(ValueError, match='expected "turn" or "none"'):
        create_session_request("s", None, None, "always")


@pytest.mark.parametrize("place", [True, 2.5, None, b"a", -1, 2**63])
def test_what_is_no_place_in_the_past_names_the_field(place):
    with pytest.raises(mneme.InvalidArgument, match="position") as refused:
        rewind_session_request("s", place)
    assert refused.value.field_violations[0].field == "position"
    if place is not None:  # of a fork: where its source is
        with pytest.raises(mneme.InvalidArgument, match="position"):
            fork_session_request("s", "t", None, place)


def test_places_in_the_past_are_positions_or_checkpoints():
    assert rewind_session_request("s", 0).position == 0
    assert rewind_session_request("s", 7).position == 7
    assert rewind_session_request("s", "7").checkpoint == "7"
    assert fork_session_request("s", "t", None, 7).position == 7
