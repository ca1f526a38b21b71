"""Assigns GPUs to every pod of a gang, and numbers the ranks.

The pods of a role are numbered in tree order. So consecutive ranks share a node, then a leaf, then a spine, and the
ring through them leaves every domain once. The ranks of a second role begin at the place of the last pod of the first
role and wrap around: the leader's neighbour is a worker beside it. They wrap around in whole segments, so that every
group stays together.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

import numpy as np

from kgwe.placement.gang.plan import Seat

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from kgwe.placement.fleet.node import Request
    from kgwe.placement.fleet.snapshot import Grant, Trial
    from kgwe.placement.gang.levels import LevelTable
    from kgwe.placement.gang.request import Role
    from kgwe.placement.pod.fit import Fitter

#: per role, its pods in tree order: (place, grant)
Seating = list[list[tuple[int, "Grant"]]]


def assign_gpus(
    trial: Trial, fitter: Fitter, table: LevelTable, request: Request, loads: NDArray[np.int64]
) -> list[tuple[int, Grant]] | None:
    """Book `loads[place]` such pods at each place, within the trial; None if some pod does not fit."""
    assigned: list[tuple[int, Grant]] = []
    for place in np.flatnonzero(loads).tolist():
        node = int(table.node[place])
        for _ in range(int(loads[place])):
            grant = fitter.find_grant(request, node)
            if grant is None:
                return None
            trial.commit(grant)
            assigned.append((place, grant))
    return assigned


def order_by_rank(roles: Sequence[Role], seating: Seating) -> list[list[tuple[int, Grant]]]:
    """Each role's pods in the order of their ranks."""
    ordered: list[list[tuple[int, Grant]]] = []
    last: int | None = None
    for role, pods in zip(roles, seating, strict=True):
        turned = pods
        if last is not None:
            begin = bisect_left(pods, last, key=lambda pod: pod[0]) // role.replica_step * role.replica_step
            turned = pods[begin:] + pods[:begin]
        ordered.append(turned)
        last = turned[-1][0]
    return ordered


def number_seats(roles: Sequence[Role], ordered: Seating, names: Sequence[str]) -> Iterator[Seat]:
    number = 0
    for role, pods in zip(roles, ordered, strict=True):
        for index, (place, grant) in enumerate(pods):
            yield Seat(number, role.name, index, names[place], grant)
            number += 1


def merge_gpu_masks(ordered: Seating) -> dict[int, int]:
    """Place -> mask of the GPUs that the gang uses there."""
    used: dict[int, int] = {}
    for pods in ordered:
        for place, grant in pods:
            used[place] = used.get(place, 0) | grant.gpu_mask
    return used
