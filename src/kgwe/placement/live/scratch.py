"""A scratch copy of the fleet to plan on. Neither the fleet nor caches keyed by its version notice.

Nodes can be *masked*: nothing more fits on them here. `release` ends workloads within a trial. `sync` copies what
changed in the fleet since.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from kgwe.placement.fleet.snapshot import Snapshot
from kgwe.placement.gang.request import GangRequest
from kgwe.placement.gang.search import GangSearch
from kgwe.placement.live.snapshot_copy import copy_rows
from kgwe.placement.planning.gang_planner import GangPlanner
from kgwe.placement.pod.engine import Engine
from kgwe.placement.pod.fit import Fitter
from kgwe.placement.pod.fit_status import FitStatus
from kgwe.placement.pod.ranking import Strategy
from kgwe.placement.pod.score import Weights

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from kgwe.model.network.domains import Tree
    from kgwe.placement.fleet.node import Request
    from kgwe.placement.fleet.snapshot import Grant, Trial
    from kgwe.placement.gang.plan import DomainWeights
    from kgwe.placement.pod.mixfit_strategy import ArrivalMix

NO_NODES: Final[frozenset[str]] = frozenset()


class Source(Protocol):
    """What is copied: a `LiveFleet`, or anything else with nodes and a network."""

    @property
    def snapshot(self) -> Snapshot: ...
    @property
    def tree(self) -> Tree: ...


class ScratchFleet:
    """A copy to plan on like the fleet (`snapshot`, `fitter`, `engine`, `gangs`)."""

    def __init__(
        self,
        source: Source,
        weights: Weights = Weights(),  # noqa: B008 - frozen
        domain_weights: DomainWeights | None = None,
        strategy: Strategy = Strategy.SCORE,
        mix: ArrivalMix | None = None,
    ) -> None:
        """`mix`: the arrivals known so far; plans made here count as arrivals too."""
        self._source = source
        self._weights = weights
        self._domain_weights = domain_weights
        self._strategy = strategy
        self._mix = mix
        self._build()

    def _build(self) -> None:
        live = self._live = self._source.snapshot
        #: the tree of the copy: the source may have another by now
        self.tree = self._source.tree
        self.snapshot = Snapshot.from_nodes(live.nodes)
        self.fitter = Fitter(self.snapshot)
        self.engine = Engine(self.snapshot, self._weights, self._strategy, fitter=self.fitter, mix=self._mix)
        self.gangs = GangPlanner(self.fitter, self.tree, weights=self._domain_weights)
        self.search = GangSearch(self.fitter, self.tree)
        self._touched = np.ones(len(live), np.bool_)
        self._seen = 0
        self._synced = self.snapshot.version
        self._masked: frozenset[str] = NO_NODES
        self._masked_rows: frozenset[int] = frozenset()

    def sync(self, masked: frozenset[str] = NO_NODES) -> None:
        """Copy the fleet as it is now, mask these nodes, and discard what was tried here."""
        if self._source.snapshot is not self._live:
            self._build()
        live, index = self._live, self._live.index
        stale = live.changed > self._seen
        stale |= self.snapshot.changed > self._synced
        stale |= self._touched
        self._touched[:] = False
        changed_mask = self._masked ^ masked
        if changed_mask:
            stale[[index[name] for name in changed_mask if name in index]] = True
            self._masked_rows = frozenset(index[name] for name in masked if name in index)
        rows = np.flatnonzero(stale)
        if len(rows):
            copy_rows(live, self.snapshot, rows.tolist())
            self.snapshot.pods[list(self._masked_rows)] = 0
        self._seen, self._synced, self._masked = live.version, self.snapshot.version, masked

    def release(self, grants: Iterable[Grant], trial: Trial) -> None:
        """Release what a workload holds within the trial, except on masked nodes."""
        for grant in grants:
            # A grant that is not booked here was released meanwhile.
            if grant.node not in self._masked_rows and self.snapshot.is_booked(grant):
                trial.release(grant)

    def count_free_gpus(self) -> int:
        """Whole GPUs that are free on nodes that are not masked."""
        free = np.bitwise_count(self.snapshot.free)
        free[list(self._masked_rows)] = 0
        return int(free.sum())

    def fits(self, request: Request | GangRequest) -> bool:
        if isinstance(request, GangRequest):
            return self.search.has_room(request)
        return bool((self.fitter.check_nodes(request) == FitStatus.FITS).any())


def fits_on_any(fitter: Fitter, request: Request | GangRequest, nodes: NDArray[np.intp]) -> bool:
    """Whether a pod of the request fits on any of the nodes now; if not, changes on them cannot help it."""
    requests = [role.request for role in request.roles] if isinstance(request, GangRequest) else [request]
    return any(_pod_fits_on_any(fitter, each, nodes) for each in requests)


def _pod_fits_on_any(fitter: Fitter, request: Request, nodes: NDArray[np.intp]) -> bool:
    # Cheap first test: most nodes are too full.
    wanted = request.gpus.count
    if wanted and int(np.bitwise_count(fitter.snapshot.free[nodes]).max(initial=0)) < wanted:
        return False
    return bool((fitter.check_nodes(request, nodes) == FitStatus.FITS).any())
