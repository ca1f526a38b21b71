"""The snapshot in the terms of the packing policies: flat arrays of free CPU, memory and GPU shares per node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from kgwe.placement.fleet.node import GPU_MILLI
from kgwe.placement.packing.fleet import Demand, Fleet, NodeSpec
from kgwe.placement.pod.fit_status import FitStatus

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kgwe.placement.fleet.node import Node, Request
    from kgwe.placement.pod.fit import Fitter

_MIB: Final = 1 << 20
# Requests remembered, the oldest forgotten first.
_KEPT: Final = 2048


class PackingMirror:
    """Follows a snapshot; `sync` copies the nodes that changed."""

    def __init__(self, fitter: Fitter) -> None:
        self._fitter = fitter
        self._snapshot = snapshot = fitter.snapshot
        self._classes = [_class_of(node) for node in snapshot.nodes]
        self.fleet = Fleet(
            [
                NodeSpec(node.name, node.cpu_milli, node.memory_bytes // _MIB, node.shape.gpu_count, name)
                for node, name in zip(snapshot.nodes, self._classes, strict=True)
            ]
        )
        self._demands: dict[Request, Demand] = {}
        self._seen = -1
        self.sync()

    def sync(self) -> NDArray[np.intp]:
        """Copy what changed since the last call; returns those nodes."""
        snapshot = self._snapshot
        if self._seen == snapshot.version:
            return np.zeros(0, np.intp)
        changed = snapshot.changed_since(self._seen)
        self._copy(changed)
        self._seen = snapshot.version
        return changed

    def demand_of(self, request: Request) -> Demand:
        """The request as a demand. It may use the GPU classes of all nodes that could hold it when empty."""
        if request not in self._demands:
            if len(self._demands) >= _KEPT:
                del self._demands[next(iter(self._demands))]
            gpus = request.gpus
            able = np.flatnonzero(self._fitter.check_empty_nodes(request) == FitStatus.FITS)
            classes = {self._classes[node] for node in able.tolist()}
            spec = "" if classes >= set(self.fleet.models) else "|".join(sorted(classes))
            count = gpus.count or (1 if gpus.milli else 0)
            milli = gpus.milli or (GPU_MILLI if gpus.count else 0)
            self._demands[request] = Demand(request.cpu_milli, milli, count, spec if count else "")
        return self._demands[request]

    def _copy(self, nodes: NDArray[np.intp]) -> None:
        fleet, snapshot = self.fleet, self._snapshot
        # An overcommitted node has less than nothing left.
        fleet.cpu_free[nodes] = np.maximum(snapshot.cpu_milli[nodes], 0)
        fleet.memory_free[nodes] = snapshot.memory_bytes[nodes] // _MIB
        gpus = snapshot.milli[nodes].T
        fleet.gpus[:, nodes] = gpus
        fleet.largest[nodes] = gpus.max(axis=0, initial=0)
        fleet.whole[nodes] = (gpus == GPU_MILLI).sum(axis=0)
        fleet.gpu_free[nodes] = gpus.sum(axis=0)


def _class_of(node: Node) -> str:
    """Nodes of one class offer the same GPUs in the same portions."""
    return node.shape.model if node.shares_per_gpu is None else f"{node.shape.model}/{node.shares_per_gpu}"
