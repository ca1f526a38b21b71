"""A copy of the fleet to try things on, which neither the fleet nor whoever caches by its version notices.

Nodes can be *veiled*: nothing more fits on them here. Work can be ended and begun. `sync` makes it what the fleet is
now, at the price of what changed since.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from kgwe.placement.fleet.snapshot import Snapshot
from kgwe.placement.gang.request import GangRequest
from kgwe.placement.gang.search import GangSearch
from kgwe.placement.live.fleet import copy_rows
from kgwe.placement.planning.gang_planner import GangPlanner
from kgwe.placement.pod.engine import Engine
from kgwe.placement.pod.fit import Fitter, Verdict
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

NOWHERE: Final[frozenset[str]] = frozenset()


class Source(Protocol):
    """What is copied: `kgwe.placement.live.fleet.Fleet`, or anything else with nodes and a network."""

    @property
    def snapshot(self) -> Snapshot: ...
    @property
    def tree(self) -> Tree: ...


class Shadow:
    """Can be planned on like the fleet (`snapshot`, `fitter`, `engine`, `gangs`)."""

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
        #: that of the copy: the source may have got another since
        self.tree = self._source.tree
        self.snapshot = Snapshot.of(live.nodes)
        self.fitter = Fitter(self.snapshot)
        self.engine = Engine(self.snapshot, self._weights, self._strategy, fitter=self.fitter, mix=self._mix)
        self.gangs = GangPlanner(self.fitter, self.tree, weights=self._domain_weights)
        self.search = GangSearch(self.fitter, self.tree)
        self._touched = np.ones(len(live), np.bool_)
        self._seen = 0
        self._synced = self.snapshot.version
        self._veil: frozenset[str] = NOWHERE

    def sync(self, veil: frozenset[str] = NOWHERE) -> None:
        """As the fleet is now, with nothing fitting on the nodes of `veil`; what was tried here is forgotten."""
        if self._source.snapshot is not self._live:
            self._build()
        live, index = self._live, self._live.index
        stale = live.changed > self._seen
        stale |= self.snapshot.changed > self._synced
        stale |= self._touched
        self._touched[:] = False
        changed_veil = self._veil ^ veil
        stale[[index[name] for name in changed_veil if name in index]] = True
        rows = np.flatnonzero(stale)
        if len(rows):
            copy_rows(live, self.snapshot, rows.tolist())
            hidden = [index[name] for name in veil if name in index]
            self.snapshot.pods[hidden] = 0
        self._seen, self._synced, self._veil = live.version, self.snapshot.version, veil

    def end(self, grants: Iterable[Grant], trial: Trial) -> None:
        """Release what a workload holds within the trial, except on veiled nodes."""
        index = self._live.index
        hidden = {index[name] for name in self._veil if name in index}
        for grant in grants:
            # A grant that is not booked here was released meanwhile.
            if grant.node not in hidden and self.snapshot.holds(grant):
                trial.release(grant)

    def fits(self, request: Request | GangRequest) -> bool:
        if isinstance(request, GangRequest):
            return self.search.has_room(request)
        return bool((self.fitter.verdicts(request) == Verdict.FITS).any())


def takes(fitter: Fitter, request: Request | GangRequest, nodes: NDArray[np.intp]) -> bool:
    """Whether any of the nodes takes a pod of it now: without that, nothing that happened on them can help it."""
    requests = [role.request for role in request.roles] if isinstance(request, GangRequest) else [request]
    return any(_one_takes(fitter, each, nodes) for each in requests)


def _one_takes(fitter: Fitter, request: Request, nodes: NDArray[np.intp]) -> bool:
    # Most nodes are too full, and that costs next to nothing to see.
    wanted = request.gpus.count
    if wanted and int(np.bitwise_count(fitter.snapshot.free[nodes]).max(initial=0)) < wanted:
        return False
    return bool((fitter.verdicts(request, nodes) == Verdict.FITS).any())
