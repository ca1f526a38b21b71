"""A metric source: what the devices of pods did, whatever measured it.

Every source gives the same facts for the same fleet. A source that cannot measure returns unknown, never zero, and
says why in `problem`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from kgwe.model.usage.window import UsageWindow


class MetricSource(Protocol):
    """Usage of all GPU devices of a cluster. Implementations never raise because of an outage."""

    async def read_window(self, end_s: float, length_s: float, step_s: float) -> UsageWindow:
        """Return usage in the `length_s` seconds before `end_s` (Unix time), in steps of `step_s`.

        A device without any sample in the window is absent. After an outage the window has gaps or no devices.
        """
        ...

    def problem(self) -> str | None:
        """Return why data is missing or stale, in one line; None if the source works."""
        ...

    async def close(self) -> None:
        """Close connections."""
        ...
