"""Rates of spot runs and the risk of gangs, learned from observations."""

from __future__ import annotations

import math

import numpy as np
import pytest

from kgwe.scaling.spot.gang_risk import GangRisk
from kgwe.scaling.spot.run_rates import TYPICAL, RunHistory, RunRates, pool_rates


def observe(history: RunHistory, runs: list[tuple[bool, float]], step: float = 0.05) -> RunHistory:
    for is_available, hours in runs:
        for _ in range(round(hours / step)):
            history.observe(is_available=is_available, hours=step)
    return history


def test_without_observations_the_rates_are_those_of_other_pools():
    rates = RunHistory().estimate_rates()
    assert rates.available == pytest.approx(TYPICAL.available)
    assert rates.away == pytest.approx(TYPICAL.away)


def test_ends_are_counted_at_the_age_that_the_run_had():
    history = observe(RunHistory(half_life_h=1e9), [(True, 0.2), (False, 0.5)] * 40 + [(True, 6.0)])
    rates = history.estimate_rates(prior_hours=1e-9)
    # 40 ends in 40 x 0.2 h and the first quarter hour of the long run.
    assert rates.available[0] == pytest.approx(40 / 8.25, rel=0.01)
    assert max(rates.available[1:]) == pytest.approx(0, abs=1e-6)


def test_recent_observations_count_more():
    history = observe(RunHistory(half_life_h=10.0), [(True, 0.5), (False, 0.5)] * 20 + [(True, 100.0)])
    flat = observe(RunHistory(half_life_h=1e9), [(True, 0.5), (False, 0.5)] * 20 + [(True, 100.0)])
    assert (
        history.estimate_rates(prior_hours=0.1).available[3] < flat.estimate_rates(prior_hours=0.1).available[3] + 0.2
    )


def test_survival_multiplies_over_the_ages():
    rates = RunRates((2.0, 1.0, 0.5, 0.1), (1.0,) * 4)
    expected = math.exp(-(2.0 * 0.25 + 1.0 * 0.75 + 0.5 * 1.0))
    assert rates.estimate_survival(0.0, 2.0) == pytest.approx(expected)
    assert rates.estimate_survival(5.0, 3.0) == pytest.approx(math.exp(-0.3))
    assert rates.estimate_survival(1.0, 0.0) == 1.0


def test_pools_count_the_same_however_long_they_were_observed():
    short = observe(RunHistory(half_life_h=1e9), [(True, 0.2), (False, 0.2)] * 10)
    long = observe(RunHistory(half_life_h=1e9), [(True, 0.2), (False, 0.2)] * 500)
    assert pool_rates([short, long]).available[0] == pytest.approx(pool_rates([long]).available[0], rel=0.05)


def test_common_losses_are_not_multiplied_by_the_size_of_the_gang():
    """All 16 nodes go at once, every 10 hours on average: the gang is at the risk of one node."""
    random = np.random.default_rng(5)
    risk = GangRisk(16)
    for _ in range(400):
        for _ in range(round(random.exponential(10.0) / 0.1) + 1):
            risk.observe(16, 0.1)
        for _ in range(5):
            risk.observe(0, 0.1)
    predicted = risk.estimate_break(1.0, age_h=2.0)
    truth = 1 - math.exp(-0.1)
    product = 1 - (1 - truth) ** 16
    assert abs(predicted / truth - 1) < 0.5
    assert predicted < product / 3
