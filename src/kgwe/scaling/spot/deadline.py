"""A job with a deadline: spot, on-demand, or wait.

A dynamic programme over work left, time left, what runs now and the age of the present spot run finds the choice with
the lowest expected cost. Rates at which spot comes and goes are learned from the pool's past (`run_rates`), so the plan
is made again as they change. One rule stands above the plan: a choice that could miss the deadline is not taken.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Final

import numpy as np

from kgwe import errors
from kgwe.scaling.spot.run_rates import AGES_H, PIECES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kgwe.scaling.spot.run_rates import RunRates

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]
    Flags = NDArray[np.bool_]
    Table = NDArray[np.int8]

STEP_H: Final = 0.2
_NEVER: Final = 1e9
_TINY: Final = 1e-9


class Choice(IntEnum):
    """What a job runs on until it is asked again."""

    WAIT = 0
    SPOT = 1
    ON_DEMAND = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Prices per hour, and the hours that every start of an instance loses."""

    on_demand: float
    spot: float
    restart_h: float

    def __post_init__(self) -> None:
        if not (self.spot >= 0 and self.on_demand > 0 and self.restart_h >= 0):
            raise errors.Permanent("prices and the restart time of a job must not be negative")


@dataclass(frozen=True, slots=True)
class Situation:
    """Jobs as they are now, one entry per job. Restarts under way count in `work_h` while the instance stays."""

    time_h: Floats
    work_h: Floats
    running: Ints
    """A Choice each."""
    is_available: Flags
    age_h: Floats
    """Age of the present spot run: available, or away."""


@dataclass(frozen=True, slots=True)
class DeadlinePlan:
    """The best choice by time left, work left, what runs, and the spot run."""

    table: Table
    step_h: float

    def choose(self, now: Situation) -> Ints:
        """Return a Choice per job. It keeps no deadline by itself: see `keep_deadline`."""
        work = np.clip(np.rint(now.work_h / self.step_h).astype(np.int64), 1, self.table.shape[1] - 1)
        # The slack decides, so its rounding must not depend on the rounding of the work.
        slack = np.rint((now.time_h - now.work_h) / self.step_h).astype(np.int64)
        time = np.clip(work + slack, 0, self.table.shape[0] - 1)
        ages = np.searchsorted(np.array(AGES_H) - _TINY, now.age_h, side="right")
        spot = np.where(now.is_available, 0, PIECES) + ages
        found = self.table[time, work, now.running, spot].astype(np.int64)
        return np.where(~now.is_available & (found == Choice.SPOT), int(Choice.WAIT), found)


def keep_deadline(
    choice: Ints, now: Situation, *, restart_left_h: Floats, work_h: Floats, terms: Terms, until_h: float
) -> Ints:
    """Replace choices after which an on-demand instance might start too late.

    The jobs are asked again in `until_h` hours. By then spot may be gone, and a restart is needed.
    """
    restart = np.where(now.running == Choice.SPOT, restart_left_h, terms.restart_h)
    done = np.where(choice == Choice.SPOT, np.maximum(until_h - restart, 0.0), 0.0)
    left = np.maximum(work_h - done, 0.0)
    is_safe = (left <= _TINY) | (now.time_h - until_h >= left + terms.restart_h - _TINY)
    return np.where(is_safe, choice, int(Choice.ON_DEMAND))


def plan_deadline(
    rates: RunRates, terms: Terms, *, time_h: float, work_h: float, step_h: float = STEP_H
) -> DeadlinePlan:
    """Return the plan for all jobs with up to `time_h` hours left and `work_h` hours of work."""
    if terms.restart_h > 2 * step_h:
        step_h = terms.restart_h / 2
    return _Programme(rates, terms, time_h, work_h, step_h).solve()


class _Programme:
    """Backward induction over time. Arrays are [work, running, spot run]: available runs, then runs away."""

    def __init__(self, rates: RunRates, terms: Terms, time_h: float, work_h: float, step_h: float) -> None:
        self.terms, self.step_h = terms, step_h
        self.times = round(time_h / step_h) + 1
        # A restart adds to the work left.
        self.work = np.arange(round((work_h + terms.restart_h) / step_h) + 3) * step_h
        self.end = 1.0 - np.exp(-np.array(rates.available + rates.away) * step_h)
        widths = np.diff([0.0, *AGES_H])
        once = [*np.minimum(step_h / widths, 1.0), 0.0]
        self.grow = np.array(once + once)
        older = [*range(1, PIECES), PIECES - 1]
        self.older = np.array(older + [PIECES + each for each in older])
        self.other = np.array([PIECES] * PIECES + [0] * PIECES)
        fresh = terms.on_demand * (self.work + terms.restart_h)
        last = np.stack([fresh, fresh, terms.on_demand * self.work], axis=1)
        last[0] = 0.0
        self.last = np.repeat(last[:, :, None], 2 * PIECES, axis=2)

    def solve(self) -> DeadlinePlan:
        table = np.full((self.times, *self.last.shape), int(Choice.ON_DEMAND), dtype=np.int8)
        value = self.last
        for time in range(1, self.times):
            costs = self._cost_choices(value)
            # No slack for anything else than on-demand.
            late = (time - 1) * self.step_h < self.work + self.terms.restart_h - _TINY
            value, chosen = costs.min(axis=0), costs.argmin(axis=0)
            value[late], chosen[late] = self.last[late], int(Choice.ON_DEMAND)
            value[0] = 0.0
            table[time] = chosen
        return DeadlinePlan(table, self.step_h)

    def _cost_choices(self, value: Floats) -> Floats:
        """Return the expected cost of every choice, given the value one step later."""
        step, end, lost = self.step_h, self.end, self.terms.restart_h / self.step_h
        lasts = (1.0 - self.grow) * value + self.grow * value[:, :, self.older]
        ends = value[:, :, self.other]
        after = (1.0 - end) * lasts + end * ends
        costs = np.empty((3, *value.shape))
        costs[Choice.WAIT] = after[:, Choice.WAIT, None]
        stays, breaks = lasts[:, Choice.SPOT], ends[:, Choice.WAIT]
        half = _advance(breaks, 0.0)
        # A run that ends in the step ends in its middle, on average.
        part = max(0.5 - lost, 0.0)
        paid = self.terms.spot * step
        begun = (1.0 - end) * (paid + _advance(stays, lost)) + end * (paid / 2 + part * half + (1 - part) * breaks)
        kept = (1.0 - end) * (paid + _advance(stays, 0.0)) + end * (paid / 2 + 0.5 * (half + breaks))
        costs[Choice.SPOT] = begun[:, None]
        costs[Choice.SPOT, :, Choice.SPOT] = kept
        costs[Choice.SPOT, :, :, PIECES:] = _NEVER
        bought, paid = after[:, Choice.ON_DEMAND], self.terms.on_demand * step
        costs[Choice.ON_DEMAND] = (paid + _advance(bought, lost))[:, None]
        costs[Choice.ON_DEMAND, :, Choice.ON_DEMAND] = paid + _advance(bought, 0.0)
        return costs


def _advance(value: Floats, lost: float) -> Floats:
    """Return the value after a step of work. A restart needs `lost` steps of it, at most two."""
    result = np.empty_like(value)
    if lost <= 1.0:
        result[1:] = (1.0 - lost) * value[:-1] + lost * value[1:]
    else:
        result[:-1] = (2.0 - lost) * value[:-1] + (lost - 1.0) * value[1:]
        result[-1] = value[-1]
    result[0] = 0.0
    return result
