"""How much pods used their GPUs: what was measured in steps, integrated over segments. Unknown stays unknown."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from kgwe.costing.segments import Segment


class UseKey(NamedTuple):
    """A device that a pod uses."""

    namespace: str
    pod: str
    gpu: str
    """UUID of the GPU; empty: all devices of the pod, where the node does not say which ones it holds."""
    start: int = -1
    """First memory unit of a MIG slice; -1 for a whole GPU or a share."""


class Use(NamedTuple):
    """Integrated use."""

    measured_s: int = 0
    """Seconds for which the use is known."""
    busy_ms: int = 0
    """A second at 100 % adds 1,000."""

    def plus(self, other: Use) -> Use:
        """Return the sum."""
        return Use(self.measured_s + other.measured_s, self.busy_ms + other.busy_ms)


class UseRecord:
    """Steps of measured use of one node. A step that is measured again replaces the one with the same beginning."""

    def __init__(self) -> None:
        self._steps: dict[UseKey, dict[int, tuple[int, int]]] = {}
        """Key -> beginning of a step -> (its end, its use in thousandths)."""

    def add(self, key: UseKey, start_s: int, end_s: int, milli: int) -> None:
        """A device was used this much, from a second until before another."""
        self._steps.setdefault(key, {})[start_s] = end_s, min(max(milli, 0), 1000)

    def integrate(self, segment: Segment, first_s: int, last_s: int) -> Use:
        """Return the use of a segment between two times."""
        steps = self._find(segment)
        if not steps:
            return Use()
        measured = busy = 0
        for start_s, (end_s, milli) in steps.items():
            seconds = min(end_s, last_s) - max(start_s, first_s)
            if seconds > 0:
                measured += seconds
                busy += seconds * milli
        return Use(measured, busy)

    def forget(self, until_s: int) -> None:
        """Remove the steps that ended before a time."""
        kept = {
            key: {start_s: step for start_s, step in steps.items() if step[0] > until_s}
            for key, steps in self._steps.items()
        }
        self._steps = {key: steps for key, steps in kept.items() if steps}

    def _find(self, segment: Segment) -> dict[int, tuple[int, int]]:
        holder, piece = segment.holder, segment.piece
        if holder is None or not segment.ppm:
            return {}
        place = int(piece.place.rpartition("@")[2]) if piece.place else -1
        namespace = holder.account.namespace
        exact = UseKey(namespace, holder.pod, piece.gpu, place)
        return self._steps.get(exact) or self._steps.get(UseKey(namespace, holder.pod, "")) or {}
