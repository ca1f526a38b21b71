"""Counts how many pods of a gang every domain takes, from what fits its nodes and the limits of the gang."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from kgwe.placement.fleet.node import GPU_MILLI, SpotPolicy
from kgwe.placement.gang import split
from kgwe.placement.gang.request import NONE_FOLLOW
from kgwe.placement.pod.fit_status import FitStatus

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from kgwe.placement.fleet.hardware_kinds import HardwareKind
    from kgwe.placement.fleet.node import Request, Shape
    from kgwe.placement.gang.levels import LevelTable
    from kgwe.placement.gang.request import Following, GangRequest
    from kgwe.placement.pod.fit import Fitter

    Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Scope:
    """The nodes that a search may use, in addition to the constraints of the pods, and the gangs that follow."""

    #: None: any kind
    kind: HardwareKind | None = None
    excluded: NDArray[np.bool_] | None = None
    #: no spot nodes for roles that avoid them
    excludes_spot: bool = False
    following: Following = NONE_FOLLOW


ALL_NODES: Final = Scope()


class GangCapacity:
    """Capacities of the domains for the roles of one gang, computed from the snapshot on first use."""

    def __init__(self, fitter: Fitter, table: LevelTable, gang: GangRequest, scope: Scope = ALL_NODES) -> None:
        self._scope = scope
        self._excluded = None if scope.excluded is None else scope.excluded[table.node]
        self._fitter = fitter
        self._table = table
        self._gang = gang
        shapes = fitter.snapshot.shapes
        self._kind_masks = [self._kind_mask(role.request) for role in gang.roles]
        """Role -> places whose hardware kind it may use; None: all."""
        self.units = [split.segment_units(table, role) for role in gang.roles]
        self.pod_milli = [max_pod_milli(role.request, shapes) for role in gang.roles]
        """Role -> GPU of one of its pods, in thousandths."""
        self._no_pods = np.zeros(len(table.node), np.int64)
        self._cached: dict[tuple[int, int], list[Ints]] = {}

    def _kind_mask(self, request: Request) -> NDArray[np.bool_] | None:
        kind = self._scope.kind
        mask = None if kind is None else self._fitter.snapshot.kinds.mask_allowed(kind, request)
        return None if mask is None else mask[self._table.node]

    def by_level(self, role: int, level: int) -> list[Ints]:
        """Per level up to `level`, the pods of the role that each domain takes; the gang's domain is of `level`."""
        # The level matters only if the gang requires a network bandwidth.
        key = (role, level if self._gang.min_network_gb_per_s else -1)
        if key not in self._cached:
            top = level if self._gang.min_network_gb_per_s else self._table.top
            self._cached[key] = self._sum_by_level(
                role, self._count_on_nodes(role, level, self._no_pods), top, self._no_pods
            )
        return self._cached[key]

    def remaining_by_level(self, role: int, level: int, loads: Ints, milli: Ints) -> list[Ints]:
        """As `by_level`, uncached, with so many pods and so much GPU of the gang already at each place."""
        return self._sum_by_level(role, self._count_on_nodes(role, level, loads), level, milli)

    def count_when_empty(self, role: int) -> Ints:
        """Per place, the pods that the GPUs of the empty node hold; without whole GPUs, the pods that fit now."""
        request, nodes = self._gang.roles[role].request, self._table.node
        if not request.gpus.count:
            return self._fitter.count_pods(request)[nodes].astype(np.int64)
        fits = self._fitter.check_empty_nodes(request)[nodes] == FitStatus.FITS
        if (mine := self._kind_masks[role]) is not None:
            fits &= mine
        return np.where(fits, self._table.gpu_counts // request.gpus.count, 0)

    def max_when_empty(self, role: int, top: int) -> int:
        """The most pods that one empty domain up to this level would hold."""
        room = self._apply_limits(self.count_when_empty(role), self._no_pods)
        return max(int(each.max(initial=0)) for each in self._sum_by_level(role, room, top, self._no_pods))

    def _sum_by_level(self, role: int, room: Ints, top: int, milli: Ints) -> list[Ints]:
        per_leaf = None
        each = self.pod_milli[role]
        if self._gang.max_gpus_per_leaf and each:
            leaf = self._table.leaf
            held = np.bincount(leaf, weights=milli).astype(np.int64)
            per_leaf = np.maximum(self._gang.max_gpus_per_leaf * GPU_MILLI - held, 0)[leaf] // each
        return split.sum_capacities(self._table, room, self.units[role], top, per_leaf)

    def _count_on_nodes(self, role: int, level: int, loads: Ints) -> Ints:
        gang, table = self._gang, self._table
        request = gang.roles[role].request
        room = self._fitter.count_pods(request)[table.node].astype(np.int64)
        if (mine := self._kind_masks[role]) is not None:
            room[~mine] = 0
        if self._excluded is not None:
            room[self._excluded] = 0
        if self._scope.excludes_spot and request.spot is SpotPolicy.AVOID:
            room[self._fitter.snapshot.spot[table.node]] = 0
        if gang.min_network_gb_per_s:
            room[table.reach_gb_per_s(level) < gang.min_network_gb_per_s] = 0
        return self._apply_limits(room, loads)

    def _apply_limits(self, room: Ints, loads: Ints) -> Ints:
        """The room that the limits per node and per leaf leave; `loads`: pods of the gang already at each place."""
        gang = self._gang
        if gang.max_pods_per_node:
            room = np.minimum(room, np.maximum(gang.max_pods_per_node - loads, 0))
        if gang.max_nodes_per_leaf:
            room = split.limit_nodes(room, self._table.leaf, gang.max_nodes_per_leaf, loads > 0)
        return room


def max_pod_milli(request: Request, shapes: Iterable[Shape]) -> int:
    """GPU of one such pod, in thousandths; a slice counts with its largest fraction of a GPU on any shape."""
    gpus = request.gpus
    if not gpus.slices:
        return gpus.count * GPU_MILLI + gpus.milli
    parts = [
        GPU_MILLI * geometry.profile(gpus.profile).compute // geometry.compute
        for shape in shapes
        if (geometry := shape.geometry) is not None and gpus.profile in geometry.profiles
    ]
    return gpus.slices * max(parts, default=0)
