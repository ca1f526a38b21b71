"""The freshness of a GPUNode, from the last heartbeat of its agent."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kgwe.kube.api import timestamp
from kgwe.kube.api.kgwe.gpunode import Source

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterable

    from kgwe.kube.api.kgwe.gpunode import GPUNode

#: three default heartbeats: one may be lost, and one late
STALE_AFTER_S: Final = 900.0
# Clocks of machines differ; a heartbeat further ahead than this comes from a wrong clock.
_AHEAD_S: Final = 60.0
_DRIVER_READY: Final = "DriverReady"


class Freshness(enum.StrEnum):
    FRESH = "Fresh"
    STALE = "Stale"
    """Its agent has sent no heartbeat for long; the data is outdated."""
    NO_DRIVER = "NoDriver"
    """Its agent runs, but the driver does not respond."""
    SILENT = "Silent"
    """No agent has ever written it."""
    SIMULATED = "Simulated"
    """A simulated node without an agent."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One GPUNode with its freshness."""

    node: GPUNode
    freshness: Freshness
    age_s: float | None
    """Seconds since the last heartbeat; None if there was none."""
    reason: str = ""

    @property
    def is_good(self) -> bool:
        return self.freshness in (Freshness.FRESH, Freshness.SIMULATED)


def judge(node: GPUNode, now: dt.datetime, stale_after_s: float = STALE_AFTER_S) -> Seen:
    if node.spec.source == Source.SIMULATED:
        return Seen(node, Freshness.SIMULATED, None)
    signed = node.status.heartbeatTime
    if signed is None:
        return Seen(node, Freshness.SILENT, None, "no agent has written this GPUNode")
    age_s = (now - timestamp.parse(signed)).total_seconds()
    if age_s > stale_after_s:
        return Seen(node, Freshness.STALE, age_s, f"last heartbeat of its agent {_format_age(age_s)} ago")
    if age_s < -_AHEAD_S:
        return Seen(node, Freshness.STALE, age_s, f"the clock of the node is {_format_age(-age_s)} ahead")
    ready = next((each for each in node.status.conditions if each.type == _DRIVER_READY), None)
    if ready is not None and ready.status != "True":
        return Seen(node, Freshness.NO_DRIVER, age_s, ready.message or ready.reason)
    return Seen(node, Freshness.FRESH, max(age_s, 0.0))


def judge_all(nodes: Iterable[GPUNode], now: dt.datetime, stale_after_s: float = STALE_AFTER_S) -> list[Seen]:
    return [judge(node, now, stale_after_s) for node in sorted(nodes, key=lambda each: each.metadata.name)]


def _format_age(age_s: float) -> str:
    """Return an age such as `3m`, `2h`, `5d`."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if age_s >= size:
            return f"{age_s / size:.0f}{unit}"
    return f"{age_s:.0f}s"
