"""One gang's search and the gangs that follow it, brought into the terms of `kgwe.placement.gang.lookahead.choice`.

Looked ahead for are gangs of equal pods of whole cards that are Consolidated and limit neither segments nor leaves.
Counted as those that follow are all Consolidated gangs of whole cards, each by its largest role.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from kgwe.placement.gang import split
from kgwe.placement.gang.lookahead import choice, free_capacity, joint_plan
from kgwe.placement.gang.lookahead.choice import AllowedDomains, PlacementOption
from kgwe.placement.gang.lookahead.free_capacity import FreeCapacity, LeafStates
from kgwe.placement.gang.lookahead.quick_fit import GangDemand
from kgwe.placement.gang.request import NVLINK, Intent, Strategy

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from kgwe.placement.fleet.node import Request
    from kgwe.placement.gang.capacity import GangCapacity
    from kgwe.placement.gang.levels import LevelTable
    from kgwe.placement.gang.lookahead.choice import Choice
    from kgwe.placement.gang.lookahead.quick_fit import Scopes
    from kgwe.placement.gang.request import Following, GangRequest, Role
    from kgwe.placement.pod.fit import Fitter

    Ints = NDArray[np.int64]

# Kinds of pods that are told apart.
_MAX_KINDS: Final = 6
# States of leaves that are remembered; beyond, all are forgotten.
_MAX_STATES: Final = 50_000


class LookaheadQuery(NamedTuple):
    """A gang that has a place, and where it could be instead."""

    table: LevelTable
    room: GangCapacity
    request: Request
    """Of each pod."""
    loads: Ints
    """Pods per place, if none followed."""
    levels: Sequence[int]
    """The one that place is on, and others that will do, upwards."""
    history: NDArray[np.float64] | None
    """As of `GangSearch`."""


class Lookahead:
    """Looks ahead on one fitter; what it remembers saves time and changes no answer."""

    def __init__(self, fitter: Fitter) -> None:
        self._fitter = fitter
        self._leaf_states_by_gpus: dict[tuple[int, ...], LeafStates] = {}

    def arrange_gangs(self, table: LevelTable, following: Following) -> list[Intent | None]:
        """Where each gang that waits goes when all are planned together; None: as it would go by itself."""
        kinds: dict[Request, int] = {}
        demands = self._list_demands(table, following, kinds)
        counted = {number: demand for number, demand in enumerate(demands) if demand is not None}
        intents: list[Intent | None] = [None] * (len(demands) - following.expected)
        if not counted:
            return intents
        rooms = [self._count_room(table, each) for each in kinds]
        known: list[bool] = table.levels[table.leaf_level].known.tolist()
        capacity = self._read_free_capacity(table, kinds, rooms).restrict_to(known)
        levels = tuple(table.leaf_ranges(level) for level in range(table.leaf_level + 1, table.top))
        joint = joint_plan.plan_together(capacity, list(counted.values()), levels)
        if joint.leaves == joint.placed == len(counted):
            return intents
        names = table.levels[table.leaf_level].names
        for number, parts in zip(counted, joint.parts, strict=True):
            gang = following.kinds[following.order[number]]
            if parts and number < len(intents) and is_eligible(gang) and NVLINK not in gang.named_levels:
                intents[number] = Intent(
                    tuple((names[leaf], pods) for leaf, pods in parts), joint.tight, joint.describe()
                )
        return intents

    def read_intent(self, asked: LookaheadQuery, intent: Intent) -> PlacementOption | None:
        """The option that the joint plan intends for the gang; None: it is not possible or not good enough."""
        table, room = asked.table, asked.room
        level = table.levels[table.leaf_level]
        numbers = {name: leaf for leaf, name in enumerate(level.names) if name}
        if any(name not in numbers for name, _ in intent.parts):
            return None
        parts = tuple((numbers[name], pods) for name, pods in intent.parts)
        capacity = room.by_level(0, asked.levels[-1])[table.leaf_level]
        fine = _list_usable_leaves(asked)
        if sum(pods for _, pods in parts) != int(asked.loads.sum()):
            return None
        if any(capacity[leaf] < pods or not fine[leaf] for leaf, pods in parts):
            return None
        first, last = min(leaf for leaf, _ in parts), max(leaf for leaf, _ in parts)
        for each in asked.levels:
            if any(first in leaves and last in leaves for leaves in table.leaf_ranges(each)):
                return PlacementOption(parts, each, intent.tight)
        return None

    def _count_room(self, table: LevelTable, request: Request) -> Ints:
        """Pods that fit, per place."""
        return self._fitter.count_pods(request)[table.node].astype(np.int64)

    def _read_free_capacity(
        self, table: LevelTable, requests: Iterable[Request], rooms: Sequence[Ints]
    ) -> FreeCapacity:
        gpus_per_pod = tuple(each.gpus.count for each in requests)
        free = np.bitwise_count(self._fitter.snapshot.free[table.node]).astype(np.int64)
        leaves = table.levels[table.leaf_level]
        return FreeCapacity.from_leaves(
            self._leaf_states(gpus_per_pod), free_capacity.read_leaf_states(leaves, free, rooms)
        )

    def choose_option(self, asked: LookaheadQuery, following: Following) -> Choice | None:
        """A better option to place the gang than the usual one; None: there is none."""
        table, room = asked.table, asked.room
        own = room.by_level(0, asked.levels[-1])[0]
        kinds = {asked.request: 0}
        listed = self._list_demands(table, following, kinds)
        demands = [demand for demand in listed if demand is not None]
        if not demands:
            return None
        waiting = sum(demand is not None for demand in listed[: len(listed) - following.expected])
        rooms = [own, *(self._count_room(table, each) for each in list(kinds)[1:])]
        capacity = self._read_free_capacity(table, kinds, rooms)
        pods = int(asked.loads.sum())
        loads = table.levels[table.leaf_level].sum_by_domain(asked.loads)
        usual = PlacementOption(
            tuple((leaf, int(loads[leaf])) for leaf in np.flatnonzero(loads).tolist()), asked.levels[0]
        )
        levels = [(level, list(_iter_holding_domains(table, room, level, pods))) for level in asked.levels]
        allowed = AllowedDomains(levels, _list_usable_leaves(asked))
        return choice.choose_option(
            capacity, GangDemand(0, pods, ()), usual, allowed, following=demands, waiting=waiting
        )

    def _leaf_states(self, gpus_per_pod: tuple[int, ...]) -> LeafStates:
        leaf_states = self._leaf_states_by_gpus.get(gpus_per_pod)
        if leaf_states is None or len(leaf_states) > _MAX_STATES:
            leaf_states = self._leaf_states_by_gpus[gpus_per_pod] = LeafStates(gpus_per_pod)
        return leaf_states

    @staticmethod
    def _list_demands(table: LevelTable, following: Following, kinds: dict[Request, int]) -> list[GangDemand | None]:
        """Those that follow in their order, None for one that is not counted; adds their pods to `kinds`."""
        demands: list[GangDemand | None] = []
        for gang in following.kinds:
            role = _largest_role(gang)
            is_counted = gang.strategy is Strategy.CONSOLIDATED and role.request.gpus.count > 0
            if is_counted and (role.request in kinds or len(kinds) < _MAX_KINDS):
                kind = kinds.setdefault(role.request, len(kinds))
                demands.append(GangDemand(kind, role.required_replicas, *_read_limits(table, gang)))
            else:
                demands.append(None)
        return [demands[number] for number in following.order]


def is_eligible(gang: GangRequest) -> bool:
    """Whether the gang itself is looked ahead for."""
    limits = (gang.max_nodes_per_leaf, gang.max_gpus_per_leaf, gang.min_network_gb_per_s)
    return (
        len(gang.roles) == 1
        and gang.strategy is Strategy.CONSOLIDATED
        and gang.roles[0].request.gpus.count > 0
        and not gang.roles[0].segments
        and not any(limits)
    )


def split_option(table: LevelTable, room: GangCapacity, option: PlacementOption) -> Ints:
    """Pods per place, leaf by leaf as the option says."""
    capacity, leaf_level = room.by_level(0, option.level), table.leaf_level
    loads = np.zeros(len(table.node), np.int64)
    for leaf, pods in option.parts:
        if option.tight:
            inside = table.levels[leaf_level].place_range(leaf)
            loads[inside] = split.fill_smallest_first(capacity[0][inside], pods)
        else:
            loads += split.split_pods(table, capacity, room.units[0], (leaf_level, leaf), pods)
    return loads


def _list_usable_leaves(asked: LookaheadQuery) -> list[bool]:
    """Leaf -> whether it is known, and as fast and as reliable as the worst of those in use."""
    table = asked.table
    leaves = table.levels[table.leaf_level]
    used = leaves.sum_by_domain(asked.loads) > 0
    reach = leaves.max_by_domain(table.reach_gb_per_s(asked.levels[0]))
    fine = leaves.known & (reach >= reach[used].min())
    if asked.history is not None:
        doubt = leaves.max_by_domain(-np.nan_to_num(asked.history[table.node], nan=0.0))
        fine &= doubt <= doubt[used].max()
    found: list[bool] = fine.tolist()
    return found


def _largest_role(gang: GangRequest) -> Role:
    return max(gang.roles, key=lambda role: role.request.gpus.count * role.required_replicas)


def _read_limits(table: LevelTable, gang: GangRequest) -> tuple[Scopes, bool]:
    """Levels to look at when no leaf holds the gang, and whether there are none."""
    leaf = table.leaf_level
    names = [level.name for level in table.levels]
    top = names.index(gang.required) if gang.required in names else table.top
    preferred = names.index(gang.preferred) if gang.preferred in names else leaf + 1
    lowest = top if preferred <= leaf else min(preferred, top)
    return tuple(table.leaf_ranges(level) for level in range(max(lowest, leaf), top + 1)), top <= leaf


def _iter_holding_domains(table: LevelTable, room: GangCapacity, level: int, pods: int) -> Iterator[range]:
    """The leaves of each domain of a level that holds so many pods."""
    holds = room.by_level(0, level)[level] >= pods
    return (leaves for leaves, each in zip(table.leaf_ranges(level), holds.tolist(), strict=True) if each)
