"""Arguments of the clients' methods, and the messages made from them."""

from __future__ import annotations

import math
import uuid
from collections.abc import Mapping, Sequence
from datetime import timedelta
from operator import index
from typing import TYPE_CHECKING, Any, Optional, TypedDict, Union, cast

from mneme.errors import filling, invalid_field
from mneme.retry import RetryPolicy
from mneme.v1 import inference_pb2, sessions_pb2

if TYPE_CHECKING:
    from typing_extensions import NotRequired

__all__ = [
    "ChatMessage",
    "ChatOptions",
    "Duration",
    "GenerateOptions",
    "Messages",
    "Place",
    "Prompt",
    "RequestOptions",
]

Prompt = Union[str, Sequence[int], None]
"""Text, token ids, or None to go on from a session's pending token."""

Place = Union[int, str]
"""In a session's past: a position, or the name of a checkpoint."""

Duration = Union[float, timedelta]
"""Seconds; math.inf means never or no limit."""


class ChatMessage(TypedDict):
    """One message of a conversation. Control tokens in it are plain characters."""

    role: str
    """"user", "assistant", "system": what there is, the model's chat template says."""
    content: str
    name: NotRequired[str]
    reasoning_content: NotRequired[str]


Messages = Union[str, ChatMessage, Sequence[ChatMessage]]
"""The messages of a chat; a text by itself is the user's."""


class RequestOptions(TypedDict, total=False):
    """Keyword arguments that `generate` and `chat` have in common.

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

    # The answer's parts.
    n: Optional[int]
    logprobs: Optional[int]
    prompt_logprobs: Optional[int]
    echo: Optional[bool]
    skip_special_tokens: Optional[bool]
    surprise: Optional[bool]
    """Tell `Usage.surprise`, of a model whose memories are trained while they read."""
    memory_use: Optional[bool]
    """Tell `Usage.memory_use`, of a model that makes engrams."""

    # The session, beside its name.
    must_exist: Optional[bool]
    """A session that is gone raises SessionNotFound, rather than being begun anew without what it
    remembered."""
    create_if_missing: Optional[bool]
    """False: the same as `must_exist`."""
    replace_lost: Optional[bool]
    """A session that was lost (DataLoss, SESSION_LOST) is begun anew; one that may have lost its
    last turns goes on with what is left, as it does where `expected_position` is what is there."""
    memory_seed: Optional[int]
    """What a session that this request begins draws from as it recalls, of a model that draws at
    random (Memoria), 0 to 2**64 - 1; not given: the model's own. A session that exists must have
    this one (FailedPrecondition, MEMORY_SEED_MISMATCH)."""
    remember: Optional[bool]
    """False: the answer is given in a copy of the session, which stays as it is."""
    durability: Optional[str]
    """How a session that this request creates is stored, where the server stores sessions: "turn"
    (an answer ends when what it did to the session is on the disk) or "none". One that exists
    began with that, or the request is refused (FailedPrecondition, DURABILITY_MISMATCH)."""
    ttl: Optional[Duration]
    """Idle time after which the session is deleted, whether this request created it or not."""
    expected_position: Optional[int]

    # Its prompt's beginning, which others may have been fed (--prefix-cache-memory).
    bypass_prefix_cache: Optional[bool]
    """Compute the whole prompt, and keep nothing of it for others."""
    cache_salt: Optional[str]
    """Share with requests of the same salt alone."""
    cache_marks: Optional[Sequence[int]]
    """Tokens of the prompt behind which a state is worth keeping."""

    # The request itself.
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


class GenerateOptions(RequestOptions, total=False):
    """Keyword arguments of `generate`, `stream` and `send`: those of RequestOptions, and these."""

    add_special_tokens: Optional[bool]
    parse_special: Optional[bool]
    """Whether "</s>" and the like in a text are the tokens they spell; not given: they are. False
    for text from people who are not to write control tokens."""


class ChatOptions(RequestOptions, total=False):
    """Keyword arguments of `chat` and `stream_chat`: those of RequestOptions, and these."""

    whole_conversation: Optional[bool]
    """The messages are the conversation from its beginning, answers included, rather than what is
    new: the session must have been fed a beginning of it (HistoryMismatch if not)."""
    on_mismatch: Optional[str]
    """What becomes of a session that was fed something else than that: "refuse" (HistoryMismatch,
    the default), "rewind" (it goes back to where they part, unless their first messages differ) or
    "replace" (it goes back in any case)."""
    template_arguments: Optional[Mapping[str, Any]]
    """Further variables of the chat template, such as {"enable_thinking": False}."""
    add_generation_prompt: Optional[bool]


_DURABILITIES = {"turn": sessions_pb2.DURABILITY_TURN, "none": sessions_pb2.DURABILITY_NONE}
_MISMATCHES = {
    "refuse": inference_pb2.ON_MISMATCH_REFUSE,
    "rewind": inference_pb2.ON_MISMATCH_REWIND,
    "replace": inference_pb2.ON_MISMATCH_REPLACE,
}
_SESSION = (
    "create_if_missing",
    "must_exist",
    "replace_lost",
    "remember",
    "durability",
    "ttl",
    "on_mismatch",
)
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
_RESPONSE = (
    "n",
    "logprobs",
    "prompt_logprobs",
    "echo",
    "skip_special_tokens",
    "surprise",
    "memory_use",
)
_REQUEST = ("expected_position", "idempotency_key", "priority", "detached", "request_id", "model")


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


def generate_request(
    prompt: Prompt, session: Optional[str], options: GenerateOptions
) -> inference_pb2.GenerateRequest:
    """The message for a call of `generate` or `stream`."""
    given = _given(options, GenerateOptions)
    request = inference_pb2.GenerateRequest()
    if isinstance(prompt, str):
        with filling("text", prompt):
            request.text = prompt
    elif isinstance(prompt, (bytes, bytearray)):
        raise TypeError("a prompt is text or token ids, not bytes")
    elif prompt is not None:
        with filling("token_ids.ids", prompt):
            request.token_ids.ids.extend(prompt)
        request.token_ids.SetInParent()
    _fill(request, session, given, ("add_special_tokens", "parse_special"))
    return request


def chat_request(
    messages: Messages, session: Optional[str], options: ChatOptions
) -> inference_pb2.ChatRequest:
    """The message for a call of `chat` or `stream_chat`."""
    given = _given(options, ChatOptions)
    request = inference_pb2.ChatRequest()
    said: Sequence[Any]
    if isinstance(messages, str):
        said = [{"role": "user", "content": messages}]
    elif isinstance(messages, Mapping):
        said = [messages]
    else:
        said = messages
    for number, message in enumerate(said):
        _add_message(request, f"messages[{number}]", message)
    with filling("template_arguments", given.get("template_arguments")):
        if "template_arguments" in given:
            request.template_arguments.update(given["template_arguments"])
    _fill(request, session, given, ("whole_conversation", "add_generation_prompt"))
    return request


def _add_message(request: inference_pb2.ChatRequest, path: str, message: Any) -> None:
    if not isinstance(message, Mapping):
        raise invalid_field(path, f"{message!r}, expected a mapping with role and content")
    added = request.messages.add()
    for name in ("role", "content"):
        if name not in message:
            raise invalid_field(f"{path}.{name}", "is missing")
    for name, value in message.items():
        if name not in ("role", "content", "name", "reasoning_content"):
            raise invalid_field(f"{path}.{name}", "no such field of a message")
        with filling(f"{path}.{name}", value):
            setattr(added, name, value)


def _given(options: Mapping[str, Any], kind: Any) -> dict[str, Any]:
    """The options that say something. `kind`: the TypedDict that they are to be of."""
    unknown = sorted(set(options) - kind.__optional_keys__)
    if unknown:
        raise TypeError("no such option: " + ", ".join(unknown))
    return {name: value for name, value in options.items() if value is not None}


def _fill(
    request: Any, session: Optional[str], given: Mapping[str, Any], names_of_its_own: Sequence[str]
) -> None:
    """Fills the fields that both kinds of requests have, and those that only this one has."""
    if session is not None:
        if not session:
            raise ValueError("a session's name is not empty; leave it out for an ephemeral one")
        with filling("session.name", session):
            request.session.name = session
        with filling("session.ttl_ms", given.get("ttl")):
            request.session.ttl_ms = milliseconds(given.get("ttl"))
        if "durability" in given:
            request.session.durability = _durability(given["durability"])
        if "on_mismatch" in given:
            if given["on_mismatch"] not in _MISMATCHES:
                raise ValueError(
                    f"on_mismatch is {given['on_mismatch']!r}, "
                    'expected "refuse", "rewind" or "replace"'
                )
            request.session.on_mismatch = _MISMATCHES[given["on_mismatch"]]
        for name in ("create_if_missing", "must_exist", "replace_lost", "remember"):
            if name in given:
                with filling(f"session.{name}", given[name]):
                    setattr(request.session, name, given[name])
    else:
        for name in _SESSION:
            if name in given:
                raise TypeError(f"{name} needs the name of a session")
    if "memory_seed" in given:
        with filling("session.memory_seed", given["memory_seed"]):
            request.session.memory_seed = given["memory_seed"]

    for path, message, names in (
        ("sampling.", request.sampling, _SAMPLING),
        ("stopping.", request.stopping, _STOPPING),
        ("response.", request.response, _RESPONSE),
        ("", request, (*_REQUEST, *names_of_its_own)),
    ):
        for name in names:
            if name in given:
                with filling(path + name, given[name]):
                    setattr(message, name, given[name])
    for option, field in (("bypass_prefix_cache", "bypass"), ("cache_salt", "salt")):
        if option in given:
            with filling(f"prefix_cache.{field}", given[option]):
                setattr(request.prefix_cache, field, given[option])
    if "cache_marks" in given:
        with filling("prefix_cache.marks", given["cache_marks"]):
            request.prefix_cache.marks.extend(given["cache_marks"])
    with filling("sampling.logit_bias", given.get("logit_bias")):
        for token, bias in given.get("logit_bias", {}).items():
            request.sampling.logit_bias[token] = bias
    if "stop" in given:
        stop = given["stop"]
        with filling("stopping.stop_strings", stop):
            request.stopping.stop_strings.extend([stop] if isinstance(stop, str) else stop)
    if "stop_token_ids" in given:
        with filling("stopping.stop_token_ids", given["stop_token_ids"]):
            request.stopping.stop_token_ids.extend(given["stop_token_ids"])


def make_repeatable(
    request: Union[inference_pb2.GenerateRequest, inference_pb2.ChatRequest],
) -> None:
    """Lets the server recognise a repetition of this request, if that matters.

    An ephemeral session ends with its call, so doing it again does no harm.
    """
    if request.session.name and not request.idempotency_key:
        request.idempotency_key = uuid.uuid4().hex


Document = Union[str, tuple[str, str], Sequence[int]]
"""What `classify` takes: a text, a pair of texts, or token ids."""


def classify_request(
    documents: Sequence[Document],
    priority: int,
    add_special_tokens: Optional[bool],
    parse_special: Optional[bool],
) -> inference_pb2.ClassifyRequest:
    """The message for a call of `classify`."""
    if isinstance(documents, str):
        raise TypeError("documents is a str, expected a list of documents")
    request = inference_pb2.ClassifyRequest()
    for field, value in (
        ("priority", priority),
        ("add_special_tokens", add_special_tokens),
        ("parse_special", parse_special),
    ):
        if value is not None:
            with filling(field, value):
                setattr(request, field, value)
    for number, document in enumerate(documents):
        added = request.documents.add()
        with filling(f"documents[{number}]", document):
            if isinstance(document, str):
                added.text = document
            elif len(document) == 2 and all(isinstance(part, str) for part in document):
                added.text, added.text_pair = cast("tuple[str, str]", document)
            else:
                added.token_ids.ids.extend(cast("Sequence[int]", document))
    return request


def tokenize_request(
    text: str,
    text_pair: Optional[str],
    add_special_tokens: Optional[bool],
    parse_special: Optional[bool],
    continuation: bool,
    with_pieces: bool,
) -> inference_pb2.TokenizeRequest:
    """The message for a call of `tokenize`."""
    return inference_pb2.TokenizeRequest(
        text=text,
        text_pair=text_pair,
        add_special_tokens=add_special_tokens,
        parse_special=parse_special,
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


def _durability(value: Optional[str]) -> sessions_pb2.Durability:
    if value not in _DURABILITIES:
        raise ValueError(f'durability is {value!r}, expected "turn" or "none"')
    return _DURABILITIES[value]


def create_session_request(
    name: str,
    ttl: Optional[Duration],
    memory_seed: Optional[int] = None,
    durability: Optional[str] = None,
    replace_lost: bool = False,
) -> sessions_pb2.CreateSessionRequest:
    """The message for a call of `sessions.create`."""
    request = sessions_pb2.CreateSessionRequest(name=name, ttl_ms=milliseconds(ttl))
    if durability is not None:
        request.durability = _durability(durability)
    with filling("replace_lost", replace_lost):
        request.replace_lost = replace_lost
    if memory_seed is not None:
        with filling("memory_seed", memory_seed):
            request.memory_seed = memory_seed
    return request


def list_sessions_request(
    prefix: str, page_size: int, page_token: str
) -> sessions_pb2.ListSessionsRequest:
    """The message for a call of `sessions.list_page`."""
    return sessions_pb2.ListSessionsRequest(
        name_prefix=prefix, page_size=page_size, page_token=page_token
    )


def fork_session_request(
    source: str, target: str, ttl: Optional[Duration], at: Optional[Place]
) -> sessions_pb2.ForkSessionRequest:
    """The message for a call of `sessions.fork`."""
    request = sessions_pb2.ForkSessionRequest(
        source_name=source, target_name=target, ttl_ms=milliseconds(ttl)
    )
    if isinstance(at, str):
        request.checkpoint = at
    elif at is not None:
        request.position = _position(at)
    return request


def rewind_session_request(name: str, to: Place) -> sessions_pb2.RewindSessionRequest:
    """The message for a call of `sessions.rewind`."""
    if isinstance(to, str):
        return sessions_pb2.RewindSessionRequest(name=name, checkpoint=to)
    return sessions_pb2.RewindSessionRequest(name=name, position=_position(to))


def _position(place: Any) -> int:
    """The tokens of a place in a session's past that is no checkpoint's name."""
    # True is 1 to Python, and is nobody's position.
    if isinstance(place, bool) or not hasattr(place, "__index__"):
        raise invalid_field(
            "position", f"{place!r}, expected a whole number of tokens or a checkpoint's name"
        )
    position = index(place)
    if not 0 <= position < 2**63:
        raise invalid_field("position", f"{place!r}, expected 0, where sessions begin, or more")
    return position
