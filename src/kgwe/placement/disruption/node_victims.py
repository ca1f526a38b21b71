"""Which running workloads to stop so that a pod fits on one node.

A pod lacks GPUs (or a share of one, or slices), CPU, memory and a pod slot. Each is covered by what the items on the
node hold. Covering it by fractions of items, the lightest per unit first, is a lower bound of what has to be stopped.
The bound ranks the nodes, so that only a few are searched, and keeps each search narrow.

Whether a set suffices is always tested with the fitter on the snapshot without it: topology, shared GPUs and everything
else that the bound leaves out counts there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from kgwe.placement.disruption import room_curves, victims
from kgwe.placement.fleet.node import GPU_MILLI
from kgwe.placement.pod.fit_status import FitStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from kgwe.placement.disruption.victims import Found, Picked, VictimPool
    from kgwe.placement.fleet.node import Request
    from kgwe.placement.fleet.snapshot import Grant
    from kgwe.placement.pod.fit import Fitter

# Sets tried on one node: all of 8 items, and far more than the bound leaves of 16.
_STEPS: Final = 2000


@dataclass(frozen=True, slots=True)
class Shortfall:
    """An amount that is missing, and what each item holds of it."""

    missing: int
    gains: dict[int, int]
    by_weight_per_unit: tuple[int, ...]
    """Items that hold some, the lightest per unit first."""

    @classmethod
    def build(cls, pool: VictimPool, missing: int, gains: dict[int, int]) -> Shortfall:
        holders = [number for number, gain in gains.items() if gain > 0]
        holders.sort(key=lambda number: (pool.items[number].weight / gains[number], number))
        return cls(missing, gains, tuple(holders))

    def min_weight(self, pool: VictimPool, stopped: Sequence[int], following: int) -> int | None:
        """Least weight of items numbered `following` or above that covers the rest; None: they cannot."""
        missing = self.missing - sum(self.gains.get(number, 0) for number in stopped)
        weight = 0
        for number in self.by_weight_per_unit:
            if missing <= 0:
                break
            if number >= following and number not in stopped:
                used = min(missing, self.gains[number])
                weight += pool.items[number].weight * used // self.gains[number]
                missing -= used
        return None if missing > 0 else weight


class NodeVictims(victims.Problem):
    """How to make room for a pod on one node. `also` is asked last, on the snapshot without the set."""

    def __init__(
        self,
        fitter: Fitter,
        pool: VictimPool,
        request: Request,
        node: int,
        also: Callable[[int, Picked], bool] | None = None,
    ) -> None:
        self._fitter = fitter
        self._pool = pool
        self._request = request
        self._also = also
        self.node = node
        self.items = pool.items_on.get(node, [])
        self._grants = {number: self._grants_of(number) for number in self.items}
        self._all: list[Shortfall] = []
        """All of these must be covered."""
        self._either: list[Shortfall] = []
        """One of these must be covered, if there are any."""
        self._collect_shortfalls()

    def _grants_of(self, number: int) -> tuple[Grant, ...]:
        return tuple(grant for grant in self._pool.items[number].grants if grant.node == self.node)

    def _collect_shortfalls(self) -> None:
        snapshot, request, gpus, node = self._fitter.snapshot, self._request, self._request.gpus, self.node
        if request.cpu_milli:
            self._add_shortfall(request.cpu_milli - int(snapshot.cpu_milli[node]), lambda grant: grant.cpu_milli)
        if request.memory_bytes:
            self._add_shortfall(
                request.memory_bytes - int(snapshot.memory_bytes[node]), lambda grant: grant.memory_bytes
            )
        self._add_shortfall(1 - int(snapshot.pods[node]), lambda grant: grant.pods)
        if gpus.count:
            free = int(snapshot.free[node]).bit_count() - int(snapshot.owed[node])
            self._add_shortfall(gpus.count - free, lambda grant: room_curves.freed_amount(grant, request))
        elif gpus.slices:
            free = room_curves.count_free_slices(snapshot, gpus.profile, node)
            self._add_shortfall(gpus.slices - free, lambda grant: room_curves.freed_amount(grant, request))
        elif gpus.milli:
            # Any one GPU must have the whole share free.
            for gpu in range(snapshot.shapes[snapshot.shape[node]].gpu_count):
                missing = max(0, gpus.milli - int(snapshot.milli[node, gpu]))
                self._either.append(Shortfall.build(self._pool, missing, self._gains(_milli_on(gpu))))

    def _add_shortfall(self, missing: int, gain: Callable[[Grant], int]) -> None:
        if missing > 0:
            self._all.append(Shortfall.build(self._pool, missing, self._gains(gain)))

    def _gains(self, gain: Callable[[Grant], int]) -> dict[int, int]:
        return {number: sum(map(gain, grants)) for number, grants in self._grants.items()}

    def is_sufficient(self, picked: Picked) -> bool:
        with self._pool.without_items(picked, None if self._also else self.node):
            return self.fits_now(picked)

    def fits_now(self, picked: Picked) -> bool:
        """Whether it suffices, the snapshot being without the set already."""
        fits = bool(self._fitter.check_nodes(self._request, np.array([self.node]))[0] == FitStatus.FITS)
        return fits and (self._also is None or self._also(self.node, picked))

    def min_lacking_weight(self, picked: Picked, rest: Sequence[int]) -> int | None:
        stopped = self._pool.with_gang_mates(picked)
        following = rest[0] if rest else len(self._pool.items)
        bounds = [lack.min_weight(self._pool, stopped, following) for lack in self._all]
        if self._either:
            some = [
                bound for lack in self._either if (bound := lack.min_weight(self._pool, stopped, following)) is not None
            ]
            bounds.append(min(some, default=None))
        known = [bound for bound in bounds if bound is not None]
        return None if len(known) < len(bounds) else max(known, default=0)

    def min_total_weight(self) -> int | None:
        """Lower bound of the weight to stop; None: stopping all does not suffice."""
        return self.min_lacking_weight((), self.items)

    def find_lightest(self, below: int | None = None, steps: int = _STEPS) -> Found:
        """The lightest sufficient set; a minimal one, not proven, if the search takes too long."""
        found = victims.find_lightest(self._pool, self.items, self, steps=steps, below=below)
        return found if found.proven else self._find_greedily(below)

    def _find_greedily(self, below: int | None) -> Found:
        """Stop everything that budgets allow, then drop items that are not needed."""
        picked = self._pool.pick_within_budgets(self.items)
        if self.is_sufficient(picked):
            picked = victims.drop_unneeded(self._pool, picked, self.fits_now)
            if below is None or self._pool.weight(picked) < below:
                return victims.Found(picked, proven=False)
        return victims.Found(None, proven=False)


def rank_nodes(problems: Iterable[NodeVictims]) -> list[tuple[int, NodeVictims]]:
    """Nodes where stopping workloads can help, with their bound, the lowest first."""
    bounds = [(bound, problem) for problem in problems if (bound := problem.min_total_weight()) is not None]
    return sorted(bounds, key=lambda pair: (pair[0], pair[1].node))


def find_best_node(pool: VictimPool, problems: Iterable[NodeVictims]) -> tuple[Found, int]:
    """The lightest set over all nodes, and its node; -1 when there is none."""
    best, node, weight, proven = None, -1, None, True
    for bound, problem in rank_nodes(problems):
        if weight is not None and bound >= weight:
            break
        found = problem.find_lightest(below=weight)
        proven &= found.proven
        if found.picked is not None:
            best, node, weight = found.picked, problem.node, pool.weight(found.picked)
    return victims.Found(best, proven), node


def _milli_on(gpu: int) -> Callable[[Grant], int]:
    def gain(grant: Grant) -> int:
        if grant.share is not None and grant.share[0] == gpu:
            return grant.share[1]
        return GPU_MILLI * (grant.gpus >> gpu & 1)

    return gain
