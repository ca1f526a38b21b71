import math
from dataclasses import replace

import numpy as np
import pytest

from kgwe.forecast.runtime.shortest import LEAST_COVERED, Answers, ShortestIntervals, ShortestTable, find_shortest

COVERAGE = 0.8
UNSEEN = (math.nan, math.nan)
EMPTY = np.zeros(0)
# Of a normal distribution.
OUTER = 1.2816


def answer(median, low, high, ticks=UNSEEN) -> Answers:
    """Return predictions in log seconds."""
    middle = np.asarray(median, dtype=np.float64)
    seen = np.broadcast_to(np.array(ticks), (*middle.shape, 2))
    return Answers(middle, np.asarray(low, dtype=np.float64), np.asarray(high, dtype=np.float64), seen)


def find_table(median, low, high, lasted, ticks=UNSEEN) -> ShortestTable:
    return find_shortest(answer(median, low, high, ticks), lasted, COVERAGE)


def make_runs(count: int, seed: int = 5) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Runs of about a minute. Half of them are easy to predict, half are hard, and the quantiles know it."""
    random = np.random.default_rng(seed)
    median = random.normal(4.0, 0.3, count)
    spread = np.where(np.arange(count) % 2 == 0, 0.05, 0.6)
    lasted = np.expm1(median + spread * random.normal(0, 1, count))
    return median, median - OUTER * spread, median + OUTER * spread, np.maximum(lasted, 0.0)


def cover(intervals: ShortestIntervals, runs: tuple[np.ndarray, ...], *, adapt: bool = False, ticks=UNSEEN):
    """Return which runs are inside, and the widths."""
    inside, widths = [], []
    for median, low, high, lasted in zip(*runs, strict=True):
        lower, _, upper = intervals.find(answer(median, low, high, ticks))
        inside.append(lower <= lasted <= upper)
        widths.append(upper - lower)
        if adapt:
            intervals.observe((lower, upper), lasted)
    return np.array(inside), np.array(widths)


def test_shortest_intervals_cover_the_stated_share_of_all_runs():
    table = find_table(*make_runs(1200))
    inside, _ = cover(ShortestIntervals(table), make_runs(1200, seed=6))
    assert 0.77 < inside.mean() < 0.83


def test_shortest_intervals_are_narrower_than_quantiles():
    table = find_table(*make_runs(1200))
    _, low, high, _ = runs = make_runs(1200, seed=6)
    _, widths = cover(ShortestIntervals(table), runs)
    assert widths.mean() < 0.9 * (np.expm1(high) - np.expm1(low)).mean()


def test_runs_that_are_hard_to_predict_are_covered_at_least_as_often_as_promised():
    table = find_table(*make_runs(1200))
    inside, _ = cover(ShortestIntervals(table), make_runs(1200, seed=6))
    assert inside[1::2].mean() > LEAST_COVERED - 0.04
    assert inside[::2].mean() > inside[1::2].mean()


def test_intervals_widen_until_the_stated_share_is_covered_again():
    intervals = ShortestIntervals(find_table(*make_runs(1200)))
    median, low, high, lasted = make_runs(3000, seed=6)
    inside, _ = cover(intervals, (median, low, high, 1.5 * lasted), adapt=True)
    assert 0.76 < inside[1500:].mean() < 0.84


def test_whole_seconds_make_intervals_of_whole_seconds():
    median, low, high, lasted = make_runs(1000)
    table = find_table(median, low, high, np.rint(lasted))
    assert table.resolution_s == 1.0
    lower, middle, upper = ShortestIntervals(table).find(answer(4.0, 3.4, 4.6))
    assert (lower, middle, upper) == (int(lower), int(middle), int(upper))


def test_ticks_make_intervals_that_end_at_ticks_and_are_narrower():
    median, low, high, lasted = make_runs(1200)
    ticks = (5.0, 2.0)
    seen = np.maximum(np.ceil((lasted - 2.0) / 5.0), 0.0) * 5.0 + 2.0
    plain, known = find_table(median, low, high, seen), find_table(median, low, high, seen, ticks)
    lower, middle, upper = ShortestIntervals(known).find(answer(4.0, 3.4, 4.6, ticks))
    assert [(each - 2.0) % 5.0 for each in (lower, middle, upper)] == [0.0] * 3
    inside, widths = cover(ShortestIntervals(known), (median, low, high, seen), ticks=ticks)
    _, plain_widths = cover(ShortestIntervals(plain), (median, low, high, seen))
    assert inside.mean() >= COVERAGE
    assert widths.mean() < plain_widths.mean() - 2.0


def test_fractions_of_seconds_are_not_rounded():
    assert find_table(*make_runs(1000)).resolution_s == 0.0


def test_a_shortest_interval_always_contains_the_median():
    table = replace(find_table(*make_runs(300)), price=1.0, resolution_s=1.0)
    for median in np.linspace(0.0, 6.0, 50).tolist():
        lower, middle, upper = ShortestIntervals(table).find(answer(median, median + 1.0, median - 1.0))
        assert 0.0 <= lower <= middle <= upper
        assert abs(middle - math.expm1(median)) <= 0.5


def test_without_runs_the_quantiles_are_the_interval():
    table = find_table(EMPTY, EMPTY, EMPTY, EMPTY)
    found = ShortestIntervals(table).find(answer(4.0, 3.0, 5.0))
    assert found == pytest.approx(np.expm1([3.0, 4.0, 5.0]))


def test_equal_predictions_share_one_group():
    flat = np.full(500, 4.0)
    lasted = np.expm1(4.0 + np.random.default_rng(1).normal(0, 0.2, 500))
    table = find_table(flat, flat - 0.2, flat + 0.2, lasted)
    inside, _ = cover(ShortestIntervals(table), (flat, flat - 0.2, flat + 0.2, lasted))
    assert 0.78 < inside.mean() < 0.86
