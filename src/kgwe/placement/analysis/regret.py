"""Regret: how much better a running workload could have been placed, compared with what the planner would choose.

Both placements are measured in the same state, without the workload, and in the same way:

    gb_per_s     the ring through all its GPUs, in tree order, one direction, as nccl-tests would measure it
    leaves       leaves of the network that it spans
    islands      groups of connected GPUs that were all free and are taken in part
    fragmented   idle GPU, in thousandths of a GPU, that a random pod of the mix cannot use

Nothing is booked: the snapshot is unchanged afterwards. Unknown GPUs are taken to be the best the node had, so the
regret is never more than the real one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kgwe.placement.fleet.node import GPU_MILLI
from kgwe.placement.gang.search import GangSearch
from kgwe.placement.gpuset import gpu_tables
from kgwe.placement.planning import planner
from kgwe.placement.planning.explain import NO_CHANCE
from kgwe.placement.planning.plan import Plan
from kgwe.placement.pod.fit_status import FitStatus

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from kgwe.model.gpu.topology import Wiring
    from kgwe.model.network.domains import Tree
    from kgwe.placement.fleet.node import Request
    from kgwe.placement.fleet.snapshot import Grant, Snapshot
    from kgwe.placement.planning.ask import Ask
    from kgwe.placement.planning.plan import FleetView
    from kgwe.placement.pod.fit import Fitter
    from kgwe.placement.refusal import Refusal

Mix = Mapping["Request", int]
"""The requests of the cluster: request -> number of pods."""


@dataclass(frozen=True, slots=True)
class Measure:
    """The measures of a placement."""

    #: None: a single GPU, nothing to join; 0: not known
    gb_per_s: float | None
    nodes: int
    #: 0: not known
    leaves: int
    islands: int
    #: of the nodes that either placement touches
    fragmented: float


@dataclass(frozen=True, slots=True)
class Regret:
    """The measures of the actual and of the best placement."""

    actual: Measure
    best: Measure
    plan: Plan

    @property
    def gb_per_s(self) -> float:
        """GB/s lost; 0 where either is not known."""
        here, there = self.actual.gb_per_s, self.best.gb_per_s
        return max(there - here, 0.0) if here and there else 0.0

    @property
    def leaves(self) -> int:
        """Leaves spanned beyond those of the best placement."""
        return max(self.actual.leaves - self.best.leaves, 0) if self.actual.leaves and self.best.leaves else 0

    @property
    def islands(self) -> int:
        return max(self.actual.islands - self.best.islands, 0)

    @property
    def fragmented(self) -> float:
        """Thousandths of a GPU that the best placement would have left usable."""
        return max(self.actual.fragmented - self.best.fragmented, 0.0)

    @property
    def is_none(self) -> bool:
        return not (self.gb_per_s or self.leaves or self.islands or round(self.fragmented))


class Hindsight:
    """Measures the regret of placements in one fleet; create a new one when its nodes change."""

    def __init__(self, place: FleetView) -> None:
        self._place = place
        self._tree = place.tree
        self._search = GangSearch(place.fitter, place.tree)

    def measure_regret(self, ask: Ask, grants: Sequence[Grant], mix: Mix) -> Regret | Refusal:
        """The regret of the ask, whose pods hold `grants`; a refusal: the planner would not have placed it at all."""
        place, snapshot = self._place, self._place.snapshot
        with _release_all(snapshot, grants):
            found = planner.make_plan(place, ask, rng=NO_CHANCE, explain=False)
            if not isinstance(found, Plan):
                return found
            sides = (grants, found.grants)
            nodes = np.array(sorted({grant.node for side in sides for grant in side}), np.intp)
            broken = [count_broken_islands(snapshot, side) for side in sides]
            lost = [_measure_fragmented_with(place.fitter, side, nodes, mix) for side in sides]
        actual, best = (
            Measure(
                ring_gb_per_s(self._search, side),
                _count_nodes(side),
                count_leaves(snapshot, self._tree, side),
                cut,
                idle,
            )
            for side, cut, idle in zip(sides, broken, lost, strict=True)
        )
        return Regret(actual, best, found)


def _count_nodes(grants: Iterable[Grant]) -> int:
    return len({grant.node for grant in grants})


@contextlib.contextmanager
def _release_all(snapshot: Snapshot, grants: Iterable[Grant]) -> Iterator[None]:
    with snapshot.trial() as trial:
        trial.release_all(grants)
        yield


# --- measures --------------------------------------------------------------------------------------------


def ring_gb_per_s(search: GangSearch, grants: Iterable[Grant]) -> float | None:
    """The ring through the GPUs; None for one GPU."""
    table = search.level_tables.for_levels(())
    place_of = {node: place for place, node in enumerate(table.node.tolist())}
    gpus: dict[int, int] = {}
    for grant in grants:
        place = place_of[grant.node]
        gpus[place] = gpus.get(place, 0) | grant.gpu_mask
    rate = search.rings.predict_ring(table, sorted(gpus), gpus).gb_per_s
    return None if np.isinf(rate) else rate


def count_leaves(snapshot: Snapshot, tree: Tree, grants: Iterable[Grant]) -> int:
    """Leaves that the grants span; 0: the leaf of a node is unknown."""
    places = [tree.position.get(snapshot.nodes[grant.node].name) for grant in grants]
    if not tree.levels or None in places:
        return 0
    found = {int(tree.domain_of[0, place]) for place in places}
    return len(found) if all(tree.levels[0].known[leaf] for leaf in found) else 0


def count_broken_islands(snapshot: Snapshot, grants: Iterable[Grant]) -> int:
    """Free islands of which the grants would take a part."""
    taken: dict[int, int] = {}
    for grant in grants:
        taken[grant.node] = taken.get(grant.node, 0) | grant.gpu_mask
    return sum(
        _count_broken(snapshot.nodes[node].shape.wiring, int(snapshot.free[node]), mask) for node, mask in taken.items()
    )


def _count_broken(wiring: Wiring, free: int, taken: int) -> int:
    if gpu_tables.is_wide(wiring):
        return 0
    whole = (island for island in gpu_tables.find_islands(gpu_tables.read_links(wiring)) if free & island == island)
    return sum(taken & island not in (0, island) for island in whole)


def _measure_fragmented_with(fitter: Fitter, grants: Iterable[Grant], nodes: NDArray[np.intp], mix: Mix) -> float:
    with fitter.snapshot.trial() as trial:
        for grant in grants:
            trial.book(grant)
        return measure_fragmented(fitter, nodes, mix)


def measure_fragmented(fitter: Fitter, nodes: NDArray[np.intp], mix: Mix) -> float:
    """Idle GPU of the nodes, in thousandths of a GPU, that a random pod of the mix could not use."""
    free = fitter.snapshot.milli[nodes]
    idle, total = int(free.sum()), sum(mix.values())
    if not idle or not total:
        return 0.0
    lost = 0.0
    for request, count in mix.items():
        fits = fitter.check_nodes(request, nodes) == FitStatus.FITS
        least = GPU_MILLI if request.gpus.count else max(request.gpus.milli, 1)
        here = free[fits]
        lost += count * (idle - int(here[here >= least].sum()))
    return lost / total
