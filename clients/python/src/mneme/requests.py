"""Arguments of the clients' methods, and the messages made from them."""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Optional, TypedDict, Union

from mneme.errors import invalid_field
from mneme.retry import RetryPolicy
from mneme.v1 import inference_pb2, sessions_pb2

__all__ = ["Duration", "GenerateOptions", "Prompt"]

Prompt = Union[str, Sequence[int], None]
"""Text, token ids, or None to go on from a session's pending token."""

Duration = Union[float, timedelta]
"""Seconds; math.inf means never or no limit."""


class GenerateOptions(TypedDict, total=False):
    """Keyword arguments of `generate`, `stream` and `send`.

    What is not given, or None, is left to the server's defaults. Ranges are in
    proto/mneme/v1/inference.proto; a value of the wrong type or outside its range raises
    InvalidArgument, which names the field.
    """

    # How the next token is drawn.
    temperature: Optional[float]
    """0: greedy."""
    top_k: Optional[int]
    top_p: Optional[float]
    min_p: Optional[float]
    repetition_penalty: Optional[float]
    presence_penalty: Optional[float]
    frequency_penalty: Optional[float]
    logit_bias: Optional[Mapping[int, float]]
    seed: Optional[int]

    # When the answer ends.
    max_tokens: Optional[int]
    min_tokens: Optional[int]
    ignore_eos: Optional[bool]
    stop: Union[str, Sequence[str], None]
    stop_token_ids: Optional[Sequence[int]]
    include_stop_in_output: Optional[bool]

    # What is sent back.
    n: Optional[int]
    logprobs: Optional[int]
    prompt_logprobs: Optional[int]
    echo: Optional[bool]
    skip_special_tokens: Optional[bool]

    # The session, beside its name.
    create_if_missing: Optional[bool]
    ttl: Optional[Duration]
    """Idle time after which the session is deleted, whether this request created it or not."""
    expected_position: Optional[int]

    # The request itself.
    add_special_tokens: Optional[bool]
    idempotency_key: Optional[str]
    """None: one is made where retries need it."""
    priority: Optional[int]
    detached: Optional[bool]
    request_id: Optional[str]
    model: Optional[str]
    timeout: Optional[float]
    """Seconds for the whole call, retries included."""
    retry: Optional[RetryPolicy]
    """Not given: as the client was told. None: do not retry."""


_SAMPLING = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
)
_STOPPING = ("max_tokens", "min_tokens", "ignore_eos", "include_stop_in_output")
_RESPONSE = ("n", "logprobs", "prompt_logprobs", "echo", "skip_special_tokens")
_REQUEST = (
    "expected_position",
    "add_special_tokens",
    "idempotency_key",
    "priority",
    "detached",
    "request_id",
    "model",
)


def milliseconds(duration: Optional[Duration]) -> int:
    """A time to live as the server wants it: -1 for never, 0 for its default."""
    if duration is None:
        return 0
    seconds = duration.total_seconds() if isinstance(duration, timedelta) else float(duration)
    if math.isinf(seconds) and seconds > 0:
        return -1
    if not seconds > 0:
        raise ValueError(f"a time to live is positive, or math.inf for never; got {duration!r}")
    return max(1, round(seconds * 1000))


@contextmanager
def _filling(field: str, value: Any) -> Iterator[None]:
    """Names the field of a request that cannot hold `value`."""
    try:
        yield
    except (AttributeError, TypeError, ValueError) as error:
        raise invalid_field(field, f"{value!r}: {error}") from error


def generate_request(
    prompt: Prompt, session: Optional[str], options: GenerateOptions
) -> inference_pb2.GenerateRequest:
    """The message for a call of `generate` or `stream`."""
    unknown = sorted(set(options) - GenerateOptions.__annotations__.keys())
    if unknown:
        raise TypeError("no such option: " + ", ".join(unknown))
    given: dict[str, Any] = {k: v for k, v in options.items() if v is not None}

    request = inference_pb2.GenerateRequest()
    if isinstance(prompt, str):
        with _filling("text", prompt):
            request.text = prompt
    elif isinstance(prompt, (bytes, bytearray)):
        raise TypeError("a prompt is text or token ids, not bytes")
    elif prompt is not None:
        with _filling("token_ids.ids", prompt):
            request.token_ids.ids.extend(prompt)
        request.token_ids.SetInParent()

    if session is not None:
        if not session:
            raise ValueError("a session's name is not empty; leave it out for an ephemeral one")
        with _filling("session.name", session):
            request.session.name = session
        with _filling("session.ttl_ms", given.get("ttl")):
            request.session.ttl_ms = milliseconds(given.get("ttl"))
        if "create_if_missing" in given:
            with _filling("session.create_if_missing", given["create_if_missing"]):
                request.session.create_if_missing = given["create_if_missing"]
    else:
        for name in ("create_if_missing", "ttl"):
            if name in given:
                raise TypeError(f"{name} needs the name of a session")

    for path, message, names in (
        ("sampling.", request.sampling, _SAMPLING),
        ("stopping.", request.stopping, _STOPPING),
        ("response.", request.response, _RESPONSE),
        ("", request, _REQUEST),
    ):
        for name in names:
            if name in given:
                with _filling(path + name, given[name]):
                    setattr(message, name, given[name])
    with _filling("sampling.logit_bias", given.get("logit_bias")):
        for token, bias in given.get("logit_bias", {}).items():
            request.sampling.logit_bias[token] = bias
    if "stop" in given:
        stop = given["stop"]
        with _filling("stopping.stop_strings", stop):
            request.stopping.stop_strings.extend([stop] if isinstance(stop, str) else stop)
    if "stop_token_ids" in given:
        with _filling("stopping.stop_token_ids", given["stop_token_ids"]):
            request.stopping.stop_token_ids.extend(given["stop_token_ids"])
    return request


def make_repeatable(request: inference_pb2.GenerateRequest) -> None:
    """Lets the server recognise a repetition of this request, if that matters.

    An ephemeral session ends with its call, so doing it again does no harm.
    """
    if request.session.name and not request.idempotency_key:
        request.idempotency_key = uuid.uuid4().hex


def tokenize_request(
    text: str, add_special_tokens: Optional[bool], continuation: bool, with_pieces: bool
) -> inference_pb2.TokenizeRequest:
    """The message for a call of `tokenize`."""
    return inference_pb2.TokenizeRequest(
        text=text,
        add_special_tokens=add_special_tokens,
        continuation=continuation,
        with_pieces=with_pieces,
    )


def detokenize_request(
    token_ids: Sequence[int], skip_special_tokens: Optional[bool], continuation: bool
) -> inference_pb2.DetokenizeRequest:
    """The message for a call of `detokenize`."""
    return inference_pb2.DetokenizeRequest(
        token_ids=token_ids, skip_special_tokens=skip_special_tokens, continuation=continuation
    )


def create_session_request(name: str, ttl: Optional[Duration]) -> sessions_pb2.CreateSessionRequest:
    """The message for a call of `sessions.create`."""
    return sessions_pb2.CreateSessionRequest(name=name, ttl_ms=milliseconds(ttl))


def list_sessions_request(
    prefix: str, page_size: int, page_token: str
) -> sessions_pb2.ListSessionsRequest:
    """The message for a call of `sessions.list_page`."""
    return sessions_pb2.ListSessionsRequest(
        name_prefix=prefix, page_size=page_size, page_token=page_token
    )


def fork_session_request(
    source: str, target: str, ttl: Optional[Duration]
) -> sessions_pb2.ForkSessionRequest:
    """The message for a call of `sessions.fork`."""
    return sessions_pb2.ForkSessionRequest(
        source_name=source, target_name=target, ttl_ms=milliseconds(ttl)
    )
