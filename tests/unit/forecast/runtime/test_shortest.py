import math

import numpy as np
import pytest

from kgwe.forecast.runtime.shortest import LEAST_COVERED, ShortestIntervals, ShortestTable, find_shortest

COVERAGE = 0.8
EMPTY = np.zeros(0)
# Of a normal distribution.
OUTER = 1.2816


def make_runs(count: int, seed: int = 5) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Runs of about a minute. Half of them are easy to predict, half are hard, and the quantiles know it."""
    random = np.random.default_rng(seed)
    median = random.normal(4.0, 0.3, count)
    spread = np.where(np.arange(count) % 2 == 0, 0.05, 0.6)
    lasted = np.expm1(median + spread * random.normal(0, 1, count))
    return median, median - OUTER * spread, median + OUTER * spread, np.maximum(lasted, 0.0)


def cover(intervals: ShortestIntervals, runs: tuple[np.ndarray, ...], *, adapt: bool = False):
    """Return which runs are inside, and the widths."""
    inside, widths = [], []
    for median, low, high, lasted in zip(*runs, strict=True):
        interval = intervals.find(median, low, high)
        inside.append(interval[0] <= lasted <= interval[1])
        widths.append(interval[1] - interval[0])
        if adapt:
            intervals.observe(interval, lasted)
    return np.array(inside), np.array(widths)


def test_shortest_intervals_cover_the_stated_share_of_all_runs():
    table = find_shortest(*make_runs(3000), COVERAGE)
    inside, _ = cover(ShortestIntervals(table), make_runs(3000, seed=6))
    assert 0.77 < inside.mean() < 0.83


def test_shortest_intervals_are_narrower_than_quantiles():
    table = find_shortest(*make_runs(3000), COVERAGE)
    _, low, high, _ = runs = make_runs(3000, seed=6)
    _, widths = cover(ShortestIntervals(table), runs)
    assert widths.mean() < 0.9 * (np.expm1(high) - np.expm1(low)).mean()


def test_runs_that_are_hard_to_predict_are_covered_at_least_as_often_as_promised():
    table = find_shortest(*make_runs(3000), COVERAGE)
    inside, _ = cover(ShortestIntervals(table), make_runs(3000, seed=6))
    assert inside[1::2].mean() > LEAST_COVERED - 0.04
    assert inside[::2].mean() > inside[1::2].mean()


def test_intervals_widen_until_the_stated_share_is_covered_again():
    intervals = ShortestIntervals(find_shortest(*make_runs(3000), COVERAGE))
    median, low, high, lasted = make_runs(3000, seed=6)
    inside, _ = cover(intervals, (median, low, high, 1.5 * lasted), adapt=True)
    assert 0.76 < inside[1500:].mean() < 0.84


def test_whole_seconds_make_intervals_of_whole_seconds():
    median, low, high, lasted = make_runs(1000)
    table = find_shortest(median, low, high, np.rint(lasted), COVERAGE)
    assert table.resolution_s == 1.0
    lower, upper = ShortestIntervals(table).find(4.0, 3.4, 4.6)
    assert lower == int(lower)
    assert upper == int(upper)


def test_fractions_of_seconds_are_not_rounded():
    assert find_shortest(*make_runs(1000), COVERAGE).resolution_s == 0.0


def test_a_shortest_interval_always_contains_the_median():
    table = ShortestTable((), (0.01,), (0.01,), COVERAGE, 1.0)
    for median in np.linspace(0.0, 6.0, 50).tolist():
        lower, upper = ShortestIntervals(table).find(median, median + 1.0, median - 1.0)
        assert 0.0 <= lower <= math.expm1(median) <= upper


def test_without_runs_the_quantiles_are_the_interval():
    table = find_shortest(EMPTY, EMPTY, EMPTY, EMPTY, COVERAGE)
    assert ShortestIntervals(table).find(4.0, 3.0, 5.0) == pytest.approx((np.expm1(3.0), np.expm1(5.0)))


def test_equal_predictions_share_one_group():
    flat = np.full(500, 4.0)
    lasted = np.expm1(4.0 + np.random.default_rng(1).normal(0, 0.2, 500))
    table = find_shortest(flat, flat - 0.2, flat + 0.2, lasted, COVERAGE)
    inside, _ = cover(ShortestIntervals(table), (flat, flat - 0.2, flat + 0.2, lasted))
    assert 0.78 < inside.mean() < 0.86
