"""The analyses of Memoria's paper (Park and Bak, arXiv:2310.03052), of what was seen of a session's engrams
while it read a text: once in every segment, at its end, when its tokens have attended to what was recalled for
it. docs/demo_model.md, "What engrams do", says what each one means.

Segments count from 0. An engram of segment o was made of it, and was there from segment o + 1 on.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

KINDS = ("working", "short_term", "long_term")
LAGS = 15  # the most that series are shifted by


class Engram(NamedTuple):
    birth: int
    kind: str
    origin: int  # the segment that it was made of
    recalled: bool


@dataclasses.dataclass(frozen=True)
class Moment:
    """A session at the end of a segment."""

    segment: int
    engrams: tuple[Engram, ...]
    found: int = 0  # long-term ones that links led to
    evictions: int = 0  # since the beginning
    lifespan_sum: float = 0
    max_lifespan: float = 0

    def of_kind(self, kind: str) -> list[Engram]:
        return [engram for engram in self.engrams if engram.kind == kind]


def recalled_ages(moment: Moment) -> list[int]:
    """Segments between the one before this and that of each recalled long-term engram (figure 5)."""
    return [moment.segment - 1 - e.origin for e in moment.of_kind("long_term") if e.recalled]


def by_segment(moment: Moment) -> dict[str, float | int | None]:
    """A line of figure 5, with what has to stand beside it: an age that rises may be hoarded lifespan."""
    ages = recalled_ages(moment)
    recalled_short = sum(engram.recalled for engram in moment.of_kind("short_term"))
    return {
        "segment": moment.segment,
        **{kind: len(moment.of_kind(kind)) for kind in KINDS},
        "found": moment.found,
        "recalled_short_term": recalled_short,
        "recalled_long_term": len(ages),
        "mean_age": sum(ages) / len(ages) if ages else None,
        "lifespan_sum": moment.lifespan_sum,
        "max_lifespan": moment.max_lifespan,
        "evictions": moment.evictions,
    }


def creation_counts(moment: Moment, bins: int = 10) -> list[int]:
    """Long-term engrams by the time of their creation, in as many equal parts of all segments (figure 6)."""
    counts = [0] * bins
    for engram in moment.of_kind("long_term"):
        counts[engram.origin * bins // (moment.segment + 1)] += 1
    return counts


def autocorrelation(series: Sequence[bool], lag: int) -> float:
    """sum (x_t - m)(x_{t + lag} - m) / sum (x_t - m)^2, m the mean; 1 of a series that never changes."""
    mean = sum(series) / len(series)
    apart = [x - mean for x in series]
    variance = sum(x * x for x in apart)
    if all(x == series[0] for x in series):
        return 1.0
    return sum(x * y for x, y in zip(apart, apart[lag:], strict=False)) / variance


def recall_series(moments: Iterable[Moment], kind: str) -> list[list[bool]]:
    """Of each engram, whether it was recalled, in all segments in which it was of a kind."""
    series: dict[int, list[bool]] = {}
    for moment in moments:
        for engram in moment.of_kind(kind):
            series.setdefault(engram.birth, []).append(engram.recalled)
    return list(series.values())


def mean_autocorrelations(
    series: Sequence[Sequence[bool]], by_length: bool, most: int = LAGS
) -> list[dict[str, float | int]]:
    """For each lag the mean over series that are longer than it; `by_length`: a series counts as often as it
    has values (table 8, figure 7)."""
    found: list[dict[str, float | int]] = []
    for lag in range(1, most + 1):
        long = [one for one in series if len(one) > lag]
        if not long:
            break
        weights = [len(one) if by_length else 1 for one in long]
        total = sum(w * autocorrelation(one, lag) for w, one in zip(weights, long, strict=True))
        found.append({"lag": lag, "mean": total / sum(weights), "series": len(long)})
    return found


class Strength(NamedTuple):
    """A link between two engrams."""

    first: int  # births
    second: int
    weight: float  # E from the first to the second
    weight_back: float


def second_reading(
    origins: Mapping[int, int], segments: int, links: Iterable[Strength], reach: int = 10
) -> list[dict[str, float | int]]:
    """How strongly engrams of a text read for the second time are linked to those of the first time, by how
    many segments further on in the text they are: the mean of E over all pairs, both ways (figure 13).

    origins: of all living engrams the segment that each was made of; segments: of one reading.
    """
    once = {birth: origin for birth, origin in origins.items() if origin < segments}
    again = {birth: origin - segments for birth, origin in origins.items() if origin >= segments}
    pairs = dict.fromkeys(range(-reach, reach + 1), 0)
    sums = dict.fromkeys(pairs, 0.0)
    for place in again.values():
        for before in once.values():
            if abs(place - before) <= reach:
                pairs[place - before] += 1
    for link in links:
        old, new = sorted((link.first, link.second), key=origins.__getitem__)
        if old in once and new in again and abs(again[new] - once[old]) <= reach:
            sums[again[new] - once[old]] += (link.weight + link.weight_back) / 2
    return [
        {"offset": offset, "mean_weight": sums[offset] / count, "pairs": count}
        for offset, count in pairs.items()
        if count > 0
    ]
