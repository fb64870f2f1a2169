"""What the clients return: plain, immutable data.

Units are part of a name (`_ms`, `_bytes`, `_tokens`); durations without one are seconds, as
everywhere in Python.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Optional, Union

from mneme.v1 import inference_pb2, sessions_pb2

if TYPE_CHECKING:
    from google.protobuf.timestamp_pb2 import Timestamp

__all__ = [
    "Capacity",
    "Choice",
    "Chunk",
    "Completion",
    "Event",
    "FinishReason",
    "Finished",
    "Histogram",
    "Info",
    "Limits",
    "ModelDescription",
    "ServerInfo",
    "ServerState",
    "ServingStatus",
    "SessionInfo",
    "SessionPage",
    "SessionState",
    "Started",
    "Statistics",
    "Timings",
    "TokenLogprob",
    "Tokens",
    "TopLogprob",
    "Usage",
]


class FinishReason(enum.Enum):
    """Why a choice ended."""

    STOP = 1
    """The model's end token, a stop token or a stop string."""
    LENGTH = 2
    """max_tokens were generated."""
    CANCELLED = 3
    DEADLINE = 4
    ERROR = 5


class ServerState(enum.Enum):
    """What the server is doing."""

    UNKNOWN = 0
    LOADING = 1
    SERVING = 2
    DRAINING = 3
    FAILED = 4


class ServingStatus(enum.Enum):
    """Answer of the health check."""

    UNKNOWN = 0
    SERVING = 1
    NOT_SERVING = 2


@dataclass(frozen=True)
class TopLogprob:
    """One of the most likely tokens at a place."""

    token_id: int
    logprob: float
    text: str


@dataclass(frozen=True)
class TokenLogprob:
    """A token and how likely the model found it, before the sampling options act."""

    token_id: int
    logprob: Optional[float]
    """Natural logarithm; None for the first token of a session, which nothing predicts."""
    text: str
    top: tuple[TopLogprob, ...]


@dataclass(frozen=True)
class Usage:
    """Token counts of a request."""

    prompt_tokens: int
    completion_tokens: int
    resumed_tokens: int
    """Already in the session's memory, so not computed again."""
    fed_tokens: int
    """Went through the model for this request."""


@dataclass(frozen=True)
class Timings:
    """Where a request's time went, in milliseconds."""

    queue_ms: float
    prefill_ms: float
    decode_ms: float


@dataclass(frozen=True)
class SessionState:
    """Where a session stands after a request."""

    name: str
    position: int
    """Tokens of the conversation; what `expected_position` has to be next time."""
    has_pending_token: bool


@dataclass(frozen=True)
class Started:
    """First event of a stream: the request has its memory and runs."""

    request_id: str
    seed: int
    resumed_tokens: int
    """Tokens that were already in the session's memory."""
    prompt_tokens: int
    text: str = ""


@dataclass(frozen=True)
class Chunk:
    """A piece of the answer, or of the prompt if it was asked for."""

    choice: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    is_prompt: bool
    finish_reason: Optional[FinishReason]
    """Set on the last chunk of a choice."""
    stop_matched: str
    """With FinishReason.STOP: the stop string, or the token id in decimal."""


@dataclass(frozen=True)
class Finished:
    """Last event of a stream."""

    usage: Usage
    timings: Timings
    session: Optional[SessionState]
    """None for an ephemeral session."""
    seed: int
    replayed: bool
    """The answer of an earlier request with the same idempotency key."""
    text: str = ""


Event = Union[Started, Chunk, Finished]


@dataclass(frozen=True)
class Choice:
    """One whole answer."""

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    finish_reason: Optional[FinishReason]
    stop_matched: str


@dataclass(frozen=True)
class Completion:
    """Everything that a request brought."""

    choices: tuple[Choice, ...]
    prompt: Optional[Choice]
    """The prompt's text, tokens and log-probabilities, if they were asked for."""
    usage: Usage
    timings: Timings
    session: Optional[SessionState]
    seed: int
    replayed: bool
    request_id: str

    @property
    def text(self) -> str:
        """Text of the first choice."""
        return self.choices[0].text

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Tokens of the first choice."""
        return self.choices[0].token_ids

    @property
    def logprobs(self) -> tuple[TokenLogprob, ...]:
        """Log-probabilities of the first choice's tokens, if they were asked for."""
        return self.choices[0].logprobs

    @property
    def finish_reason(self) -> Optional[FinishReason]:
        """Why the first choice ended."""
        return self.choices[0].finish_reason

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Tokens:
    """Answer of `tokenize`."""

    ids: tuple[int, ...]
    pieces: tuple[str, ...]
    """What each token stands for, if asked for."""


@dataclass(frozen=True)
class SessionInfo:
    """A named session, as the server sees it."""

    name: str
    position: int
    """Tokens of the conversation, the pending one included."""
    has_pending_token: bool
    """Whether the last token was sampled but not yet fed."""
    busy: bool
    create_time: datetime
    last_use_time: datetime
    ttl: float
    """Idle seconds after which it is deleted; math.inf: never."""
    state_bytes: int


@dataclass(frozen=True)
class SessionPage:
    """One page of a list of sessions."""

    sessions: tuple[SessionInfo, ...]
    next_page_token: str
    """Empty: these were the last ones."""
    total_count: int


@dataclass(frozen=True)
class ServerInfo:
    """The process that answers."""

    version: str
    state: ServerState
    start_time: datetime
    loaded_bytes: int
    total_bytes: int
    device: str


@dataclass(frozen=True)
class ModelDescription:
    """The model that is served."""

    name: str
    architecture: str
    vocab_size: int
    model_dim: int
    layers: int
    parameters: int
    weight_bytes: int
    weight_dtype: str
    fingerprint: str
    tokenizer: str
    """"sentencepiece" or "bytes"; empty: token ids only."""
    bos_token_id: Optional[int]
    eos_token_id: Optional[int]
    adds_bos: bool
    sampling_defaults: Mapping[str, float]
    """Sampling options that the model suggests; they act where a request does not give its own."""


@dataclass(frozen=True)
class Capacity:
    """How many sessions fit: exact, because all are of one size."""

    slab_bytes: int
    """State of one session."""
    state_memory_bytes: int
    max_sessions: int


@dataclass(frozen=True)
class Limits:
    """Configured bounds of the server; 0 means none."""

    max_rows_per_step: int
    max_tokens_per_step: int
    max_queued_requests: int
    max_request_tokens: int
    default_max_tokens: int
    default_session_ttl: float
    """Seconds; math.inf: sessions do not expire."""
    penalty_history_tokens: int
    max_message_bytes: int


@dataclass(frozen=True)
class Histogram:
    """Distribution of a quantity since the server's start."""

    count: int
    sum: float
    upper_bounds: tuple[float, ...]
    counts: tuple[int, ...]
    """One longer than `upper_bounds`: the last one counts what is above them all."""

    @property
    def mean(self) -> float:
        """Mean value; 0 if there is none."""
        return self.sum / self.count if self.count else 0.0


@dataclass(frozen=True)
class Statistics:
    """What the engine is doing ("now") and has done since its start."""

    requests_running: int
    requests_waiting: int
    slabs_used: int
    slabs_total: int
    sessions: int
    steps: int
    prompt_tokens: int
    generated_tokens: int
    requests_finished: int
    requests_cancelled: int
    requests_expired: int
    requests_failed: int
    requests_rejected: int
    decode_rows: Histogram
    step_ms: Histogram
    queue_ms: Histogram
    first_token_ms: Histogram
    inter_token_ms: Histogram


@dataclass(frozen=True)
class Info:
    """What is served, and how much fits. Only `server` is set while the model loads."""

    server: ServerInfo
    model: Optional[ModelDescription]
    capacity: Optional[Capacity]
    limits: Optional[Limits]
    statistics: Optional[Statistics]


# Messages to data. Kept here so that a field and its conversion are read together.


def _seconds(milliseconds: int) -> float:
    return math.inf if milliseconds < 0 else milliseconds / 1000.0


def _time(timestamp: Timestamp) -> datetime:
    return timestamp.ToDatetime(tzinfo=timezone.utc)


def _logprobs(messages: Iterable[inference_pb2.TokenLogprob]) -> tuple[TokenLogprob, ...]:
    return tuple(
        TokenLogprob(
            m.token_id,
            m.logprob if m.HasField("logprob") else None,
            m.text,
            tuple(TopLogprob(t.token_id, t.logprob, t.text) for t in m.top),
        )
        for m in messages
    )


def _chunk(m: inference_pb2.Output) -> Chunk:
    return Chunk(
        choice=m.choice,
        text=m.text,
        token_ids=tuple(m.token_ids),
        logprobs=_logprobs(m.logprobs),
        is_prompt=m.is_prompt,
        finish_reason=FinishReason(m.finish_reason) if m.finish_reason else None,
        stop_matched=m.stop_matched,
    )


def _started(m: inference_pb2.Started) -> Started:
    return Started(m.request_id, m.seed, m.resumed_tokens, m.prompt_tokens)


def _finished(m: inference_pb2.Finished) -> Finished:
    usage, timings, state = m.usage, m.timings, m.session
    return Finished(
        usage=Usage(
            usage.prompt_tokens, usage.completion_tokens, usage.resumed_tokens, usage.fed_tokens
        ),
        timings=Timings(timings.queue_ms, timings.prefill_ms, timings.decode_ms),
        session=(
            SessionState(state.name, state.position, state.has_pending_token)
            if m.HasField("session")
            else None
        ),
        seed=m.seed,
        replayed=m.replayed,
    )


def events_of(m: inference_pb2.GenerateResponse) -> list[Event]:
    """The events that one message of a stream carries, in order."""
    events: list[Event] = []
    if m.HasField("started"):
        events.append(_started(m.started))
    events += [_chunk(output) for output in m.outputs]
    if m.HasField("finished"):
        events.append(_finished(m.finished))
    return events


def session_info_of(m: sessions_pb2.Session) -> SessionInfo:
    """A session from its message."""
    return SessionInfo(
        name=m.name,
        position=m.position,
        has_pending_token=m.has_pending_token,
        busy=m.busy,
        create_time=_time(m.create_time),
        last_use_time=_time(m.last_use_time),
        ttl=_seconds(m.ttl_ms),
        state_bytes=m.state_bytes,
    )


def session_page_of(m: sessions_pb2.ListSessionsResponse) -> SessionPage:
    """A page from its message."""
    return SessionPage(
        tuple(session_info_of(s) for s in m.sessions), m.next_page_token, m.total_count
    )


def _histogram(m: inference_pb2.Histogram) -> Histogram:
    return Histogram(m.count, m.sum, tuple(m.upper_bounds), tuple(m.counts))


def _statistics(m: inference_pb2.Statistics) -> Statistics:
    return Statistics(
        requests_running=m.requests_running,
        requests_waiting=m.requests_waiting,
        slabs_used=m.slabs_used,
        slabs_total=m.slabs_total,
        sessions=m.sessions,
        steps=m.steps,
        prompt_tokens=m.prompt_tokens,
        generated_tokens=m.generated_tokens,
        requests_finished=m.requests_finished,
        requests_cancelled=m.requests_cancelled,
        requests_expired=m.requests_expired,
        requests_failed=m.requests_failed,
        requests_rejected=m.requests_rejected,
        decode_rows=_histogram(m.decode_rows),
        step_ms=_histogram(m.step_ms),
        queue_ms=_histogram(m.queue_ms),
        first_token_ms=_histogram(m.first_token_ms),
        inter_token_ms=_histogram(m.inter_token_ms),
    )


def _model(m: inference_pb2.ModelDescription) -> ModelDescription:
    return ModelDescription(
        name=m.name,
        architecture=m.architecture,
        vocab_size=m.vocab_size,
        model_dim=m.model_dim,
        layers=m.layers,
        parameters=m.parameters,
        weight_bytes=m.weight_bytes,
        weight_dtype=m.weight_dtype,
        fingerprint=m.fingerprint,
        tokenizer=m.tokenizer,
        bos_token_id=m.bos_token_id if m.HasField("bos_token_id") else None,
        eos_token_id=m.eos_token_id if m.HasField("eos_token_id") else None,
        adds_bos=m.adds_bos,
        sampling_defaults={
            field.name: value
            for field, value in m.sampling_defaults.ListFields()
            if isinstance(value, (int, float))
        },
    )


def _limits(m: inference_pb2.Limits) -> Limits:
    return Limits(
        max_rows_per_step=m.max_rows_per_step,
        max_tokens_per_step=m.max_tokens_per_step,
        max_queued_requests=m.max_queued_requests,
        max_request_tokens=m.max_request_tokens,
        default_max_tokens=m.default_max_tokens,
        default_session_ttl=_seconds(m.default_session_ttl_ms),
        penalty_history_tokens=m.penalty_history_tokens,
        max_message_bytes=m.max_message_bytes,
    )


def info_of(m: inference_pb2.GetInfoResponse) -> Info:
    """The server's description from its message."""
    server, capacity = m.server, m.capacity
    return Info(
        server=ServerInfo(
            version=server.version,
            state=ServerState(server.state),
            start_time=_time(server.start_time),
            loaded_bytes=server.loaded_bytes,
            total_bytes=server.total_bytes,
            device=server.device,
        ),
        model=_model(m.model) if m.HasField("model") else None,
        capacity=(
            Capacity(capacity.slab_bytes, capacity.state_memory_bytes, capacity.max_sessions)
            if m.HasField("capacity")
            else None
        ),
        limits=_limits(m.limits) if m.HasField("limits") else None,
        statistics=_statistics(m.statistics) if m.HasField("statistics") else None,
    )
