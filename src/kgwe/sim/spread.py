"""Over how many nodes, NVLink domains and leaves a job is spread, and over how few it could be on an empty fleet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kgwe.sim.world import NO_LEAF

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from kgwe.placement.snapshot import Grant
    from kgwe.sim.workload import Job
    from kgwe.sim.world import World


@dataclass(frozen=True, slots=True)
class Spread:
    nodes: int
    #: NVLink domains, and nodes outside of any
    boxes: int
    #: 0: not known
    leaves: int


def of(world: World, grants: Sequence[Grant]) -> Spread:
    nodes = {grant.node for grant in grants}
    leaves = {int(world.leaf[node]) for node in nodes}
    boxes = {int(world.box[node]) for node in nodes}
    return Spread(len(nodes), len(boxes), 0 if NO_LEAF in leaves else len(leaves))


def fewest(world: World, job: Job) -> Spread:
    """The least spread of the job; to be asked while the fleet is empty."""
    room = world.fitter.room(job.request).astype(np.int64)
    leaves = _fewest(_sums(room, world.leaf - NO_LEAF)[1:], job.pods)
    return Spread(_fewest(room, job.pods), _fewest(_sums(room, world.box), job.pods), leaves)


def _sums(room: NDArray[np.int64], group: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.bincount(group, weights=room).astype(np.int64)


def _fewest(room: NDArray[np.int64], pods: int) -> int:
    """How many of the largest hold all pods; 0: not even all of them."""
    filled = np.cumsum(np.sort(room)[::-1])
    return int(np.searchsorted(filled, pods)) + 1 if len(filled) and filled[-1] >= pods else 0
