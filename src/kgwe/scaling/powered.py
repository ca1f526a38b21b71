"""How many nodes stay powered: enough for the demand forecast, with few shortages and few changes.

Every minute the need of the next hour is forecast: the recent peak of demand, and a margin in units of the usual change
within ten minutes. Two corrections follow the outcome. The margin grows after a shortage and shrinks slowly without
one, so that shortages come as often as allowed. The gap that must be idle before nodes are powered off follows the
number of changes in the same way. Nodes are powered on at once, and never refused because of the number of changes.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import ceil
from typing import Final

from kgwe import errors

_DAY_MIN: Final = 1440
_STEP_MIN: Final = 10
_STEPS: Final = _DAY_MIN // _STEP_MIN
#: What a usual change is taken for before any was seen, and the largest that counts: outages teach nothing.
_FIRST_CHANGE: Final = 6.0
_LARGEST_CHANGE: Final = 30.0
_LEAST, _MOST = 0.3, 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerSettings:
    """What an operator allows, then what was tuned. Margins are in units of the usual change within ten minutes."""

    shortages_per_day: float = 0.35
    changes_per_day: float = 7.2
    margin: float = 1.39
    alarm: float = -0.354
    """Power on when demand and this margin exceed what is powered."""
    idle: float = 3.26
    """Power off when so much more than the margin is idle; less after a quiet time."""
    patience: float = 0.0074
    """By how much `idle` falls per minute without a change, for at most six hours."""
    level_min: int = 3
    peak_min: int = 45
    memory: float = 0.001
    """Weight of the last minute in the usual change."""
    shortage_gain: float = 0.02
    change_gain: float = 0.02

    def __post_init__(self) -> None:
        if min(self.shortages_per_day, self.changes_per_day, self.margin, self.idle) < 0:
            raise errors.Permanent("allowed shortages, allowed changes and margins must not be negative")
        if min(self.level_min, self.peak_min) < 1:
            raise errors.Permanent("the windows of the level and of the peak must be at least one minute")


@dataclass(slots=True)
class PoweredNodes:
    """The number of nodes to keep powered, minute by minute. Give it the demand of every minute in order."""

    settings: PowerSettings = field(default_factory=PowerSettings)
    powered: int = 0
    _minutes: int = 0
    _last: deque[float] = field(default_factory=lambda: deque(maxlen=_STEP_MIN + 1))
    _means: deque[float] = field(default_factory=deque)
    _usual: float = _FIRST_CHANGE
    _margin_factor: float = 1.0
    _idle_factor: float = 1.0
    _quiet_min: int = 0
    _step_demand: float = 0.0
    _step_powered: float = 0.0

    def decide(self, demand: float) -> int:
        """Return the number of nodes to power from the next minute on, after a minute with this demand."""
        self._learn(demand)
        recent = list(self._last)
        level = sum(recent[-self.settings.level_min :]) / min(len(recent), self.settings.level_min)
        before = self.powered
        self.powered = self._choose(level, max(self._means))
        is_change = self.powered != before
        self._quiet_min = 0 if is_change else self._quiet_min + 1
        expected = self.settings.changes_per_day / _DAY_MIN
        self._idle_factor = _limit(self._idle_factor + self.settings.change_gain * (is_change - expected))
        return self.powered

    def _choose(self, level: float, peak: float) -> int:
        margin = self.settings.margin * self._margin_factor * self._usual
        peak = max(peak, level)
        if level + self.settings.alarm * self._usual > self.powered:
            return ceil(peak + margin)
        idle = self.settings.idle - self.settings.patience * min(self._quiet_min, 360)
        if peak + margin + idle * self._idle_factor * self._usual < self.powered:
            return min(ceil(peak + margin), self.powered)
        return self.powered

    def _learn(self, demand: float) -> None:
        """Add a minute: to the windows, to the usual change, and every ten minutes to the outcome."""
        if self._minutes == 0:
            self.powered = ceil(demand + self.settings.margin * self._usual)
        self._minutes += 1
        self._last.append(demand)
        change = min(abs(demand - self._last[0]), _LARGEST_CHANGE)
        self._usual += self.settings.memory * (change - self._usual)
        last = list(self._last)[-_STEP_MIN:]
        self._means.append(sum(last) / len(last))
        if len(self._means) > self.settings.peak_min:
            self._means.popleft()
        self._step_demand += demand
        self._step_powered += self.powered
        if self._minutes % _STEP_MIN == 0:
            missed = (self._step_demand > self._step_powered) - self.settings.shortages_per_day / _STEPS
            self._margin_factor = _limit(self._margin_factor + self.settings.shortage_gain * missed)
            self._step_demand = self._step_powered = 0.0


def _limit(factor: float) -> float:
    return min(max(factor, _LEAST), _MOST)
