"""The types that the clients return: plain, immutable data.

Units are part of a name (`_ms`, `_bytes`, `_tokens`); durations without one are seconds, as
everywhere in Python.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Optional, Union

from mneme.memory import MemoryUse

__all__ = [
    "Capacity",
    "Checkpoint",
    "Choice",
    "Chunk",
    "Classification",
    "Completion",
    "Event",
    "FinishReason",
    "Finished",
    "Histogram",
    "ImportedSession",
    "Info",
    "Limits",
    "ModelDescription",
    "ServerInfo",
    "ServerState",
    "ServingStatus",
    "SessionInfo",
    "SessionPage",
    "SessionState",
    "SessionUsage",
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
    """The state of the server."""

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
    """Natural logarithm; None where nothing predicted the token: the first one of a session, and
    the first one after a request that only fed its prompt."""
    text: str
    top: tuple[TopLogprob, ...]


@dataclass(frozen=True)
class Usage:
    """Token counts of a request."""

    prompt_tokens: int
    """New ones: what the request brought, and the last token of the answer before, which was not
    fed until now."""
    completion_tokens: int
    resumed_tokens: int
    """Already in the session's memory, so not computed again."""
    fed_tokens: int
    """Went through the model for this request."""
    surprise: Optional[float] = None
    """How surprising the memory found these: the mean loss that it is trained by, over tokens,
    layers and heads. None unless asked for."""
    memory_evicted: bool = False
    """The session had more to remember than it has room for, at some time since its birth."""
    memory_use: Optional[MemoryUse] = None
    """What the answer drew on. None unless asked for."""
    cached_tokens: int = 0
    """Of the prompt, not counted in `prompt_tokens`: its beginning, which the server had kept of
    another prompt."""
    replayed_tokens: int = 0
    """Of the resumed ones: fed again from the session's log, as it came from the server's store."""
    rewound_from: int = 0
    """The position of the session before it went back for this request (`on_mismatch`); 0: it did
    not."""


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
    cached_tokens: int = 0
    """As in Usage."""


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
    context_full: bool = False
    """With FinishReason.LENGTH: the session holds as many tokens as it can (--max-context)."""


@dataclass(frozen=True)
class Finished:
    """Last event of a stream."""

    usage: Usage
    timings: Timings
    session: Optional[SessionState]
    """None for an ephemeral session, and for one that is gone."""
    seed: int
    replayed: bool
    """The answer of an earlier request with the same idempotency key."""
    session_gone: bool = False
    """With `replayed`: the session of that answer, and what it remembered, is gone by now."""
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
    context_full: bool = False
    """With FinishReason.LENGTH: the session holds as many tokens as it can (--max-context)."""


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
    session_gone: bool = False
    """With `replayed`: the session of that answer, and what it remembered, is gone by now."""

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

    @property
    def context_full(self) -> bool:
        """Whether the first choice ended because its session is full (--max-context)."""
        return self.choices[0].context_full

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Tokens:
    """Answer of `tokenize`."""

    ids: tuple[int, ...]
    pieces: tuple[str, ...]
    """The text that each token stands for, if asked for."""
    type_ids: tuple[int, ...] = ()
    """With a text pair: the segment of each token, as BERT counts them."""


@dataclass(frozen=True)
class Classification:
    """What a model that classifies makes of a document."""

    label: str
    """The name of the most probable class."""
    label_id: int
    probabilities: tuple[float, ...]
    """Of each class, in the order of `ModelDescription.classes`; numbers, where the model has a
    regression for classes (`ModelDescription.class_scores` is "identity")."""
    logits: tuple[float, ...]
    prompt_tokens: int
    memory_evicted: bool = False
    """Its memory had more engrams than it has room for, and some were evicted."""


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
    max_context: int = 0
    """Tokens that it can be fed; 0: any number."""
    context_full: bool = False
    """Whether it was fed as many: it can still be read and forked, and not go on."""
    residency: str = "device"
    """Where its state is: "device", "host" while it is parked in memory of the host, "store" while
    it is in the server's store, "lost", or "other_model" where what is stored is of another model
    than the server's."""
    durability: Optional[str] = None
    """How the server stores it: "turn" or "none"; None: it ends with the server."""
    memory_seed: Optional[int] = None
    """What it draws from as it recalls, where it brought that (Memoria); None: it brought none."""
    may_have_been_at: Optional[int] = None
    """The position that it is known to have had where damage of the server's store may have cost it
    its last turns, or what is recorded of its idempotency keys; its next request is refused then,
    unless it takes the session as it is. None: it is whole."""
    stored_bytes: int = 0
    """That its log and its snapshots take of the server's store, as limits count them."""


@dataclass(frozen=True)
class Checkpoint:
    """A place in a session's past, which it can go back to."""

    name: str
    position: int
    """Of the session there, as in `SessionInfo`."""
    has_pending_token: bool
    create_time: datetime


@dataclass(frozen=True)
class ImportedSession:
    """A session that was made of a file."""

    session: SessionInfo
    file_state_dtype: str
    """How its memories were stored where it comes from: "f32", "f16" or "int8"."""
    state_dtype: str
    """How they are stored here."""
    rounded_tensors: int
    """Tensors of its state with numbers that had to be rounded; 0: nothing was lost."""
    file_engram_capacity: int = 0
    """Engrams that it had room for where it comes from; 0: its model makes none."""
    engram_capacity: int = 0
    """Engrams that it has room for here: nothing is lost where these two differ."""


@dataclass(frozen=True)
class SessionUsage:
    """What all sessions of the caller's key are and take, and what they may; None: any number."""

    sessions: int = 0
    max_sessions: Optional[int] = None
    stored_bytes: int = 0
    """`SessionInfo.stored_bytes` of all of them."""
    max_stored_bytes: Optional[int] = None
    checkpoints: int = 0
    max_checkpoints: Optional[int] = None


@dataclass(frozen=True)
class SessionPage:
    """One page of a list of sessions."""

    sessions: tuple[SessionInfo, ...]
    next_page_token: str
    """Empty: these were the last ones."""
    total_count: int
    usage: SessionUsage = SessionUsage()
    """Whatever the names on the page."""


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
    has_chat_template: bool = False
    """Whether `chat` answers."""
    classes: tuple[str, ...] = ()
    """Of a model that classifies and generates nothing: the names of its classes."""
    class_scores: str = ""
    """"softmax", "sigmoid" or "identity": how numbers follow from logits."""
    segment_tokens: int = 0
    """Tokens of a segment of such a model."""
    takes_long_documents: bool = False
    """Whether a document may have several segments."""


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
    max_context: int = 0
    """Tokens that a session can be fed, as long as its state has room for."""


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
    """The engine's work at present ("now") and since its start."""

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
    session_store_error: str = ""
    """All that is wrong with the store of sessions at present."""
    sessions_stored: int = 0
    """In the store now, wherever their states are."""
    stored_bytes: int = 0
    """`SessionInfo.stored_bytes` of all of them."""


@dataclass(frozen=True)
class Info:
    """The model that is served, and how much fits. Only `server` is set while the model loads."""

    server: ServerInfo
    model: Optional[ModelDescription]
    capacity: Optional[Capacity]
    limits: Optional[Limits]
    statistics: Optional[Statistics]
