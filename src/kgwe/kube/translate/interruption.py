"""Interruption notices on a Node: the condition, taint and annotation that the agent writes and others read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kgwe.kube.api import timestamp

if TYPE_CHECKING:
    from kgwe.kube.api import core

CONDITION: Final = "InterruptionNotice"
TAINT: Final = "kgwe.nvidia.io/interruption"
#: When the node is interrupted, and the name of the notice: `2026-01-01T00:00:00Z terminate-…`.
ANNOTATION: Final = "kgwe.nvidia.io/interruption"
#: A reason of the condition with which the node may stay: nothing is moved.
REBALANCE: Final = "RebalanceRecommended"


@dataclass(frozen=True, slots=True)
class AnnouncedInterruption:
    """What a Node says about its end."""

    reason: str
    message: str
    notice_id: str = ""
    deadline_at: float | None = None

    @property
    def is_certain(self) -> bool:
        """Whether the node goes away for certain, so that its pods must move."""
        return self.reason != REBALANCE


def find_interruption(node: core.Node | None) -> AnnouncedInterruption | None:
    """Return the announced interruption of a node, or None."""
    if node is None:
        return None
    found = next((each for each in node.status.conditions if each.type == CONDITION and each.status == "True"), None)
    if found is None:
        return None
    time, _, notice_id = node.metadata.annotations.get(ANNOTATION, "").partition(" ")
    return AnnouncedInterruption(found.reason, found.message, notice_id, _parse_time(time))


def _parse_time(text: str) -> float | None:
    try:
        return timestamp.epoch_seconds(text) or None
    except ValueError:
        return None
