"""Spot, wait or on-demand for one workload."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kgwe.scaling.spot.choice import Job, Market, PlanBook, choose_capacity
from kgwe.scaling.spot.deadline import Choice
from kgwe.scaling.spot.run_rates import TYPICAL, RunRates

CALM = RunRates((0.01,) * 4, (1.0,) * 4)
HOUR = 3600.0


def decide(job: Job, plans: PlanBook | None = None, **market: Any) -> tuple[Choice, str]:
    values: dict[str, Any] = {"spot": 1.0, "on_demand": 3.0, "is_available": True, "rates": CALM, **market}
    found = choose_capacity(job, Market(**values), plans or PlanBook())
    return found.choice, found.reason


@pytest.mark.parametrize(
    ("job", "market", "expected"),
    [
        (Job(), {"spot": None}, (Choice.ON_DEMAND, "NoSpotOffer")),
        (Job(), {"on_demand": None}, (Choice.SPOT, "OnlySpotOffered")),
        (Job(), {"on_demand": None, "is_available": False}, (Choice.WAIT, "OnlySpotOffered")),
        (Job(), {"spot": 3.0}, (Choice.ON_DEMAND, "SpotNotCheaper")),
        (Job(), {}, (Choice.SPOT, "SpotCheaper")),
        (Job(work_s=4 * HOUR), {"rates": RunRates((1.0,) * 4, (1.0,) * 4)}, (Choice.ON_DEMAND, "SpotBreaksTooOften")),
        (Job(), {"is_available": False}, (Choice.ON_DEMAND, "SpotAway")),
        (Job(max_wait_s=10), {"is_available": False}, (Choice.WAIT, "WaitsForSpot")),
        (Job(max_wait_s=10, waited_s=10), {"is_available": False}, (Choice.ON_DEMAND, "WaitedLongEnough")),
        (Job(left_s=HOUR), {}, (Choice.ON_DEMAND, "RunTimeUnknown")),
        (Job(left_s=-1, work_s=HOUR), {}, (Choice.SPOT, "DeadlinePassed")),
        (Job(left_s=HOUR, work_s=HOUR), {}, (Choice.ON_DEMAND, "NoSlack")),
        (Job(left_s=3.1 * HOUR, work_s=2 * HOUR, checkpoint_s=HOUR), {}, (Choice.ON_DEMAND, "BreakWouldMissDeadline")),
        (Job(left_s=20 * HOUR, work_s=2 * HOUR, checkpoint_s=60), {}, (Choice.SPOT, "SpotCheaper")),
        (
            Job(left_s=20 * HOUR, work_s=2 * HOUR, checkpoint_s=60),
            {"is_available": False},
            (Choice.WAIT, "WaitsForSpot"),
        ),
        (
            Job(left_s=20 * HOUR, work_s=2 * HOUR, checkpoint_s=60, max_wait_s=60, waited_s=61),
            {"is_available": False},
            (Choice.ON_DEMAND, "WaitedLongEnough"),
        ),
    ],
)
def test_the_choice_and_its_reason(job: Job, market: dict[str, Any], expected: tuple[Choice, str]) -> None:
    assert decide(job, **market) == expected


@settings(max_examples=60, deadline=None)
@given(
    left_h=st.floats(0.1, 100),
    work_h=st.floats(0.1, 60),
    checkpoint_s=st.one_of(st.none(), st.floats(1, 7200)),
    is_available=st.booleans(),
    rates=st.sampled_from([CALM, TYPICAL]),
)
def test_no_choice_can_miss_a_deadline_that_on_demand_would_meet(
    *, left_h: float, work_h: float, checkpoint_s: float | None, is_available: bool, rates: RunRates
) -> None:
    """After the worst break, or one more wait, an on-demand node still ends the work in time."""
    job = Job(left_s=left_h * HOUR, work_s=work_h * HOUR, checkpoint_s=checkpoint_s, restart_s=180)
    choice, _ = decide(job, PLANS, is_available=is_available, rates=rates)
    start_s = 180 + 300
    assert not (choice is Choice.SPOT and not is_available)
    if choice is not Choice.ON_DEMAND:
        lost_s = min(checkpoint_s if checkpoint_s is not None else work_h * HOUR, work_h * HOUR)
        worst = 2 * start_s + (lost_s if choice is Choice.SPOT else 0.0)
        assert left_h * HOUR >= work_h * HOUR + worst - 1e-6


PLANS = PlanBook(most_new=1000)


def test_plans_are_bounded_and_work_without_one_still_gets_a_choice() -> None:
    plans = PlanBook(most_new=0)
    job = Job(left_s=20 * HOUR, work_s=2 * HOUR, checkpoint_s=60)
    assert decide(job, plans) == (Choice.SPOT, "SpotCheaper")
    assert decide(job, plans, is_available=False) == (Choice.WAIT, "WaitsForSpot")
