import math

import numpy as np
import pytest

from kgwe.forecast.runtime.histogram import (
    BUCKETS,
    HALF_LIFE_S,
    DecayedHistogram,
    blend,
    find_bucket,
    find_quantiles,
)
from kgwe.forecast.runtime.survival import add_running, estimate_survival, weigh_ended


def make(*durations: float, at_s: float = 0.0) -> DecayedHistogram:
    histogram = DecayedHistogram()
    for duration in durations:
        histogram.add(duration, at_s)
    return histogram


def test_the_median_of_equal_runs_is_their_duration():
    assert find_quantiles(make(*[100.0] * 20).read(0.0), [0.5])[0] == pytest.approx(100.0, rel=0.05)


def test_the_weight_of_a_run_halves_with_its_half_life():
    histogram = make(100.0)
    assert histogram.read(HALF_LIFE_S).sum() == pytest.approx(histogram.read(0.0).sum() / 2)


def test_newer_runs_outweigh_older_ones_in_time():
    histogram = DecayedHistogram()
    for _ in range(50):
        histogram.add(100.0, 0.0)
    for _ in range(10):
        histogram.add(1000.0, 8 * HALF_LIFE_S)
    assert find_quantiles(histogram.read(8 * HALF_LIFE_S), [0.5])[0] > 900


def test_weights_stay_finite_over_years():
    histogram = DecayedHistogram()
    for week in range(600):
        histogram.add(60.0, week * HALF_LIFE_S)
    weights = histogram.read(600 * HALF_LIFE_S)
    assert np.isfinite(weights).all()
    assert weights.sum() > 0


def test_durations_that_are_not_finite_are_ignored():
    assert make(math.nan, math.inf).count == 0


def test_a_negative_duration_counts_as_zero():
    assert find_bucket(-5.0) == 0


def test_a_fine_key_with_few_runs_is_drawn_to_the_coarse_one():
    coarse, fine = make(*[100.0] * 50).read(0.0), make(1000.0).read(0.0)
    assert find_quantiles(blend([coarse, fine], 3.0), [0.5])[0] < 200


def test_a_fine_key_with_many_runs_decides_alone():
    coarse, fine = make(*[100.0] * 50).read(0.0), make(*[1000.0] * 50).read(0.0)
    assert find_quantiles(blend([coarse, fine], 3.0), [0.5])[0] > 900


def test_nothing_known_blends_to_nothing():
    assert blend([np.zeros(BUCKETS)], 3.0).sum() == 0


def test_running_runs_move_the_median_up():
    ended = make(*[100.0] * 10, *[500.0] * 10).read(0.0)
    with_running = add_running(ended, [300.0] * 10)
    assert find_quantiles(with_running, [0.5])[0] > find_quantiles(ended, [0.5])[0]


def test_a_run_longer_than_every_known_one_counts_beyond_them():
    weights = add_running(make(100.0).read(0.0), [5000.0])
    assert find_quantiles(weights, [0.99])[0] > 5000


def test_survival_equals_the_textbook_example():
    lasted = np.array([1.0, 2.0, 2.0, 3.0, 4.0])
    ended = np.array([True, True, False, True, False])
    times, share = estimate_survival(lasted, ended)
    assert times.tolist() == [1.0, 2.0, 3.0]
    assert share.tolist() == pytest.approx([0.8, 0.6, 0.3])


def test_without_running_runs_all_weights_are_one():
    assert weigh_ended(np.array([1.0, 5.0, 9.0]), np.ones(3, dtype=bool)).tolist() == [1.0, 1.0, 1.0]


def test_long_ended_runs_stand_for_running_ones():
    weights = weigh_ended(np.array([1.0, 5.0, 9.0]), np.array([True, False, True]))
    assert weights.tolist() == [1.0, 0.0, 2.0]
