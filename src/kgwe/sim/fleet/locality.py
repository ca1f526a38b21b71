"""The number of nodes, NVLink domains and leaves of a job, and the minimum on an empty fleet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kgwe.sim.fleet.fleet import NO_LEAF

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from kgwe.placement.fleet.snapshot import Grant
    from kgwe.sim.fleet.fleet import World
    from kgwe.sim.traces.workload import Job


@dataclass(frozen=True, slots=True)
class Spread:
    nodes: int
    #: NVLink domains, and nodes outside of any
    boxes: int
    #: 0 if unknown
    leaves: int
    #: slowdown of the network end to end, compared with the inside of a leaf
    contention: float = 1.0


def measure_spread(world: World, grants: Sequence[Grant]) -> Spread:
    nodes = {grant.node for grant in grants}
    leaves = {int(world.leaf[node]) for node in nodes}
    boxes = {int(world.box[node]) for node in nodes}
    return Spread(len(nodes), len(boxes), 0 if NO_LEAF in leaves else len(leaves), _contention(world, nodes))


def _contention(world: World, nodes: Iterable[int]) -> float:
    """Return the slowdown: go up the levels until one known domain holds all nodes."""
    slower = 1.0
    if all(ratio == 1 for ratio in world.oversubscription):
        return slower
    places = world.place[list(nodes)]
    for number, ratio in enumerate(world.oversubscription):
        domains = world.tree.domain_of[number, places]
        if (domains == domains[0]).all() and (len(places) == 1 or world.tree.levels[number].known[domains[0]]):
            break
        slower *= ratio
    return slower


def find_least_spread(world: World, job: Job) -> Spread:
    """Return the minimum spread of the job; call it while the fleet is empty."""
    room = world.fitter.count_pods(job.request).astype(np.int64)
    leaves = _count_fewest_domains(_sums(room, world.leaf - NO_LEAF)[1:], job.pods)
    boxes = _count_fewest_domains(_sums(room, world.box), job.pods)
    return Spread(_count_fewest_domains(room, job.pods), boxes, leaves, _least_contention(world, room, job.pods))


def _least_contention(world: World, room: NDArray[np.int64], pods: int) -> float:
    slower = 1.0
    for level, ratio in zip(world.tree.levels, world.oversubscription, strict=True):
        if int(np.where(level.known, level.sums(room[world.tree.order]), 0).max(initial=0)) >= pods:
            break
        slower *= ratio
    return slower


def _sums(room: NDArray[np.int64], group: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.bincount(group, weights=room).astype(np.int64)


def _count_fewest_domains(room: NDArray[np.int64], pods: int) -> int:
    """Return how many of the largest hold all pods; 0 if all together do not."""
    filled = np.cumsum(np.sort(room)[::-1])
    return int(np.searchsorted(filled, pods)) + 1 if len(filled) and filled[-1] >= pods else 0
