"""Jobs with a deadline: the plan, the rule above it, and replays."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kgwe import errors
from kgwe.bench.scaling.data import SpotTrace
from kgwe.bench.scaling.spot_jobs import BASELINES, bound_costs, make_pool, plan_pool, replay_jobs
from kgwe.scaling.spot.deadline import Choice, Situation, Terms, plan_deadline
from kgwe.scaling.spot.run_rates import TYPICAL

TERMS = Terms(on_demand=3.0, spot=1.0, restart_h=0.1)


def situation(*, time: float, work: float, running: Choice, available: bool, age: float = 0.0) -> Situation:
    return Situation(
        np.array([time]), np.array([work]), np.array([int(running)]), np.array([available]), np.array([age])
    )


@pytest.fixture(scope="module")
def plan():
    return plan_deadline(TYPICAL, TERMS, time_h=20.0, work_h=8.0)


def test_with_time_to_spare_a_job_waits_for_spot_and_takes_it(plan):
    away = situation(time=20.0, work=2.0, running=Choice.WAIT, available=False)
    there = situation(time=20.0, work=2.0, running=Choice.WAIT, available=True)
    assert plan.choose(away)[0] == Choice.WAIT
    assert plan.choose(there)[0] == Choice.SPOT


def test_without_slack_a_job_runs_on_demand(plan):
    now = situation(time=8.2, work=8.0, running=Choice.WAIT, available=True)
    assert plan.choose(now)[0] == Choice.ON_DEMAND


def test_spot_that_is_away_is_never_chosen(plan):
    for time in (5.0, 10.0, 20.0):
        for running in Choice:
            now = situation(time=time, work=4.0, running=running, available=False, age=1.0)
            assert plan.choose(now)[0] != Choice.SPOT


def test_a_spot_price_above_on_demand_is_never_paid():
    dear = plan_deadline(TYPICAL, Terms(on_demand=1.0, spot=1.5, restart_h=0.1), time_h=20.0, work_h=8.0)
    now = situation(time=20.0, work=4.0, running=Choice.WAIT, available=True)
    assert dear.choose(now)[0] != Choice.SPOT


def test_terms_that_make_no_sense_are_refused():
    with pytest.raises(errors.Permanent):
        Terms(on_demand=0.0, spot=1.0, restart_h=0.1)
    with pytest.raises(errors.Permanent):
        Terms(on_demand=1.0, spot=-1.0, restart_h=0.1)


def replay(nodes: list[int], deadline: float, restart_h: float, rule: str):
    pool = make_pool(SpotTrace("made", np.array(nodes), 0.25))
    terms = Terms(on_demand=3.0, spot=1.0, restart_h=restart_h)
    chosen = BASELINES.get(rule) or plan_pool(pool, terms, time_h=12.0, work_h=4.0, replan_h=6.0)
    starts, deadlines = np.array([0]), np.array([deadline])
    cost, missed = replay_jobs(pool, starts, deadlines, work_h=4.0, terms=terms, rule=chosen)
    return cost[0], missed[0], bound_costs(pool, starts, deadlines, 4.0, terms)[0]


@settings(max_examples=15, deadline=None)
@given(
    runs=st.lists(st.tuples(st.booleans(), st.integers(1, 12)), min_size=4, max_size=20),
    deadline=st.sampled_from([5.0, 6.5, 12.0]),
    restart_h=st.sampled_from([0.05, 0.2, 0.45]),
)
def test_no_rule_misses_a_deadline_or_costs_less_than_the_bound(runs, deadline, restart_h):
    nodes = ([int(up) for up, count in runs for _ in range(count)] * 49)[:49]
    for rule in ("kgwe", *BASELINES):
        cost, missed, bound = replay(nodes, deadline, restart_h, rule)
        assert not missed
        assert cost >= bound - 1e-9


def test_spot_without_interruption_costs_the_spot_price_and_one_restart():
    cost, missed, _ = replay([1] * 49, 12.0, 0.2, "kgwe")
    assert not missed
    assert cost == pytest.approx(4.2)


def test_a_plan_knows_only_what_happened_before_it():
    """Traces that differ only later have the same plans until then."""
    random = np.random.default_rng(2)
    nodes = (random.random(400) < 0.6).astype(int)
    other = nodes.copy()
    other[200:] = 1 - other[200:]
    rules = [
        plan_pool(make_pool(SpotTrace("t", each, 0.25)), TERMS, time_h=6.0, work_h=4.0, replan_h=10.0)
        for each in (nodes, other)
    ]
    same = [np.array_equal(a.table, b.table) for a, b in zip(rules[0].plans, rules[1].plans, strict=True)]
    assert all(same[:6])
    assert not all(same)
