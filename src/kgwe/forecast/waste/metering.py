"""What pods cost by their measured devices: device hours x part of a GPU x price per GPU-hour."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from kgwe.forecast.waste import gpu_parts
from kgwe.model.usage.window import QUANTITIES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kgwe.forecast.waste.recommend import Prices
    from kgwe.model.usage.window import PodKey, UsageWindow

_HOUR_S: Final = 3600.0


@dataclass(frozen=True, slots=True)
class Metered:
    """The metered cost of one pod."""

    hours: float
    """Time in which its devices were seen."""
    device_hours: float
    cost: float | None
    """None: a device has no price."""

    @property
    def hourly_cost(self) -> float | None:
        """Return the cost per hour of the time in which it was seen."""
        return None if self.cost is None or self.hours <= 0 else self.cost / self.hours


def meter_pods(window: UsageWindow, prices: Prices, shares: Mapping[PodKey, float]) -> dict[PodKey, Metered]:
    """Return what each pod of a window cost. A step without a sample of a device was not metered.

    `shares`: the parts of a GPU that pods asked for. Other pods are charged by slice and number of sharers.
    """
    seen = np.zeros((len(window.devices), window.steps), dtype=np.bool_)
    for name in QUANTITIES:
        seen |= ~np.isnan(getattr(window, name))
    rows: dict[PodKey, dict[tuple[str, str, str], int]] = {}
    for row, device in enumerate(window.devices):
        if device.key.pod is not None:
            # Containers that use the same device are charged once.
            rows.setdefault(device.key.pod, {}).setdefault(device.key[:3], row)
    return {pod: _meter(window, seen, list(mine.values()), prices, shares.get(pod)) for pod, mine in rows.items()}


def _meter(
    window: UsageWindow, seen: np.ndarray[tuple[int, int], np.dtype[np.bool_]], rows: list[int], prices: Prices,
    share: float | None,
) -> Metered:  # fmt: skip
    step_h = window.step_s / _HOUR_S
    cost: float | None = 0.0
    for row in rows:
        device = window.devices[row]
        part = share if share is not None else gpu_parts.charge_fraction(device, device.sharers)
        price = prices.find(device.model, is_spot=False)
        hours = float(seen[row].sum()) * step_h
        cost = None if cost is None or price is None else cost + hours * part * price
    device_hours = float(seen[rows].sum()) * step_h
    return Metered(float(seen[rows].any(axis=0).sum()) * step_h, device_hours, cost)
