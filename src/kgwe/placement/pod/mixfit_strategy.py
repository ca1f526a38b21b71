"""The strategy mixfit: a pod goes where it costs the pods to come least.

MixFit (`kgwe.placement.packing.mixfit`) prices free capacity by the mix of pods that a fleet sees. The live engine does
not know that mix. It begins with the pods that run and counts those it finds a place for: each decision counts as one
arrival, and old arrivals fade.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from kgwe.placement.packing.mixfit import MixFit
from kgwe.placement.packing.policy import Mix
from kgwe.placement.pod.packing_mirror import PackingMirror

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

    from kgwe.placement.fleet.node import Request
    from kgwe.placement.packing.fleet import Demand
    from kgwe.placement.pod.fit import Fitter
    from kgwe.placement.pod.score import Floats

# The mix holds the most frequent demands that make up this share of the arrivals.
_TYPICAL_SHARE: Final = 0.95
# Arrivals after which all counts are halved: an older mix then counts half as much.
_FADE_AFTER: Final = 20_000
# The prices are built again when the arrivals have grown by this factor, and at least every so many arrivals.
_GROWTH: Final = 1.25
_REBUILD_EVERY: Final = 1000
# Different requests that are remembered; beyond that the rarer half is forgotten.
_MOST_KINDS: Final = 512


class ArrivalMix:
    """How often each request arrived; shared by the engines that plan for one fleet."""

    def __init__(self, running: Callable[[], Iterable[Request]] = tuple) -> None:
        """`running`: the pods that run already. They are the mix until the first arrival is counted."""
        self._running = running
        self._counts: dict[Request, int] = {}
        self._since_fade = 0
        #: arrivals ever counted
        self.arrivals = 0

    def add(self, request: Request) -> None:
        """Count one more arrival."""
        if not self.arrivals:
            self._start()
        self._count(request)

    def typical_demands(self, mirror: PackingMirror, first: Request) -> Mix:
        """The typical demands so far; where none is known, the first request alone."""
        if not self.arrivals:
            self._start()
        counts: dict[Demand, int] = {}
        # A copy: another thread may count meanwhile.
        for request, count in (self._counts.copy() or {first: 1}).items():
            demand = mirror.demand_of(request)
            counts[demand] = counts.get(demand, 0) + count
        ranked = sorted(counts.items(), key=lambda item: (item[1], item[0]), reverse=True)
        covered = np.cumsum([count for _, count in ranked])
        kept = ranked[: int(np.searchsorted(covered, _TYPICAL_SHARE * int(covered[-1]))) + 1]
        return Mix(tuple(demand for demand, _ in kept), tuple(count for _, count in kept))

    def _start(self) -> None:
        for request in self._running():
            self._count(request)

    def _count(self, request: Request) -> None:
        # Memory is no part of a demand.
        key = replace(request, memory_bytes=0)
        self._counts[key] = self._counts.get(key, 0) + 1
        self.arrivals += 1
        self._since_fade += 1
        if self._since_fade >= _FADE_AFTER:
            self._since_fade //= 2
            self._counts = {each: count // 2 for each, count in self._counts.copy().items() if count > 1}
        if len(self._counts) > _MOST_KINDS:
            by_count = sorted(self._counts.copy().items(), key=lambda item: item[1])
            self._counts = dict(by_count[len(by_count) // 2 :])


class MixFitStrategy:
    """MixFit over one snapshot; it prices whole GPUs, shares and pods without GPUs, but no MIG slices."""

    def __init__(self, fitter: Fitter, mix: ArrivalMix) -> None:
        self._snapshot = fitter.snapshot
        self._mirror = PackingMirror(fitter)
        self._mix = mix
        self._policy: MixFit | None = None
        self._rebuild_at = 0

    def rank(self, request: Request, nodes: NDArray[np.intp]) -> Floats:
        """For each of these nodes, on all of which the pod fits, how little it costs the fleet; larger is better."""
        return self._refresh_policy(request).scores(self._mirror.demand_of(request), nodes)

    def choose_gpu(self, request: Request, node: int) -> int:
        """The GPU of the node that a share costs least on; the pod fits there."""
        gpus, snapshot = request.gpus, self._snapshot
        fits = (snapshot.milli[node] >= gpus.milli) & (snapshot.share_mib[node] >= gpus.share_mib)
        demand = self._mirror.demand_of(request)
        return self._refresh_policy(request).choose_gpu(demand, node, np.flatnonzero(fits).tolist())

    def _refresh_policy(self, request: Request) -> MixFit:
        """The policy with prices for the fleet as it is and the mix as it is known."""
        changed = self._mirror.sync()
        arrivals = self._mix.arrivals
        if self._policy is None:
            self._policy = MixFit(self._mirror.fleet, self._mix.typical_demands(self._mirror, request))
        elif arrivals >= self._rebuild_at:
            self._policy.learn(self._mix.typical_demands(self._mirror, request))
        else:
            if len(changed):
                self._policy.refresh(changed)
            return self._policy
        self._rebuild_at = min(int(arrivals * _GROWTH) + 1, arrivals + _REBUILD_EVERY)
        return self._policy
