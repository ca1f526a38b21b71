"""Counters that grow, wrap and begin anew."""

import pytest

from kgwe.model.telemetry import rates
from kgwe.model.telemetry.rates import Count


def test_a_counter_that_grows_has_a_rate():
    assert rates.compute_rate(Count(1_000, 10.0), Count(6_000, 15.0)) == 1_000


@pytest.mark.parametrize("top", [1 << 32, 1 << 42, 1 << 64])
def test_a_counter_that_wraps_keeps_its_rate_when_the_step_is_possible(top):
    before, now = Count(top - 1_000, 0.0), Count(4_000, 5.0)
    assert rates.compute_rate(before, now, most_per_s=2_000) == 1_000


def test_a_counter_that_was_reset_has_no_rate():
    assert rates.compute_rate(Count(10**12, 0.0), Count(4_000, 5.0), most_per_s=25e9) is None
    assert rates.compute_rate(Count((1 << 64) - 1_000, 0.0), Count(4_000, 5.0)) is None


def test_a_clock_that_stands_still_or_runs_back_gives_no_rate():
    assert rates.compute_rate(Count(1, 5.0), Count(2, 5.0)) is None
    assert rates.compute_rate(Count(1, 5.0), Count(2, 4.0)) is None


def test_what_is_left_out_is_forgotten():
    known: rates.Rates[str] = rates.Rates()
    assert known.update({"a": 0, "b": 0}, 0.0, {}) == {}
    assert known.update({"a": 10}, 1.0, {}) == {"a": 10}
    assert known.update({"a": 20, "b": 10}, 2.0, {}) == {"a": 10}
    assert known.update({"a": 5, "b": 30}, 3.0, {"a": 100}) == {"b": 20}
