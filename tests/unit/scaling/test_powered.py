"""How many nodes stay powered: forecasts with corrected margins."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kgwe import errors
from kgwe.bench.scaling.scaledown import delay_launches, follow, measure
from kgwe.scaling.powered import PoweredNodes, PowerSettings


def noisy_day(days: int, seed: int = 1) -> np.ndarray:
    random = np.random.default_rng(seed)
    minutes = np.arange(1440 * days)
    return np.rint(300 + 40 * np.sin(minutes / 1440 * 2 * np.pi) + random.normal(0, 5, len(minutes)))


def test_most_powered_nodes_are_used_and_few_steps_are_short():
    demand = noisy_day(6)
    found = measure(demand, follow(demand, PoweredNodes()), 2880)
    assert found["used_share"] > 0.93
    assert found["shortages_per_day"] <= 1.0
    assert found["changes_per_day"] <= 12


def test_a_jump_is_powered_within_a_few_minutes_and_a_fall_later():
    policy = PoweredNodes()
    for _ in range(600):
        policy.decide(100.0)
    answers = [policy.decide(200.0) for _ in range(60)]
    assert answers[3] >= 200
    later = [policy.decide(100.0) for _ in range(1440)]
    assert later[0] >= 200, "nodes are not powered off in the first minute of a fall"
    assert later[-1] < 130


def test_constant_demand_is_met_with_almost_nothing_idle_after_a_day():
    demand = np.full(4320, 250.0)
    powered = follow(demand, PoweredNodes())
    assert powered.min() >= 250
    assert powered[1440:].max() <= 254


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(0, 500), min_size=20, max_size=120))
def test_the_decision_depends_on_the_past_only(demand):
    whole, cut = PoweredNodes(), PoweredNodes()
    answers = [whole.decide(float(each)) for each in demand]
    half = len(demand) // 2
    assert [cut.decide(float(each)) for each in demand[:half]] == answers[:half]
    assert all(each >= 0 for each in answers)


def test_fewer_allowed_changes_make_fewer_changes():
    demand = noisy_day(12) + np.repeat(np.random.default_rng(3).normal(0, 25, 12 * 24), 60)
    found = [
        measure(demand, follow(demand, PoweredNodes(PowerSettings(changes_per_day=each))), 4320)["changes_per_day"]
        for each in (2.0, 20.0)
    ]
    assert found[0] < found[1]


def test_slow_launches_delay_only_increases():
    powered = np.array([5.0, 5.0, 9.0, 9.0, 9.0, 4.0, 8.0])
    assert delay_launches(powered, 2).tolist() == [5.0, 5.0, 5.0, 5.0, 9.0, 4.0, 4.0]


@pytest.mark.parametrize("wrong", [{"margin": -1.0}, {"changes_per_day": -1.0}, {"level_min": 0}])
def test_settings_that_make_no_sense_are_refused(wrong):
    with pytest.raises(errors.Permanent):
        PowerSettings(**wrong)
