"""Nodes that are reserved for waiting workloads: pods of lower priority do not use them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from kgwe.placement.live.fleet import LiveFleet


class BlockedNodes:
    """Masks over the nodes of one generation of the fleet."""

    def __init__(self) -> None:
        self._masks: list[tuple[int, NDArray[np.bool_]]] = []  # (priority of the workload, nodes reserved for it)
        self._generation = -1

    def update(self, fleet: LiveFleet, reserved: Iterable[tuple[int, frozenset[str]]]) -> None:
        """`reserved`: (priority, names of nodes)."""
        index = fleet.snapshot.index
        self._masks = []
        self._generation = fleet.generation
        for priority, names in reserved:
            mask = np.zeros(len(index), np.bool_)
            mask[[index[name] for name in names if name in index]] = True
            self._masks.append((priority, mask))

    def mask_for(self, fleet: LiveFleet, priority: int) -> NDArray[np.bool_] | None:
        """Nodes that a plain pod of this priority must not use; None: it may use all."""
        if not self._masks or self._generation != fleet.generation:
            return None
        masks = [mask for reserved_for, mask in self._masks if reserved_for >= priority]
        return np.logical_or.reduce(masks) if masks else None
