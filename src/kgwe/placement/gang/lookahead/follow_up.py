"""Translates the search for a gang, and the gangs that follow, for the modules `choice` and `joint_plan`.

The look-ahead applies to Consolidated gangs of equal pods with whole GPUs, without segments, limits per leaf or a
required bandwidth. All Consolidated gangs with whole GPUs count as following gangs, each by its largest role.
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

# The most kinds of pods; gangs of further kinds are not considered.
_MAX_KINDS: Final = 6
# The most cached states of leaves; beyond, the cache is emptied.
_MAX_STATES: Final = 50_000


class LookaheadQuery(NamedTuple):
    """A gang with its default place, and where it could be instead."""

    table: LevelTable
    room: GangCapacity
    request: Request
    """Of each pod."""
    loads: Ints
    """Pods per place of the default choice."""
    levels: Sequence[int]
    """The level of the default choice, and higher levels that are as good."""
    history: NDArray[np.float64] | None
    """As in `SearchContext`."""


class Lookahead:
    """Looks ahead on one snapshot; its cache does not change results."""

    def __init__(self, fitter: Fitter) -> None:
        self._fitter = fitter
        self._leaf_states_by_gpus: dict[tuple[int, ...], LeafStates] = {}

    def arrange_gangs(self, table: LevelTable, following: Following) -> list[Intent | None]:
        """The place of each waiting gang when all are planned together; None: it is planned alone."""
        kinds: dict[Request, int] = {}
        demands = self._list_demands(table, following, kinds)
        counted = {number: demand for number, demand in enumerate(demands) if demand is not None}
        intents: list[Intent | None] = [None] * (len(demands) - following.expected)
        if not counted:
            return intents
        rooms = [self._count_room(table, each) for each in kinds]
        totals = [int(room.sum()) for room in rooms]
        # Often all that wait are refused again: then there is nothing to arrange.
        if not any(each.pods <= totals[each.kind] for number, each in counted.items() if number < len(intents)):
            return intents
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

    def read_intent(self, query: LookaheadQuery, intent: Intent) -> PlacementOption | None:
        """The option that the joint plan intends for the gang; None if it is not possible or not good enough."""
        table, room = query.table, query.room
        level = table.levels[table.leaf_level]
        numbers = {name: leaf for leaf, name in enumerate(level.names) if name}
        if any(name not in numbers for name, _ in intent.parts):
            return None
        parts = tuple((numbers[name], pods) for name, pods in intent.parts)
        capacity = room.by_level(0, query.levels[-1])[table.leaf_level]
        usable = _list_usable_leaves(query)
        if sum(pods for _, pods in parts) != int(query.loads.sum()):
            return None
        if any(capacity[leaf] < pods or not usable[leaf] for leaf, pods in parts):
            return None
        first, last = min(leaf for leaf, _ in parts), max(leaf for leaf, _ in parts)
        for each in query.levels:
            if any(first in leaves and last in leaves for leaves in table.leaf_ranges(each)):
                return PlacementOption(parts, each, intent.tight)
        return None

    def _count_room(self, table: LevelTable, request: Request) -> Ints:
        """Per place, the pods that fit."""
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

    def choose_option(self, query: LookaheadQuery, following: Following) -> Choice | None:
        """A better option than the default choice; None: there is none."""
        table, room = query.table, query.room
        own = room.by_level(0, query.levels[-1])[0]
        kinds = {query.request: 0}
        listed = self._list_demands(table, following, kinds)
        demands = [demand for demand in listed if demand is not None]
        if not demands:
            return None
        waiting = sum(demand is not None for demand in listed[: len(listed) - following.expected])
        rooms = [own, *(self._count_room(table, each) for each in list(kinds)[1:])]
        capacity = self._read_free_capacity(table, kinds, rooms)
        pods = int(query.loads.sum())
        loads = table.levels[table.leaf_level].sum_by_domain(query.loads)
        default = PlacementOption(
            tuple((leaf, int(loads[leaf])) for leaf in np.flatnonzero(loads).tolist()), query.levels[0]
        )
        levels = [(level, list(_iter_holding_domains(table, room, level, pods))) for level in query.levels]
        allowed = AllowedDomains(levels, _list_usable_leaves(query))
        return choice.choose_option(
            capacity, GangDemand(0, pods, ()), default, allowed, following=demands, waiting=waiting
        )

    def _leaf_states(self, gpus_per_pod: tuple[int, ...]) -> LeafStates:
        leaf_states = self._leaf_states_by_gpus.get(gpus_per_pod)
        if leaf_states is None or len(leaf_states) > _MAX_STATES:
            leaf_states = self._leaf_states_by_gpus[gpus_per_pod] = LeafStates(gpus_per_pod)
        return leaf_states

    @staticmethod
    def _list_demands(table: LevelTable, following: Following, kinds: dict[Request, int]) -> list[GangDemand | None]:
        """Demands of the following gangs in order, None for one that is not counted; adds their pods to `kinds`."""
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
    """Whether the look-ahead applies to the gang."""
    limits = (gang.max_nodes_per_leaf, gang.max_gpus_per_leaf, gang.min_network_gb_per_s)
    return (
        len(gang.roles) == 1
        and gang.strategy is Strategy.CONSOLIDATED
        and gang.roles[0].request.gpus.count > 0
        and not gang.roles[0].segments
        and not any(limits)
    )


def split_option(table: LevelTable, room: GangCapacity, option: PlacementOption) -> Ints:
    """Pods per place for the option."""
    capacity, leaf_level = room.by_level(0, option.level), table.leaf_level
    loads = np.zeros(len(table.node), np.int64)
    for leaf, pods in option.parts:
        if option.tight:
            inside = table.levels[leaf_level].place_range(leaf)
            loads[inside] = split.fill_smallest_first(capacity[0][inside], pods)
        else:
            loads += split.split_pods(table, capacity, room.units[0], (leaf_level, leaf), pods)
    return loads


def _list_usable_leaves(query: LookaheadQuery) -> list[bool]:
    """Leaf -> whether it is known, and as fast and as reliable as the worst leaf of the default choice."""
    table = query.table
    leaves = table.levels[table.leaf_level]
    used = leaves.sum_by_domain(query.loads) > 0
    reach = leaves.max_by_domain(table.reach_gb_per_s(query.levels[0]))
    usable = leaves.known & (reach >= reach[used].min())
    if query.history is not None:
        doubt = leaves.max_by_domain(-np.nan_to_num(query.history[table.node], nan=0.0))
        usable &= doubt <= doubt[used].max()
    found: list[bool] = usable.tolist()
    return found


def _largest_role(gang: GangRequest) -> Role:
    return max(gang.roles, key=lambda role: role.request.gpus.count * role.required_replicas)


def _read_limits(table: LevelTable, gang: GangRequest) -> tuple[Scopes, bool]:
    """The levels to try if no leaf holds the gang, and whether one leaf must hold it."""
    leaf = table.leaf_level
    names = [level.name for level in table.levels]
    top = names.index(gang.required) if gang.required in names else table.top
    preferred = names.index(gang.preferred) if gang.preferred in names else leaf + 1
    lowest = top if preferred <= leaf else min(preferred, top)
    return tuple(table.leaf_ranges(level) for level in range(max(lowest, leaf), top + 1)), top <= leaf


def _iter_holding_domains(table: LevelTable, room: GangCapacity, level: int, pods: int) -> Iterator[range]:
    """The leaves of each domain of the level that holds so many pods."""
    holds = room.by_level(0, level)[level] >= pods
    return (leaves for leaves, each in zip(table.leaf_ranges(level), holds.tolist(), strict=True) if each)
