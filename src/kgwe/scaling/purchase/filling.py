"""What fits on one node of each pool: asked of the scheduler's own fit code, on a snapshot of one node per pool."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kgwe.model.units.phrasing import list_names
from kgwe.placement.fleet.node import SpotPolicy
from kgwe.placement.fleet.snapshot import Snapshot
from kgwe.placement.pod.fit import Fitter
from kgwe.placement.pod.fit_status import FitStatus
from kgwe.placement.pod.wording import describe_status

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from kgwe.placement.fleet.node import Node, Request
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
        numbers: dict[object, int] = {}
        #: pool -> number of its hardware: what fits on one node fits on all with the same hardware
        self._hardware = [numbers.setdefault(_describe_hardware(pool.template), len(numbers)) for pool in pools]
        self._largest = [int(each) for each in self.alone.max(axis=0, initial=0)]
        self._best: dict[tuple[int, int, frozenset[int], int], tuple[int, ...]] = {}
        self._most = [tuple(map(int, row)) for row in self.alone]
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

    def describe_misfits(self, request: Request) -> str:
        """Return why a pod fits on no node of any pool: `pools h100, l40s have nodes with insufficient GPUs`."""
        misfits: dict[str, list[str]] = {}
        for node, code in zip(self._snapshot.nodes, self._fitter.check_nodes(request), strict=True):
            pool = node.name.partition("/")[0].removesuffix("-new-0")
            misfits.setdefault(describe_status(FitStatus(int(code)), request.gpus), []).append(pool)
        return "; ".join(_describe_misfit(why, list(dict.fromkeys(pools))) for why, pools in misfits.items())

    def fill(self, pool: int, wanted: Counts) -> tuple[Counts, tuple[tuple[int, Grant], ...]]:
        """Return how many pods of each class fit, of at most `wanted`, and the class and grant of each. Large first."""
        possible = tuple(map(min, wanted, self._most[pool]))
        key = (self._hardware[pool], possible)
        found = self._filled.get(key)
        if found is None:
            found = self._filled[key] = self._fill(pool, possible)
        return found

    def _fill(self, pool: int, wanted: Counts) -> tuple[Counts, tuple[tuple[int, Grant], ...]]:
        counts = [0] * len(wanted)
        grants: list[tuple[int, Grant]] = []
        with self._snapshot.trial() as trial:
            for number in self._order:
                request = self.classes[number]
                while counts[number] < wanted[number] and self._may_fit(request, pool):
                    grant = self._fitter.find_grant(request, pool)
                    if grant is None:
                        break
                    trial.commit(grant)
                    grants.append((number, grant))
                    counts[number] += 1
        return tuple(counts), tuple(grants)

    def list_best(self, number: int, have: int, sold_out: frozenset[int], most: int) -> tuple[int, ...]:
        """Return pools for at most so many pods of one class alone: the cheapest per pod, and the cheapest node."""
        have = min(have, self._largest[number])
        key = (number, have, sold_out, most)
        found = self._best.get(key)
        if found is None:
            held = np.minimum(self.alone[:, number], have)
            held[list(sold_out)] = 0
            usable = np.flatnonzero(held)
            order = np.argsort(self.prices[usable] / held[usable], kind="stable")[:most]
            # The cheapest node of all matters for the last pods.
            cheapest = usable[np.argsort(self.prices[usable], kind="stable")[:1]]
            found = self._best[key] = tuple(dict.fromkeys([*usable[order].tolist(), *cheapest.tolist()]))
        return found

    def _may_fit(self, request: Request, pool: int) -> bool:
        """Whether it is worth asking the engine, which takes longer."""
        free = self._snapshot
        return bool(
            request.cpu_milli <= free.cpu_milli[pool]
            and request.memory_bytes <= free.memory_bytes[pool]
            and request.gpus.count <= int(free.free[pool]).bit_count()
        )


def _describe_misfit(why: str, pools: Sequence[str]) -> str:
    """`pool burst has nodes with fewer than 16 whole GPUs`."""
    has = f"pool {pools[0]} has" if len(pools) == 1 else f"pools {list_names(pools)} have"
    return f"{has} nodes with {why}" if why.startswith(("insufficient", "too many")) else f"{has} nodes {why}"


def _describe_hardware(node: Node) -> object:
    cut = tuple(sorted(node.cut.items()))
    return (node.shape, node.cpu_milli, node.memory_bytes, node.pods, node.healthy, cut, node.shares_per_gpu)


def _size(request: Request) -> tuple[float, int, int]:
    gpus = request.gpus
    return (gpus.count + gpus.milli / 1000 + gpus.slices / 8, request.cpu_milli, request.memory_bytes)
