"""Points per node from several forecasts, and the reasons for those of one node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

#: As `kgwe.placement.pod.score.HINT_LIMIT`.
LIMIT: Final = 10.0
_LEAST_TOLD: Final = 0.05


@dataclass(frozen=True, slots=True, eq=False)
class NodeHints:
    """The hint for a pod: the sum of its parts, bounded."""

    points: Floats
    """Node -> points; never NaN."""
    parts: Mapping[str, Floats]
    """Forecast -> node -> points; NaN: unknown."""

    def explain(self, node: int) -> tuple[str, ...]:
        """Return the forecasts that move a node, the largest first, such as `interference -4.2`."""
        found = [(name, float(points[node])) for name, points in self.parts.items()]
        told = [(name, value) for name, value in found if abs(value) >= _LEAST_TOLD]
        return tuple(f"{name} {value:+.1f}" for name, value in sorted(told, key=lambda each: -abs(each[1])))


def combine_hints(size: int, parts: Mapping[str, Floats]) -> NodeHints:
    """Return the bounded sum of parts over `size` nodes. Unknown points count as 0."""
    points = np.zeros(size)
    for each in parts.values():
        points = points + np.nan_to_num(each, nan=0.0, posinf=LIMIT, neginf=-LIMIT)
    return NodeHints(np.clip(points, -LIMIT, LIMIT), dict(parts))
