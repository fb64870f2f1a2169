"""Counting answers: what an answer got right or wrong, and how sure a share of them is."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from demo.world import Fact

# Two-sided 95 % quantile of the normal distribution.
Z95 = 1.959963984540054

RIGHT = "right"
OLD = "old value"  # the fact had this value before it was changed
OTHER = "another fact's value"  # told in the same conversation, of something else
WRONG = "value never told"
NONE = "no value"  # the answer names no value of this attribute
OUTCOMES = (RIGHT, OLD, OTHER, WRONG, NONE)


def wilson(right: int, total: int, z: float = Z95) -> tuple[float, float]:
    """The Wilson score interval of a share; (0, 1) where nothing was counted."""
    if total == 0:
        return 0.0, 1.0
    share = right / total
    scale = 1 + z * z / total
    middle = (share + z * z / (2 * total)) / scale
    half = z / scale * math.sqrt(share * (1 - share) / total + z * z / (4 * total * total))
    return max(0.0, middle - half), min(1.0, middle + half)


@dataclass(frozen=True)
class Question:
    """What is asked, and what would be right."""

    subject: str
    attribute: str
    text: str
    expected: str
    chance: float
    """How often a guess is right: one in so many values."""
    old: str = ""
    others: frozenset[str] = frozenset()
    """Values of this attribute that were told of other subjects."""


def judge(question: Question, value: str | None) -> str:
    """The outcome for an answer in which `value` was found."""
    if value is None:
        return NONE
    if value == question.expected:
        return RIGHT
    if question.old and value == question.old:
        return OLD
    return OTHER if value in question.others else WRONG


@dataclass
class Cell:
    """Answers to questions of one kind."""

    outcomes: Counter[str] = field(default_factory=Counter)
    attributes: dict[str, list[int]] = field(default_factory=dict)
    chances: float = 0.0
    distances: list[int] = field(default_factory=list)
    sessions: set[str] = field(default_factory=set)

    def add(self, question: Question, outcome: str, distance: int, session: str) -> None:
        """Counts one answer; `distance` in tokens, `session` the conversation it was asked in."""
        self.outcomes[outcome] += 1
        counts = self.attributes.setdefault(question.attribute, [0, 0])
        counts[0] += outcome == RIGHT
        counts[1] += 1
        self.chances += question.chance
        self.distances.append(distance)
        self.sessions.add(session)

    def summary(self) -> dict[str, Any]:
        """The cell as it is written to a file of results."""
        total = sum(self.outcomes.values())
        return {
            **share(self.outcomes[RIGHT], total),
            "chance": self.chances / total if total else 0.0,
            "outcomes": {name: self.outcomes[name] for name in OUTCOMES},
            "distance_mean": sum(self.distances) / total if total else 0.0,
            "distance_min": min(self.distances, default=0),
            "distance_max": max(self.distances, default=0),
            "conversations": len(self.sessions),
            "by_attribute": {name: self.attributes[name] for name in sorted(self.attributes)},
        }


def share(right: int, total: int) -> dict[str, Any]:
    """A share with its interval, as it is written to a file of results."""
    low, high = wilson(right, total)
    accuracy = right / total if total else 0.0
    return {"questions": total, "right": right, "accuracy": accuracy, "low": low, "high": high}


def values_by_attribute(facts: Iterable[Fact]) -> Mapping[str, frozenset[str]]:
    """All values that facts give to each attribute."""
    values: dict[str, set[str]] = {}
    for fact in facts:
        values.setdefault(fact.attribute, set()).add(fact.value)
    return {attribute: frozenset(found) for attribute, found in values.items()}
