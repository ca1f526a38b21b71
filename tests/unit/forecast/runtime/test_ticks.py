import math

import numpy as np
import pytest

from kgwe.forecast.runtime.ticks import Grid, Ticks


def watch(ends) -> Ticks:
    ticks = Ticks()
    for end in ends:
        ticks.observe(float(end))
    return ticks


def make_ends(period: int, count: int = 300, seed: int = 3) -> np.ndarray:
    return np.cumsum(period * np.random.default_rng(seed).integers(0, 8, count)) + 1000.0


@pytest.mark.parametrize("period", [2, 3, 5, 7, 10])
def test_the_period_and_the_first_possible_duration_are_found(period):
    ends = make_ends(period)
    now = ends[-1] + 1.0
    assert watch(ends).find(now) == (period, period - 1.0)


def test_ends_at_any_second_show_no_ticks():
    ends = np.cumsum(np.random.default_rng(3).integers(0, 40, 500))
    assert all(math.isnan(each) for each in watch(ends).find(float(ends[-1])))


def test_ends_at_fractions_of_seconds_show_no_ticks():
    ends = np.cumsum(np.random.default_rng(3).exponential(10.0, 500))
    assert all(math.isnan(each) for each in watch(ends).find(float(ends[-1])))


def test_a_grid_that_drifts_is_followed():
    ends = np.floor(3.005 * np.cumsum(np.random.default_rng(3).integers(0, 6, 600)))
    ticks = watch(ends[:300])
    right = 0
    for end in ends[300:]:
        period, first = ticks.find(ticks.last_s + 1.0)
        right += (end - ticks.last_s - 1.0 - first) % period == 0
        ticks.observe(float(end))
    assert right > 280


def test_old_ends_say_nothing_about_the_grid():
    ends = make_ends(3)
    assert math.isnan(watch(ends).find(ends[-1] + 1000.0)[0])


def test_a_late_report_of_an_earlier_end_is_ignored():
    ticks = watch(make_ends(3))
    before = ticks.find(ticks.last_s)
    ticks.observe(ticks.last_s - 4.0)
    assert ticks.find(ticks.last_s) == before


def test_durations_are_rounded_to_the_grid_and_never_below_its_first_point():
    grid = Grid(np.array(3.0), np.array(2.0))
    seconds = np.array([0.0, 3.4, 3.6, 5.0])
    assert grid.round(seconds).tolist() == [2.0, 2.0, 5.0, 5.0]
    assert grid.round_up(seconds).tolist() == [2.0, 5.0, 5.0, 5.0]
    assert grid.round_down(seconds).tolist() == [2.0, 2.0, 2.0, 5.0]


def test_without_a_step_nothing_is_rounded():
    assert Grid(np.array(0.0), np.array(0.0)).round(np.array([1.25])).tolist() == [1.25]
