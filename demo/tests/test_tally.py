"""Intervals, outcomes, filler and the choice of questions."""

from __future__ import annotations

import random

import pytest

pytest.importorskip("mneme")

from demo.dialogue import Filler, turn_text
from demo.recall import pick
from demo.tally import NONE, OLD, OTHER, RIGHT, WRONG, Cell, Question, judge, wilson


@pytest.mark.parametrize(
    ("right", "total", "low", "high"),
    [
        # Newcombe, Statistics in Medicine 17 (1998), table I, method 3.
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
        (28, 29, 0.8282, 0.9939),  # by symmetry
    ],
)
def test_intervals_are_those_of_the_literature(right: int, total: int, low: float, high: float) -> None:
    assert wilson(right, total) == pytest.approx((low, high), abs=5e-5)


def test_nothing_counted_says_nothing() -> None:
    assert wilson(0, 0) == (0.0, 1.0)


def test_answers_are_told_apart_by_where_their_value_comes_from() -> None:
    question = Question("Anna", "city", "?", "Rome", 1 / 24, old="Paris", others=frozenset({"Oslo"}))
    values = ["Rome", "Paris", "Oslo", "Cairo", None]
    assert [judge(question, value) for value in values] == [RIGHT, OLD, OTHER, WRONG, NONE]


def test_cell_counts_shares_chance_and_distances() -> None:
    cell = Cell()
    for i, outcome in enumerate([RIGHT, WRONG, RIGHT, NONE]):
        cell.add(Question("Anna", "city", "?", "Rome", 0.25), outcome, 100 + i, f"session {i % 2}")
    summary = cell.summary()
    assert summary["right"] == 2
    assert summary["questions"] == 4
    assert summary["accuracy"] == 0.5
    assert summary["chance"] == 0.25
    assert (summary["distance_min"], summary["distance_mean"], summary["distance_max"]) == (100, 101.5, 103)
    assert summary["conversations"] == 2
    assert summary["by_attribute"] == {"city": [2, 4]}


def test_only_facts_that_are_far_enough_back_wait_for_the_last_one() -> None:
    missing = {20: 100, 1000: 100}
    picked = pick([10, 30, 50], 60, missing, 100, random.Random(1))
    assert picked == [(20, 2), (1000, 0), (1000, 1), (1000, 2)]
    assert missing == {20: 99, 1000: 97}


def test_no_more_is_asked_than_missing_or_than_one_conversation_may() -> None:
    missing = {1000: 2, 2000: 50}
    picked = pick(range(30), 30, missing, 5, random.Random(1))
    assert [distance for distance, _ in picked] == [1000] * 2 + [2000] * 5
    assert len(set(picked)) == 7
    assert missing == {1000: 0, 2000: 45}


@pytest.mark.parametrize("tokens", [0, 7, 25, 64, 333, 5000])
def test_filler_comes_as_near_as_its_turns_allow(tokens: int) -> None:
    rng = random.Random(tokens)
    filler = Filler.of([[i] * rng.randint(20, 80) for i in range(200)])
    stretch = filler.stretch(tokens, rng, [])
    assert abs(len(stretch) - tokens) <= 12


def test_no_filler_turn_comes_twice_before_all_came_once() -> None:
    filler = Filler.of([[i] * 10 for i in range(50)])
    deck: list[int] = []
    rng = random.Random(3)
    said = [filler.stretch(100, rng, deck) for _ in range(4)]
    before_last_turn = [turn for stretch in said for turn in stretch[:-10:10]]
    assert len(set(before_last_turn)) == len(before_last_turn) == 36


def test_turns_read_as_chat_sends_them() -> None:
    assert turn_text("Hello.", first=True) == "User: Hello.\nAssistant:"
    assert turn_text("Hello.", "Good day.") == "\nUser: Hello.\nAssistant: Good day."
