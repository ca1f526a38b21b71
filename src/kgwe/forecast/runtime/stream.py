"""Runs as they were submitted and ended: what was known at a moment, and nothing later.

A feature is computed from runs that had ended before the query was submitted, and from the fact that other runs were
still running then. Durations are handled as log(1 + seconds).
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from kgwe.forecast.runtime.levels import EMPTY, NAN, Decayed, Level
from kgwe.forecast.runtime.ticks import Ticks

if TYPE_CHECKING:
    from kgwe.forecast.runtime.query import Query
    from kgwe.forecast.runtime.schema import Schema

# Time constants of the recent error in seconds: from the present congestion to the trend of the day.
_TAUS: Final = (30.0, 120.0, 900.0, 7200.0)
_WINDOWS: Final = (10.0, 30.0, 60.0, 300.0)
_PRIOR_RUNS: Final = 2.0
_COMMON_PRIOR_RUNS: Final = 4.0
_MOST_RUNS: Final = 30.0
_FALLBACK: Final = math.log1p(600.0)
# A run beyond its estimate counts as two more seconds of work.
_LEAST_LEFT_S: Final = 2.0
_MEMORY: Final = 16
# Features look at this many running runs, the newest: the time of a prediction stays bounded.
_MOST_RUNNING: Final = 256


@dataclass(slots=True)
class _Running:
    levels: tuple[Level, ...]
    lane: str
    user: str
    submitted_s: float
    estimate: float
    common: float
    is_estimated: bool
    """False: no run had ended before, so the estimate was a guess and its error says nothing."""
    numbers: tuple[float, ...]


@dataclass(slots=True)
class RunStream:
    """The state from which features are computed. It is fed in the order of time."""

    schema: Schema
    levels: dict[str, Level] = field(default_factory=dict)
    running: dict[str, _Running] = field(default_factory=dict)
    _ends: list[tuple[float, int, str, float]] = field(default_factory=list)
    _sequence: int = 0
    _recent: tuple[Decayed, ...] = field(default_factory=lambda: tuple(Decayed(tau) for tau in _TAUS))
    _arrivals: deque[float] = field(default_factory=lambda: deque(maxlen=512))
    _departures: deque[float] = field(default_factory=lambda: deque(maxlen=512))
    _ticks: Ticks = field(default_factory=Ticks)
    _lanes: deque[str] = field(default_factory=lambda: deque(maxlen=_MEMORY))

    def submit(self, uid: str, query: Query) -> None:
        """Count a run as running from now on."""
        if uid in self.running:
            return
        estimate = self.estimate(query)
        levels = tuple(self.levels.setdefault(key, Level()) for key in find_keys(query))
        for level in levels:
            level.running += 1
            level.submitted_s = query.submitted_s
        lane, is_estimated = query.keys[query.lane], levels[-1].ended > 0
        common = self.estimate_common(query)
        self.running[uid] = _Running(
            levels, lane, query.user, query.submitted_s, estimate, common, is_estimated, query.numbers
        )
        self._arrivals.append(query.submitted_s)

    def end(self, uid: str, lasted_s: float, at_s: float) -> None:
        """Count the end of a run. A run that was never submitted is ignored."""
        run = self.running.pop(uid, None)
        if run is None:
            return
        value = math.log1p(max(lasted_s, 0.0))
        error, deviation = (value - run.estimate, value - run.common) if run.is_estimated else (0.0, 0.0)
        for level in run.levels:
            level.running -= 1
            level.end(value, error, deviation, at_s, run.numbers)
        for recent in self._recent:
            recent.add(error, at_s)
        self._departures.append(at_s)
        self._ticks.observe(at_s)
        self._lanes.append(run.lane)

    def forget(self, uid: str) -> None:
        """Drop a run that was cancelled or whose end is not known."""
        run = self.running.pop(uid, None)
        for level in () if run is None else run.levels:
            level.running -= 1

    def schedule_end(self, uid: str, lasted_s: float, at_s: float) -> None:
        """Remember an end of a replay. No feature sees it before `advance` has reached its time."""
        self._sequence += 1
        heapq.heappush(self._ends, (at_s, self._sequence, uid, lasted_s))

    def advance(self, now_s: float) -> list[tuple[str, float]]:
        """Apply the scheduled ends up to now. Return the runs and the seconds they lasted."""
        due = []
        while self._ends and self._ends[0][0] <= now_s:
            at_s, _, uid, lasted_s = heapq.heappop(self._ends)
            self.end(uid, lasted_s, at_s)
            due.append((uid, lasted_s))
        return due

    def estimate(self, query: Query) -> float:
        """Return the estimate in log seconds: the mean of each key, drawn to that of the next coarser one."""
        value, is_known = _FALLBACK, False
        for key in ("", *reversed(query.keys)):
            level = self.levels.get(key)
            if level is None or not level.ended:
                continue
            mean = 0.5 * (level.slow + level.fast) if key else level.slow
            weight = min(level.ended, _MOST_RUNS)
            value = (weight * mean + _PRIOR_RUNS * value) / (weight + _PRIOR_RUNS) if is_known else mean
            is_known = True
        return value

    def estimate_common(self, query: Query) -> float:
        """Return the long mean of the keys that users share: what a run of any user takes."""
        value, prior = _FALLBACK, 0.0
        for key in ("", *reversed(query.keys[query.shared :])):
            level = self.levels.get(key)
            if level is not None and level.ended:
                value = (level.ended * level.mean + prior * value) / (level.ended + prior)
                prior = _COMMON_PRIOR_RUNS
        return value

    def describe(self, query: Query) -> list[float]:
        """Return the features of a query, in the order of the schema. The first is the estimate."""
        now_s = query.submitted_s
        estimate = self.estimate(query)
        row = [estimate, self.estimate_common(query) - estimate, *self._ticks.find(now_s)]
        for key in find_keys(query):
            row += self.levels.get(key, EMPTY).describe(estimate, now_s)
        for recent in self._recent:
            row += recent.read(now_s)
        row += self._describe_queue(query, now_s)
        row += self._describe_arrivals(now_s)
        row += ((now_s % 86400.0) / 3600.0, now_s // 86400.0 % 7.0)
        row += query.numbers
        before = self.levels.get("user:" + query.user, EMPTY).numbers
        row += (
            (now - then for now, then in zip(query.numbers, before, strict=True))
            if before
            else ([NAN] * len(query.numbers))
        )
        return row

    def _describe_queue(self, query: Query, now_s: float) -> list[float]:
        """Describe the runs that have not ended: how much work is left, and how late they are."""
        lane = query.keys[query.lane]
        congestion = self._recent[1].read(now_s)[0]
        left: list[float] = []
        lane_left = oldest = late = 0.0
        latest = own_latest = -math.inf
        for _, run in zip(range(_MOST_RUNNING), reversed(self.running.values()), strict=False):
            elapsed = max(now_s - run.submitted_s, 0.0)
            expected = math.expm1(run.estimate + congestion)
            left.append(max(expected - elapsed, _LEAST_LEFT_S))
            if run.lane == lane:
                lane_left += left[-1]
            oldest = max(oldest, elapsed)
            late += elapsed > expected
            ratio = math.log1p(elapsed) - run.estimate
            latest = max(latest, ratio)
            if run.user == query.user:
                own_latest = max(own_latest, ratio)
        left.sort(reverse=True)
        return [
            sum(left),
            lane_left,
            oldest,
            late,
            latest if left else NAN,
            own_latest if own_latest > -math.inf else NAN,
            *[*left[:3], 0.0, 0.0, 0.0][:3],
            self._lanes.count(lane),
            sum(at_s > now_s - 60.0 for at_s in self._departures),
        ]

    def _describe_arrivals(self, now_s: float) -> list[float]:
        arrivals = self._arrivals
        while arrivals and arrivals[0] <= now_s - _WINDOWS[-1]:
            arrivals.popleft()
        while self._departures and self._departures[0] <= now_s - _WINDOWS[-1]:
            self._departures.popleft()
        return [float(sum(at_s > now_s - window for at_s in arrivals)) for window in _WINDOWS]


def find_keys(query: Query) -> tuple[str, ...]:
    """Return all keys of a query: its own, fine to coarse, its user, and the key of all runs."""
    return (*query.keys, "user:" + query.user, "")
