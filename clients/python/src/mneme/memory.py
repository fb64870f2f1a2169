"""What a session's memory holds, for models whose memory consists of engrams (Memoria).

An engram is a vector that the model made of a whole segment of the conversation: no word and no
text. It is named by its birth, a number that counts on.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any, Optional

from mneme.errors import filling
from mneme.v1 import memory_pb2

__all__ = [
    "ContiguityBin",
    "ContiguityView",
    "EdgesView",
    "Engram",
    "EngramEdge",
    "EngramKind",
    "EngramOrder",
    "EngramsView",
    "ForgottenEngrams",
    "HistogramBin",
    "HistogramQuantity",
    "HistogramView",
    "MemoryReport",
    "MemorySource",
    "MemorySummary",
    "MemoryUse",
    "SegmentRange",
]


class EngramKind(enum.Enum):
    """The memory that an engram is in."""

    WORKING = 1
    """Made of the segment before the open one."""
    SHORT_TERM = 2
    LONG_TERM = 3


class EngramOrder(enum.Enum):
    """Which engrams come first; of equals the oldest."""

    BIRTH = 1
    NEWEST = 2
    LIFESPAN = 3
    """The longest first, as with those below."""
    FIRINGS = 4
    GAIN = 5


class HistogramQuantity(enum.Enum):
    """What a histogram counts engrams by."""

    LIFESPAN = 1
    AGE = 2
    """Segments since birth."""
    CREATION = 3
    """The segment that it was made of."""


_ENUMS: dict[str, type[enum.Enum]] = {
    "order": EngramOrder,
    "kind": EngramKind,
    "quantity": HistogramQuantity,
}


@dataclass(frozen=True)
class EngramsView:
    """Asks for engrams, one by one."""

    order: EngramOrder = EngramOrder.BIRTH
    kind: Optional[EngramKind] = None
    """None: of every kind."""
    limit: int = 100
    """At most 10000."""
    birth: Optional[int] = None
    """This one alone."""


@dataclass(frozen=True)
class EdgesView:
    """Asks for pairs of engrams that fired together, the strongest first."""

    min_count: int = 1
    min_weight: float = 0.0
    """The larger of both weights, at least."""
    birth: Optional[int] = None
    """Only edges of this engram."""
    limit: int = 100
    """At most 20000."""


@dataclass(frozen=True)
class HistogramView:
    """Asks how many engrams there are of which lifespan, age or segment."""

    quantity: HistogramQuantity
    kind: Optional[EngramKind] = None
    bins: int = 20
    """At most so many; up to 1000."""
    logarithmic: bool = False


@dataclass(frozen=True)
class ContiguityView:
    """Asks how strongly engrams are linked that were born so many segments apart."""

    max_distance: int = 200
    """At most 10000."""


@dataclass(frozen=True)
class SegmentRange:
    """Where in the conversation a segment is: tokens [first_token, end_token)."""

    segment: int
    first_token: int
    end_token: int


@dataclass(frozen=True)
class MemorySummary:
    """How much a session's memory holds."""

    position: int
    """As `SessionInfo.position`, a pending token included."""
    segment: int
    """The open one, from 0 on."""
    segment_tokens: int
    capacity: int
    """Engrams that there is room for."""
    working: int
    short_term: int
    long_term: int
    free: int
    lifespan_sum: float
    max_lifespan: float
    evictions: int
    """Engrams that lost their place before their lifespan was over."""
    history_wrapped: bool
    """The session has had more segments than firings are counted of."""
    found: int
    """Long-term engrams that the last retrieval found along links."""
    recalled: int
    """Engrams that tokens of the open segment attend to, beside working ones."""
    gain_columns: int


@dataclass(frozen=True)
class Engram:
    """One engram."""

    birth: int
    kind: EngramKind
    age: int
    """Segments since birth."""
    lifespan: float
    firings: int
    last_gain: float
    """Lifespan that it gained at the last commit at which it was recalled."""
    norm: float
    """Of its vector."""
    recalled: bool
    source: SegmentRange


@dataclass(frozen=True)
class EngramEdge:
    """Two engrams that fired together."""

    origin: int
    target: int
    count: int
    weight: float
    """`count` / firings of `origin`: how likely the target is recalled where the origin is."""
    weight_back: float
    """The same the other way."""


@dataclass(frozen=True)
class HistogramBin:
    """Engrams in [low, high); the last bin of lifespans includes `high`."""

    low: float
    high: float
    engrams: int


@dataclass(frozen=True)
class ContiguityBin:
    """How strongly engrams are linked that were born `distance` segments apart."""

    distance: int
    mean_weight: float
    pairs: int


@dataclass(frozen=True)
class MemoryReport:
    """Answer of `inspect_memory`: the summary, and what was asked for beside it."""

    summary: MemorySummary
    engrams: tuple[Engram, ...] = ()
    edges: tuple[EngramEdge, ...] = ()
    histogram: tuple[HistogramBin, ...] = ()
    contiguity: tuple[ContiguityBin, ...] = ()


@dataclass(frozen=True)
class ForgottenEngrams:
    """How many engrams `forget_segments` deleted, by kind."""

    working: int
    short_term: int
    long_term: int
    dropped_checkpoints: tuple[str, ...] = ()
    """Names of checkpoints that went with them."""


@dataclass(frozen=True)
class MemorySource:
    """A segment of the conversation that an answer drew on."""

    segment: SegmentRange
    kind: EngramKind
    """Where its engrams were when they were recalled."""
    engrams: int
    """Recalled of this segment."""
    weight: float
    """Share of the attention to recalled engrams that went to these; all of them add up to 1."""


@dataclass(frozen=True)
class MemoryUse:
    """What an answer drew on, the largest weight first."""

    sources: tuple[MemorySource, ...]
    evictions: int
    """Engrams that the session lost since its birth before their lifespan was over."""


def _fill_view(name: str, message: Any, view: Any, fields: tuple[str, ...]) -> None:
    """Every field that is not None; of an enumeration its number."""
    for field in fields:
        with filling(f"{name}.{field}", getattr(view, field, None)):
            value = getattr(view, field)
            expected = _ENUMS.get(field)
            if value is None:
                continue
            if expected is not None and not isinstance(value, expected):
                raise TypeError(f"expected a member of {expected.__name__}")
            setattr(message, field, value if expected is None else value.value)


def forget_segments_request(name: str, first: int, end: int) -> memory_pb2.ForgetSegmentsRequest:
    """The message for a call of `forget_segments`."""
    request = memory_pb2.ForgetSegmentsRequest()
    for field, value in (("name", name), ("first", first), ("end", end)):
        with filling(field, value):
            setattr(request, field, value)
    return request


def inspect_memory_request(
    name: str,
    engrams: Optional[EngramsView],
    edges: Optional[EdgesView],
    histogram: Optional[HistogramView],
    contiguity: Optional[ContiguityView],
) -> memory_pb2.InspectMemoryRequest:
    """The message for a call of `inspect_memory`."""
    request = memory_pb2.InspectMemoryRequest()
    with filling("name", name):
        request.name = name
    if engrams is not None:
        _fill_view("engrams", request.engrams, engrams, ("order", "kind", "limit", "birth"))
    if edges is not None:
        _fill_view("edges", request.edges, edges, ("min_count", "min_weight", "birth", "limit"))
    if histogram is not None:
        fields = ("quantity", "kind", "bins", "logarithmic")
        _fill_view("histogram", request.histogram, histogram, fields)
    if contiguity is not None:
        _fill_view("contiguity", request.contiguity, contiguity, ("max_distance",))
    return request


def _segment(m: memory_pb2.SegmentRange) -> SegmentRange:
    return SegmentRange(m.segment, m.first_token, m.end_token)


def _engram(m: memory_pb2.Engram) -> Engram:
    return Engram(
        birth=m.birth,
        kind=EngramKind(m.kind),
        age=m.age,
        lifespan=m.lifespan,
        firings=m.firings,
        last_gain=m.last_gain,
        norm=m.norm,
        recalled=m.recalled,
        source=_segment(m.source),
    )


def memory_report_of(m: memory_pb2.InspectMemoryResponse) -> MemoryReport:
    """A report from its message."""
    s = m.summary
    return MemoryReport(
        summary=MemorySummary(
            position=s.position,
            segment=s.segment,
            segment_tokens=s.segment_tokens,
            capacity=s.capacity,
            working=s.working,
            short_term=s.short_term,
            long_term=s.long_term,
            free=s.free,
            lifespan_sum=s.lifespan_sum,
            max_lifespan=s.max_lifespan,
            evictions=s.evictions,
            history_wrapped=s.history_wrapped,
            found=s.found,
            recalled=s.recalled,
            gain_columns=s.gain_columns,
        ),
        engrams=tuple(_engram(e) for e in m.engrams),
        edges=tuple(
            EngramEdge(getattr(e, "from"), e.to, e.count, e.weight, e.weight_back) for e in m.edges
        ),
        histogram=tuple(HistogramBin(getattr(b, "from"), b.to, b.engrams) for b in m.histogram),
        contiguity=tuple(ContiguityBin(b.distance, b.mean_weight, b.pairs) for b in m.contiguity),
    )


def forgotten_engrams_of(m: memory_pb2.ForgetSegmentsResponse) -> ForgottenEngrams:
    """What was deleted, from its message."""
    return ForgottenEngrams(m.working, m.short_term, m.long_term, tuple(m.dropped_checkpoints))


def memory_use_of(m: memory_pb2.MemoryUse) -> MemoryUse:
    """What an answer drew on, from its message."""
    return MemoryUse(
        tuple(
            MemorySource(_segment(s.segment), EngramKind(s.kind), s.engrams, s.weight)
            for s in m.sources
        ),
        m.evictions,
    )
