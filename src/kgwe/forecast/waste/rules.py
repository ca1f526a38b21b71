"""Settings of the waste detector."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Final

from kgwe import errors


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """When a device counts as idle, underused, bursty or busy. Shares are 0..1, times are seconds."""

    interval_s: float = 30.0
    """Time between judgements."""
    window_s: float = 600.0
    """Each judgement covers this much time before it."""
    underused_below: float = 0.5
    """Activity below it is low."""
    underused_for_s: float = 300.0
    """A device is underused when its activity was low for longer than this."""
    noise_floor: float = 0.01
    """Activity up to this is noise: drivers and monitoring cause it on an idle GPU."""
    dram_floor: float = 0.05
    """Memory traffic above it contradicts an idle compute engine."""
    idle_power_share: float = 0.35
    """Power above idle power plus this share of the range up to the limit contradicts an idle compute engine.

    GPUs with an open CUDA context draw up to a third of their range without any work.
    """
    min_coverage: float = 0.9
    """Share of the window's steps that must have been measured. With less, the state is unknown."""
    max_stale_s: float = 0.0
    """Time without samples at the end of the window. With more, the state is unknown."""
    min_age_s: float = 600.0
    """A container that started later than this ago is starting: its state is unknown."""
    holding_mib: float = 1024.0
    """Memory above it is held. A CUDA context alone takes less."""
    holding_share: float = 0.02
    """Share of the device's memory above which memory is held; the larger of both limits counts."""
    bursty_spread: float = 0.2
    """Distance between the highest and the lowest activity of a bursty device, unless it is idle in between."""
    bursty_variation: float = 0.3
    """Standard deviation of a bursty device's activity, divided by its mean."""
    memory_margin: float = 0.15
    """Added to the highest memory use before a smaller device is recommended."""
    target_use: float = 0.8
    """Highest activity that a recommended device should see."""
    min_saving_share: float = 0.1
    """Recommendations that save a smaller share of the cost are not made."""
    lookback_s: float = 7 * 86400.0
    """History that gives a recommendation full confidence."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not math.isfinite(value) or value < 0:
                raise errors.Permanent(f"{field.name} is {value}; write a number that is not negative")
            if field.name in _SHARES and value > 1:
                raise errors.Permanent(f"{field.name} is {value}; write a share between 0 and 1")
            if field.name in _POSITIVE and value == 0:
                raise errors.Permanent(f"{field.name} is 0; write a number above 0")

    def count_steps(self, step_s: float) -> int:
        """Return the number of steps in the judged part of a window."""
        return max(round(self.window_s / step_s), 1)


_SHARES: Final = frozenset(
    {
        "underused_below",
        "noise_floor",
        "dram_floor",
        "idle_power_share",
        "min_coverage",
        "holding_share",
        "bursty_spread",
        "target_use",
        "min_saving_share",
    }
)
_POSITIVE: Final = frozenset({"interval_s", "window_s", "target_use", "min_coverage", "lookback_s"})
DEFAULT: Final = Rules()
