"""Placement policies by name.

A policy gets one job at a time and returns one grant per pod, or None if the job does not fit as a whole; it books
nothing. It must refuse only jobs that do not fit: a refused job is tried again when capacity becomes free.

The simple policies here order the nodes and fill them in that order, like a scheduler that places pods one by one.
`REGISTRY` contains all of them, with those of the placement engine.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from kgwe import errors
from kgwe.placement.packing.mixfit import MixFit
from kgwe.sim.fleet.fleet import NO_LEAF
from kgwe.sim.packing.fgd import Fgd
from kgwe.sim.policies import engine

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from kgwe.placement.fleet.snapshot import Grant
    from kgwe.placement.packing.policy import PolicyFactory as PackingFactory
    from kgwe.sim.fleet.fleet import World
    from kgwe.sim.traces.workload import Job, Workload

    Grants = tuple[Grant, ...]
    Nodes = NDArray[np.intp]


class Policy(Protocol):
    def place(self, job: Job) -> Grants | None:
        """Return one grant per pod, or None if the job does not fit."""


class PolicyFactory(Protocol):
    def __call__(self, world: World, workload: Workload, rng: np.random.Generator) -> Policy:
        """Return a policy for one run. It may use the mix of the workload's pods, but not the order of arrivals."""


class _Ordered(abc.ABC):
    """Fills nodes in an order that subclasses define."""

    def __init__(self, world: World, workload: Workload, rng: np.random.Generator) -> None:
        del workload
        self._world = world
        self._rng = rng

    def place(self, job: Job) -> Grants | None:
        room = self._world.fitter.count_pods(job.request)
        nodes = np.flatnonzero(room)
        if int(room[nodes].sum()) < job.pods:
            return None
        counts = self.share_out(job, nodes[self.order(nodes)], room)
        return self._world.grants(job.request, counts)

    @abc.abstractmethod
    def order(self, nodes: Nodes) -> Nodes:
        """Return indices into `nodes`, in the order of filling."""

    def share_out(self, job: Job, nodes: Nodes, room: NDArray[np.int32]) -> list[tuple[int, int]]:
        """Fill one node after the other."""
        return _fill(job.pods, nodes, room)

    def _count_free(self, nodes: Nodes) -> NDArray[np.int64]:
        free: NDArray[np.int64] = self._world.snapshot.milli[nodes].sum(axis=1, dtype=np.int64)
        return free


def _fill(pods: int, nodes: Nodes, room: NDArray[np.int32]) -> list[tuple[int, int]]:
    filled = np.cumsum(room[nodes])
    last = int(np.searchsorted(filled, pods))
    counts = [(int(node), int(room[node])) for node in nodes[: last + 1]]
    node, count = counts[-1]
    counts[-1] = (node, count - (int(filled[last]) - pods))
    return counts


class FirstFit(_Ordered):
    """Takes the first nodes of the list with room."""

    def order(self, nodes: Nodes) -> Nodes:
        return np.arange(len(nodes))


class BestFit(_Ordered):
    """Takes the nodes with the least free GPUs, pod by pod (kube-scheduler's MostAllocated)."""

    def order(self, nodes: Nodes) -> Nodes:
        return np.argsort(self._count_free(nodes), kind="stable")


class Random(_Ordered):
    """Takes random nodes with room."""

    def order(self, nodes: Nodes) -> Nodes:
        return self._rng.permutation(len(nodes))


class Spread(_Ordered):
    """Takes the emptiest nodes, one pod each in turn (kube-scheduler's default, LeastAllocated)."""

    def order(self, nodes: Nodes) -> Nodes:
        return np.argsort(-self._count_free(nodes), kind="stable")

    def share_out(self, job: Job, nodes: Nodes, room: NDArray[np.int32]) -> list[tuple[int, int]]:
        # Rounds over the nodes with room: round k serves those with room for more than k.
        left, counts, level = job.pods, np.zeros(len(nodes), dtype=np.int64), 0
        while left:
            takes = np.flatnonzero(room[nodes] > level)[:left]
            counts[takes] += 1
            left -= len(takes)
            level += 1
        return [(int(node), int(count)) for node, count in zip(nodes, counts, strict=True) if count]


class Consolidate(_Ordered):
    """Takes the tightest leaf that holds the job, and in it the fewest nodes; across leaves, those with most room
    first.
    """

    def order(self, nodes: Nodes) -> Nodes:
        return np.argsort(self._count_free(nodes), kind="stable")

    def share_out(self, job: Job, nodes: Nodes, room: NDArray[np.int32]) -> list[tuple[int, int]]:
        # The fullest node that holds the whole job, in the order of `order`.
        alone = np.flatnonzero(room[nodes] >= job.pods)
        if len(alone):
            return [(int(nodes[alone[0]]), job.pods)]
        leaves = self._world.leaf[nodes]
        room_of = np.bincount(leaves - NO_LEAF, weights=room[nodes])
        room_of[0] = 0  # unknown leaves do not count as one leaf
        holding = np.flatnonzero(room_of[1:] >= job.pods)
        if len(holding):
            nodes = nodes[leaves == holding[np.argmin(room_of[1:][holding])]]
            rank = np.argsort(-room[nodes], kind="stable")
        else:
            rank = np.lexsort((-room[nodes], leaves, -room_of[leaves - NO_LEAF]))
        return _fill(job.pods, nodes[rank], room)


def _packing(make: PackingFactory) -> PolicyFactory:
    def build(world: World, workload: Workload, rng: np.random.Generator) -> Policy:
        return engine.PodByPod(world, workload, rng, make)

    return build


@dataclass(frozen=True, slots=True)
class Named:
    make: PolicyFactory
    summary: str


REGISTRY: Final[Mapping[str, Named]] = {
    "first-fit": Named(FirstFit, "the first nodes with room"),
    "best-fit": Named(BestFit, "the fullest nodes with room, pod by pod"),
    "spread": Named(Spread, "the emptiest nodes, one pod each in turn"),
    "random": Named(Random, "random nodes with room"),
    "kgwe": Named(engine.kgwe, "KGWE's engine for single pods, its gang planner for several"),
    "kgwe-pack": Named(engine.kgwe_pack, "like kgwe, but single pods go to the fullest node"),
    "kgwe-mixfit": Named(engine.kgwe_mixfit, "like kgwe, but single pods use the strategy mixfit"),
    "fgd": Named(_packing(Fgd), "FGD (ATC'23): least growth of fragmentation, pod by pod"),
    "mixfit": Named(_packing(MixFit), "KGWE's packing policy for shares, pod by pod"),
    "consolidate": Named(Consolidate, "the fewest nodes of the tightest leaf"),
}


def find_policy(name: str) -> PolicyFactory:
    if name in REGISTRY:
        return REGISTRY[name].make
    raise errors.Permanent(f"unknown policy {name!r}; known policies: {', '.join(REGISTRY)}")
