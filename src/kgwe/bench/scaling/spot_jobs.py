"""Jobs with a deadline replayed on a spot trace: all starts at once, step by step, under one rule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from kgwe.scaling.spot.deadline import Choice, DeadlinePlan, Situation, Terms, keep_deadline, plan_deadline
from kgwe.scaling.spot.run_rates import RunHistory

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from kgwe.bench.scaling.data import SpotTrace

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]
    Flags = NDArray[np.bool_]

_TINY: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Pool:
    """A trace of one pool: whether spot is available in each step, and the age of the run at its beginning."""

    name: str
    is_available: Flags
    age_h: Floats
    step_h: float


def make_pool(trace: SpotTrace) -> Pool:
    """Return a trace as availability of one node."""
    available = trace.nodes > 0
    changed = np.r_[True, available[1:] != available[:-1]]
    begun = np.maximum.accumulate(np.where(changed, np.arange(len(available)), 0))
    ages = np.asarray((np.arange(len(available)) - begun) * trace.step_h, dtype=np.float64)
    return Pool(trace.name, available, ages, trace.step_h)


@dataclass(frozen=True, slots=True)
class Moment:
    """What a rule knows: the jobs as they are, the position in the trace, and what was asked for."""

    now: Situation
    step: Ints
    work_h: Floats
    deadline_h: Floats
    total_h: float
    terms: Terms


if TYPE_CHECKING:
    Rule = Callable[[Moment], Ints]


def run_greedy(moment: Moment) -> Ints:
    """Spot when available, else wait."""
    return np.where(moment.now.is_available, int(Choice.SPOT), int(Choice.WAIT))


def run_spot_else_on_demand(moment: Moment) -> Ints:
    """Spot when available, else on-demand."""
    return np.where(moment.now.is_available, int(Choice.SPOT), int(Choice.ON_DEMAND))


def run_uniform_progress(moment: Moment) -> Ints:
    """Spot when available; on-demand while behind a uniform progress ("Can't Be Late", NSDI'24)."""
    now, pace = moment.now, moment.total_h / moment.deadline_h
    passed = moment.deadline_h - now.time_h
    done = moment.total_h - moment.work_h
    without_spot = np.where(done < passed * pace, int(Choice.ON_DEMAND), int(Choice.WAIT))
    choice = np.where(now.is_available, int(Choice.SPOT), without_spot)
    ahead = done >= (passed + 2 * moment.terms.restart_h) * pace
    return np.where((now.running == Choice.ON_DEMAND) & ~ahead, int(Choice.ON_DEMAND), choice)


BASELINES: Final[dict[str, Rule]] = {
    "greedy": run_greedy,
    "uniform_progress": run_uniform_progress,
    "spot_else_on_demand": run_spot_else_on_demand,
}


@dataclass(frozen=True, slots=True)
class PlannedRule:
    """KGWE's policy: the plan made last, from what the pool had shown by then."""

    plans: Sequence[DeadlinePlan]
    every: int

    def __call__(self, moment: Moment) -> Ints:
        choice = np.zeros(len(moment.step), dtype=np.int64)
        period = moment.step // self.every
        for each in np.unique(period):
            mine = period == each
            now = moment.now
            part = Situation(
                now.time_h[mine], now.work_h[mine], now.running[mine], now.is_available[mine], now.age_h[mine]
            )
            choice[mine] = self.plans[each].choose(part)
        return choice


def plan_pool(pool: Pool, terms: Terms, *, time_h: float, work_h: float, replan_h: float) -> PlannedRule:
    """Return the policy for a pool. Each plan knows only the steps before it."""
    every = max(round(replan_h / pool.step_h), 1)
    history, plans = RunHistory(), []
    for step, available in enumerate(pool.is_available):
        if step % every == 0:
            plans.append(plan_deadline(history.estimate_rates(), terms, time_h=time_h, work_h=work_h))
        history.observe(is_available=bool(available), hours=pool.step_h)
    return PlannedRule(plans, every)


@dataclass(slots=True)
class _Jobs:
    """The state of all jobs of a replay."""

    step: Ints
    deadline_h: Floats
    time_h: Floats
    work_h: Floats
    restart_left_h: Floats
    running: Ints
    cost: Floats
    is_forced: Flags
    is_missed: Flags


def replay_jobs(
    pool: Pool, starts: Ints, deadlines_h: Floats, *, work_h: float, terms: Terms, rule: Rule
) -> tuple[Floats, Flags]:
    """Return the cost of every job, and whether it missed its deadline."""
    count = len(starts)
    jobs = _Jobs(
        step=starts.copy(),
        deadline_h=deadlines_h,
        time_h=deadlines_h.copy(),
        work_h=np.full(count, work_h),
        restart_left_h=np.zeros(count),
        running=np.zeros(count, dtype=np.int64),
        cost=np.zeros(count),
        is_forced=np.zeros(count, dtype=bool),
        is_missed=np.zeros(count, dtype=bool),
    )
    live = np.arange(count)
    while len(live):
        choice = _choose(pool, jobs, live, total_h=work_h, terms=terms, rule=rule)
        _advance(pool, jobs, live, choice, terms)
        is_done = jobs.work_h[live] <= _TINY
        is_late = ~is_done & (jobs.time_h[live] <= _TINY)
        jobs.is_missed[live[is_late]] = True
        live = live[~is_done & ~is_late]
    return jobs.cost, jobs.is_missed


def _choose(pool: Pool, jobs: _Jobs, live: Ints, *, total_h: float, terms: Terms, rule: Rule) -> Ints:
    step, running, work = jobs.step[live], jobs.running[live], jobs.work_h[live]
    restart = np.where(running > 0, jobs.restart_left_h[live], 0.0)
    now = Situation(jobs.time_h[live], work + restart, running, pool.is_available[step], pool.age_h[step])
    choice = rule(Moment(now, step, work, jobs.deadline_h[live], total_h, terms))
    safe = keep_deadline(choice, now, restart_left_h=restart, work_h=work, terms=terms, until_h=pool.step_h)
    if not isinstance(rule, PlannedRule):
        # The published rules stay on-demand once the deadline forced them to it.
        jobs.is_forced[live] |= safe != choice
        safe = np.where(jobs.is_forced[live], int(Choice.ON_DEMAND), safe)
    return safe


def _advance(pool: Pool, jobs: _Jobs, live: Ints, choice: Ints, terms: Terms) -> None:
    """Let one step pass: restart, work, pay, and lose spot where it goes away."""
    runs, work = choice > 0, jobs.work_h[live]
    restart = np.where(runs & (choice != jobs.running[live]), terms.restart_h, jobs.restart_left_h[live])
    spent = np.where(runs, np.minimum(restart, pool.step_h), 0.0)
    done = np.where(runs, np.minimum(pool.step_h - spent, work), 0.0)
    price = np.where(choice == Choice.SPOT, terms.spot, terms.on_demand)
    # An instance is paid until the work is done.
    jobs.cost[live] += np.where(runs, np.where(done >= work - _TINY, spent + work, pool.step_h) * price, 0.0)
    jobs.work_h[live] = work - done
    jobs.time_h[live] -= pool.step_h
    jobs.step[live] += 1
    following = np.minimum(jobs.step[live], len(pool.is_available) - 1)
    is_lost = (choice == Choice.SPOT) & ~pool.is_available[following]
    jobs.running[live] = np.where(is_lost, int(Choice.WAIT), choice)
    jobs.restart_left_h[live] = np.where(runs & ~is_lost, restart - spent, 0.0)


def bound_costs(pool: Pool, starts: Ints, deadlines_h: Floats, work_h: float, terms: Terms) -> Floats:
    """Return costs with the future known and restarts for free: no policy can be below."""
    hours = np.r_[0.0, np.cumsum(pool.is_available) * pool.step_h]
    ends = np.minimum(starts + np.rint(deadlines_h / pool.step_h).astype(np.int64), len(pool.is_available))
    spot = np.minimum(hours[ends] - hours[starts], work_h)
    return np.asarray(spot * terms.spot + (work_h - spot) * terms.on_demand, dtype=np.float64)
