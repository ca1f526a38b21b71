"""Spot, wait or on-demand for one workload that waits for nodes, with the reason.

Work with a deadline follows `deadline`: the plan with the lowest expected cost. Two rules stand above it. A choice
that may miss the deadline is not taken, and work waits no longer than its owner allows. Work without a deadline takes
spot if breaks do not make it dearer than on-demand. It waits for spot only as long as its owner says.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from math import log, log10
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from kgwe.scaling.spot.deadline import Choice, Situation, Terms, plan_deadline
from kgwe.scaling.spot.run_rates import RunRates

if TYPE_CHECKING:
    from kgwe.scaling.spot.deadline import DeadlinePlan

_HOUR_S: Final = 3600.0
#: Hours over which the risk of work without a known run time is judged.
_USUAL_RUN_H: Final = 4.0
#: Age of a run that was not observed: capacity that is there at any moment is rarely new.
_USUAL_AGE_H: Final = 1.0
#: Plans are made for these times, in hours; longer ones have slack enough.
_TIMES_H: Final = (12.0, 24.0, 48.0, 96.0, 192.0, 384.0, 768.0)
_RESTARTS_H: Final = (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 24.0)
_STEPS: Final = 240
_LEAST_STEP_H: Final = 0.2
_MOST_PLANS: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Work that waits. Times are in seconds."""

    nodes: int = 1
    work_s: float | None = None
    """Work that is left; None: not known."""
    left_s: float | None = None
    """Time until the deadline; None: it has none."""
    waited_s: float = 0.0
    max_wait_s: float | None = None
    restart_s: float = 180.0
    checkpoint_s: float | None = None
    """At most so much work is lost by a break; None: all of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Market:
    """What can be bought for the work. Prices are per hour and node; None: there is no such offer."""

    spot: float | None
    on_demand: float | None
    is_available: bool
    """Whether the provider has not refused spot lately."""
    rates: RunRates
    age_h: float | None = None
    """Age of the present run; None: not known."""
    launch_s: float = 300.0
    """How long a new node takes until its GPUs are ready."""

    @property
    def run_age_h(self) -> float:
        return _USUAL_AGE_H if self.age_h is None else self.age_h


class Verdict(NamedTuple):
    """A choice with its reason."""

    choice: Choice
    reason: str
    message: str


def choose_capacity(job: Job, market: Market, plans: PlanBook) -> Verdict:
    """Decide what is bought for the work now."""
    certain = _choose_without_doubt(job, market)
    if certain is not None:
        return certain
    if job.left_s is not None:
        return _choose_by_deadline(job, market, plans)
    return _choose_without_deadline(job, market)


def _choose_without_doubt(job: Job, market: Market) -> Verdict | None:
    if market.spot is None:
        return Verdict(Choice.ON_DEMAND, "NoSpotOffer", "no pool has spot nodes for it")
    if market.on_demand is None:
        if market.is_available:
            return Verdict(Choice.SPOT, "OnlySpotOffered", "no pool has on-demand nodes for it")
        return Verdict(Choice.WAIT, "OnlySpotOffered", "no pool has on-demand nodes for it, and spot is away")
    if market.spot >= market.on_demand:
        return Verdict(Choice.ON_DEMAND, "SpotNotCheaper", "spot costs as much as on-demand")
    if job.left_s is not None and job.left_s <= 0:
        choice = Choice.SPOT if market.is_available else Choice.ON_DEMAND
        return Verdict(choice, "DeadlinePassed", "its deadline has passed: it does not wait")
    return None


def _choose_without_deadline(job: Job, market: Market) -> Verdict:
    if market.is_available:
        share = (market.spot or 0.0) / (market.on_demand or 1.0)
        lost = estimate_lost(job, market)
        if share >= 1.0 - lost:
            text = f"breaks would cost {lost:.0%} of the time, more than spot saves"
            return Verdict(Choice.ON_DEMAND, "SpotBreaksTooOften", text)
        return Verdict(Choice.SPOT, "SpotCheaper", f"spot costs {share:.0%} of on-demand; breaks cost {lost:.0%}")
    if job.max_wait_s is None:
        return Verdict(Choice.ON_DEMAND, "SpotAway", "the provider has no spot nodes, and it names no time to wait")
    if job.waited_s < job.max_wait_s:
        left = (job.max_wait_s - job.waited_s) / _HOUR_S
        return Verdict(Choice.WAIT, "WaitsForSpot", f"the provider has no spot nodes; it waits {left:.1f} h more")
    return Verdict(Choice.ON_DEMAND, "WaitedLongEnough", "it has waited for spot as long as it allows")


def estimate_lost(job: Job, market: Market) -> float:
    """Return the share of the time on spot that breaks cost: restarts, and work that must be done again."""
    run_h = job.work_s / _HOUR_S if job.work_s else _USUAL_RUN_H
    survival = max(market.rates.estimate_survival(market.run_age_h, run_h), 1e-9)
    breaks_per_h = -log(survival) / run_h
    # On average half a checkpoint interval is lost; without checkpoints half of the work.
    again_h = (run_h if job.checkpoint_s is None else min(job.checkpoint_s / _HOUR_S, run_h)) / 2
    return min(breaks_per_h * (again_h + (job.restart_s + market.launch_s) / _HOUR_S), 1.0)


def _choose_by_deadline(job: Job, market: Market, plans: PlanBook) -> Verdict:
    if job.work_s is None or job.left_s is None:
        return Verdict(Choice.ON_DEMAND, "RunTimeUnknown", "it has a deadline, and its run time is not known")
    start_s = job.restart_s + market.launch_s
    slack_s = job.left_s - job.work_s - start_s
    slack = f"{slack_s / _HOUR_S:.1f} h of slack"
    if slack_s <= 0:
        return Verdict(Choice.ON_DEMAND, "NoSlack", "it needs all of the time until its deadline")
    wanted = plans.choose(job, market)
    if wanted is Choice.SPOT and slack_s < start_s + (
        job.work_s if job.checkpoint_s is None else min(job.checkpoint_s, job.work_s)
    ):
        return Verdict(Choice.ON_DEMAND, "BreakWouldMissDeadline", f"a break of spot could miss its deadline: {slack}")
    if wanted is Choice.WAIT and job.max_wait_s is not None and job.waited_s >= job.max_wait_s:
        return Verdict(Choice.ON_DEMAND, "WaitedLongEnough", "it has waited for spot as long as it allows")
    if wanted is Choice.WAIT and slack_s < start_s:
        return Verdict(Choice.ON_DEMAND, "WaitWouldMissDeadline", f"waiting could miss its deadline: {slack}")
    if wanted is Choice.SPOT:
        risk = 1.0 - market.rates.estimate_survival(market.run_age_h, job.work_s / _HOUR_S)
        return Verdict(Choice.SPOT, "SpotCheaper", f"spot breaks with a probability of {risk:.0%}; {slack}")
    if wanted is Choice.WAIT:
        return Verdict(Choice.WAIT, "WaitsForSpot", f"waiting for spot is cheaper than on-demand; {slack}")
    return Verdict(Choice.ON_DEMAND, "OnDemandCheaper", f"with {slack}, breaks would cost more than spot saves")


class _PlanKey(NamedTuple):
    rates: RunRates
    price: float
    restart_h: float
    time_h: float


@dataclass(slots=True)
class PlanBook:
    """Plans by rates, prices and times, so that few are made. Values are rounded: to the safe side where it matters."""

    most_new: int = 4
    """Plans that may be made in a round; what has none follows spot while it is there, and waits while it is away."""
    _plans: OrderedDict[_PlanKey, DeadlinePlan] = field(default_factory=OrderedDict)
    _made: int = 0

    def begin_round(self) -> None:
        self._made = 0

    def choose(self, job: Job, market: Market) -> Choice:
        """Return the choice with the lowest expected cost. It keeps no deadline by itself."""
        plan = self._find_plan(job, market)
        if plan is None or job.left_s is None or job.work_s is None:
            return Choice.SPOT if market.is_available else Choice.WAIT
        start_h = (job.restart_s + market.launch_s) / _HOUR_S
        work_h = job.work_s / _HOUR_S
        # More time than the plan covers is slack enough; the slack decides.
        time_h = min(job.left_s / _HOUR_S, (plan.table.shape[0] - 1) * plan.step_h)
        now = Situation(
            np.array([time_h]),
            np.array([min(work_h, time_h - start_h) if time_h > start_h else work_h]),
            np.array([int(Choice.WAIT)]),
            np.array([market.is_available]),
            np.array([market.run_age_h]),
        )
        found = Choice(int(plan.choose(now)[0]))
        # Spot that is not held is not observed: waiting would not show that it has become more stable.
        return Choice.SPOT if found is Choice.WAIT and market.is_available else found

    def _find_plan(self, job: Job, market: Market) -> DeadlinePlan | None:
        key = _make_key(job, market)
        if key in self._plans:
            self._plans.move_to_end(key)
            return self._plans[key]
        if self._made >= self.most_new:
            return None
        self._made += 1
        terms = Terms(on_demand=1.0, spot=key.price, restart_h=key.restart_h)
        step_h = max(key.time_h / _STEPS, _LEAST_STEP_H)
        plan = plan_deadline(key.rates, terms, time_h=key.time_h, work_h=key.time_h, step_h=step_h)
        self._plans[key] = plan
        while len(self._plans) > _MOST_PLANS:
            self._plans.popitem(last=False)
        return plan


def _make_key(job: Job, market: Market) -> _PlanKey:
    work_h, left_h = (job.work_s or 0.0) / _HOUR_S, (job.left_s or 0.0) / _HOUR_S
    again_h = work_h / 2 if job.checkpoint_s is None else min(job.checkpoint_s / _HOUR_S, work_h) / 2
    restart_h = again_h + (job.restart_s + market.launch_s) / _HOUR_S
    share = (market.spot or 0.0) / (market.on_demand or 1.0)
    return _PlanKey(
        RunRates(*(tuple(map(_round, each)) for each in (market.rates.available, market.rates.away))),
        round(share * 20) / 20,
        _round_up(restart_h, _RESTARTS_H),
        _round_up(left_h, _TIMES_H),
    )


def _round_up(value: float, grid: tuple[float, ...]) -> float:
    return next((each for each in grid if value <= each), grid[-1])


def _round(rate: float) -> float:
    """Round to two digits."""
    return round(rate, 1 - int(log10(rate) // 1)) if rate > 0 else 0.0
