"""What fits on one node of each pool: asked of the scheduler's own fit code, on a snapshot of one node per pool."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kgwe.placement.fleet.node import SpotPolicy
from kgwe.placement.fleet.snapshot import Snapshot
from kgwe.placement.pod.fit import Fitter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from kgwe.placement.fleet.node import Request
    from kgwe.placement.fleet.snapshot import Grant
    from kgwe.scaling.purchase.pools import NodePool

    #: pods of each class, by class
    Counts = tuple[int, ...]


class NodeFiller:
    """Fills one node of a pool with pods of several classes. Answers are remembered."""

    def __init__(self, pools: Sequence[NodePool], classes: Sequence[Request]) -> None:
        self.classes = classes
        self.prices = np.array([pool.price for pool in pools], dtype=np.float64)
        self._snapshot = Snapshot.from_nodes(pool.make_node(0) for pool in pools)
        self._fitter = Fitter(self._snapshot)
        #: pool, class -> pods of this class alone that fit on one node
        self.alone = self._count_alone()
        self._order = sorted(range(len(classes)), key=lambda each: _size(classes[each]), reverse=True)
        self._filled: dict[tuple[int, Counts], tuple[Counts, tuple[tuple[int, Grant], ...]]] = {}

    def _count_alone(self) -> NDArray[np.int64]:
        counts = np.zeros((len(self.prices), len(self.classes)), dtype=np.int64)
        for number, request in enumerate(self.classes):
            found = self._fitter.count_pods(request).astype(np.int64)
            if request.spot is SpotPolicy.AVOID and found[~self._snapshot.spot].any():
                # It runs on spot only where no other node will do.
                found[self._snapshot.spot] = 0
            counts[:, number] = found
        return counts

    def fill(self, pool: int, wanted: Counts) -> tuple[Counts, tuple[tuple[int, Grant], ...]]:
        """Return how many pods of each class fit, of at most `wanted`, and the class and grant of each. Large first."""
        key = (pool, tuple(min(count, int(most)) for count, most in zip(wanted, self.alone[pool], strict=True)))
        found = self._filled.get(key)
        if found is None:
            found = self._filled[key] = self._fill(*key)
        return found

    def _fill(self, pool: int, wanted: Counts) -> tuple[Counts, tuple[tuple[int, Grant], ...]]:
        counts = [0] * len(wanted)
        grants: list[tuple[int, Grant]] = []
        with self._snapshot.trial() as trial:
            for number in self._order:
                while counts[number] < wanted[number]:
                    grant = self._fitter.find_grant(self.classes[number], pool)
                    if grant is None:
                        break
                    trial.commit(grant)
                    grants.append((number, grant))
                    counts[number] += 1
        return tuple(counts), tuple(grants)


def _size(request: Request) -> tuple[float, int, int]:
    gpus = request.gpus
    return (gpus.count + gpus.milli / 1000 + gpus.slices / 8, request.cpu_milli, request.memory_bytes)
