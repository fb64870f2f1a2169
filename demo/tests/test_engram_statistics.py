"""Each analysis on states that were made by hand, so that its numbers are known."""

import pytest

from demo import engram_statistics as statistics
from demo.engram_statistics import Engram, Moment, Strength


def engram(birth, kind="long_term", origin=None, recalled=True):
    return Engram(birth, kind, birth // 2 if origin is None else origin, recalled)


def test_ages_are_of_recalled_long_term_engrams():
    moment = Moment(
        segment=10,
        engrams=(
            engram(0),  # made of segment 0: 9 segments before the one that recalled it
            engram(7),  # of segment 3
            engram(2, recalled=False),
            engram(12, "short_term"),
            engram(18, "working", recalled=False),
        ),
        found=3,
        evictions=1,
        lifespan_sum=31.5,
        max_lifespan=20,
    )
    assert statistics.recalled_ages(moment) == [9, 6]
    assert statistics.by_segment(moment) == {
        "segment": 10,
        "working": 1,
        "short_term": 1,
        "long_term": 3,
        "found": 3,
        "recalled_short_term": 1,
        "recalled_long_term": 2,
        "mean_age": 7.5,
        "lifespan_sum": 31.5,
        "max_lifespan": 20,
        "evictions": 1,
    }
    assert statistics.by_segment(Moment(0, ()))["mean_age"] is None


def test_creation_is_counted_by_share_of_all_segments():
    long = [engram(i, origin=origin) for i, origin in enumerate([0, 1, 2, 9, 10, 19])]
    moment = Moment(19, (*long, engram(30, "short_term", origin=18)))
    assert statistics.creation_counts(moment) == [2, 1, 0, 0, 1, 1, 0, 0, 0, 1]
    assert statistics.creation_counts(moment, bins=2) == [4, 2]


def test_autocorrelation_of_series_whose_values_are_known():
    assert statistics.autocorrelation([True] * 5, 2) == 1
    assert statistics.autocorrelation([False] * 5, 4) == 1
    # Mean 1/2: deviations 1/2, -1/2, 1/2, -1/2 with variance sum 1.
    alternating = [True, False, True, False]
    assert [statistics.autocorrelation(alternating, lag) for lag in (1, 2, 3)] == [-0.75, 0.5, -0.25]
    # Mean 1/4: (9 + 1 + 1 + 1) / 16 below; above at lag 1: (-3 + 1 + 1) / 16.
    assert statistics.autocorrelation([True, False, False, False], 1) == pytest.approx(-1 / 12)


def test_series_are_followed_while_an_engram_is_of_a_kind():
    moments = [
        Moment(1, (engram(0, "short_term"), engram(1, "short_term", recalled=False))),
        Moment(2, (engram(0, "long_term"), engram(1, "short_term"))),
        Moment(3, (engram(0, "long_term", recalled=False),)),
    ]
    assert statistics.recall_series(moments, "short_term") == [[True], [False, True]]
    assert statistics.recall_series(moments, "long_term") == [[True, False]]


def test_means_leave_short_series_out_and_count_long_ones_more():
    series = [[True] * 2, [True, False, True, False]]
    plain = statistics.mean_autocorrelations(series, by_length=False)
    assert plain == [
        {"lag": 1, "mean": (1 - 0.75) / 2, "series": 2},
        {"lag": 2, "mean": 0.5, "series": 1},
        {"lag": 3, "mean": -0.25, "series": 1},
    ]
    weighted = statistics.mean_autocorrelations(series, by_length=True, most=1)
    assert weighted == [{"lag": 1, "mean": (2 * 1 - 4 * 0.75) / 6, "series": 2}]
    assert statistics.mean_autocorrelations([], by_length=False) == []


def test_a_second_reading_is_compared_place_by_place():
    # Of a text of 3 segments; engrams 0 to 2 of the first reading, 3 to 5 of the second.
    origins = {0: 0, 1: 1, 2: 2, 3: 3, 4: 4, 5: 5}
    links = [
        Strength(0, 3, 0.5, 0.25),
        Strength(4, 1, 1.0, 0.5),
        Strength(0, 4, 0.25, 0.25),
        Strength(0, 1, 1.0, 1.0),  # both of the first reading
        Strength(3, 4, 1.0, 1.0),  # both of the second
    ]
    assert statistics.second_reading(origins, 3, links, reach=1) == [
        {"offset": -1, "mean_weight": 0.0, "pairs": 2},
        {"offset": 0, "mean_weight": (0.375 + 0.75) / 3, "pairs": 3},
        {"offset": 1, "mean_weight": 0.25 / 2, "pairs": 2},
    ]
