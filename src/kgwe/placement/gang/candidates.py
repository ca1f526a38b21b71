"""Finds candidates for a gang in the domains of one level: a domain, and GPUs for every pod.

1. Shortlist a few domains: fewest leaves, then the fastest network, then the best score.
2. Split the pods of each shortlisted domain over leaves, down to the nodes.
3. Order the domains by leaves, ring and score.
4. Use the place of the joint plan, or consider the gangs that follow: another place may be better for them.
5. Assign GPUs to every pod within a trial.

Several roles compete for the same nodes. They are placed one after the other, domain by domain, without steps 2 to 4.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from kgwe.model.gpu import bandwidth
from kgwe.placement.fleet.node import Preference
from kgwe.placement.gang import assign, split
from kgwe.placement.gang.lookahead import follow_up
from kgwe.placement.gang.request import NONE_FOLLOW, NVLINK, Strategy

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from kgwe.placement.gang.assign import Seating
    from kgwe.placement.gang.capacity import GangCapacity
    from kgwe.placement.gang.context import SearchContext
    from kgwe.placement.gang.levels import LevelTable
    from kgwe.placement.gang.lookahead.choice import PlacementOption
    from kgwe.placement.gang.request import Following, GangRequest, Role

    Ints = NDArray[np.int64]

# Domains of a level whose pods are split and whose rings are compared.
_SHORTLIST: Final = 8
# Domains tried for several roles: capacities alone do not tell whether all roles fit.
_TRIES: Final = 32


class Candidate(NamedTuple):
    """A domain with GPUs for every pod of the gang."""

    level: int
    domain: int
    seating: Seating
    fastest: float
    """GB/s of the fastest ring of the domains compared; 0 when none were compared."""
    choice_note: str = ""
    """Why it is not the default choice; empty: it is."""


class LevelBounds(NamedTuple):
    """The levels that a gang searches."""

    start: int
    """The lowest level to try."""
    preferred: int
    """The highest level that meets the preference."""
    top: int
    """The highest level to try."""

    @classmethod
    def from_gang(cls, table: LevelTable, gang: GangRequest) -> LevelBounds:
        top = table.find_level(gang.required) if gang.required else table.top
        preferred = table.find_level(gang.preferred) if gang.preferred else table.top
        if gang.strategy is Strategy.CONSOLIDATED:
            lowest = 0
        elif gang.strategy is Strategy.BALANCED and not gang.preferred:
            lowest = table.leaf_level
        else:
            lowest = preferred
        return cls(min(lowest, top), preferred, top)


class _DefaultChoice(NamedTuple):
    """Where a gang of equal pods goes if no other gang follows."""

    level: int
    domain: int
    loads: Ints
    """Pods per place."""
    rate: float
    """GB/s of its ring."""
    fastest: float
    """As in `Candidate`."""


class CandidateFinder:
    """Finds the candidates of one gang; books nothing."""

    def __init__(
        self, context: SearchContext, gang: GangRequest, room: GangCapacity, bounds: LevelBounds, following: Following
    ) -> None:
        self._context = context
        self._gang = gang
        self._room = room
        self._bounds = bounds
        self._following = following if follow_up.is_eligible(gang) else NONE_FOLLOW
        self._table = context.level_tables.for_levels(gang.named_levels)
        self._by_rate = gang.communicates

    def iter_candidates(
        self, level: int, holds: NDArray[np.intp], counts: Sequence[int], score: NDArray[np.float64]
    ) -> Iterator[Candidate]:
        """Candidates in which every pod has its GPUs, the best first.

        `holds`: the domains of the level that hold every role; `counts`: pods of each role; `score`: of each domain.
        """
        shortlist = self._shortlist(level, holds, score, counts)
        if len(counts) > 1:
            yield from self._seat_together(level, shortlist, counts)
            return
        for thorough in (False, True):
            options, fastest = self._compare_domains(level, shortlist, counts[0], score, thorough=thorough)
            for domain, loads, rate in options if thorough else options[:1]:
                default = _DefaultChoice(level, domain, loads, rate, fastest)
                found = self._look_ahead(default) or self._assign_gpus(level, domain, loads, fastest)
                if found is not None:
                    yield found

    def _shortlist(
        self, level: int, holds: NDArray[np.intp], score: NDArray[np.float64], counts: Sequence[int]
    ) -> list[int]:
        """The domains to try, in order: known ones, then by leaves, bound of the ring, score and free GPUs around."""
        domains = self._table.levels[level]
        leaves = self._fewest_leaves(level, counts)
        bound = self._bound_ring_by_domain(level) if self._by_rate else np.zeros(len(domains))
        order = np.lexsort(
            (
                holds,
                *self._count_free_around(level, holds),
                -score[holds],
                -bound[holds],
                leaves[holds],
                ~domains.known[holds],
            )
        )
        chosen: list[int] = holds[order][: _SHORTLIST if len(self._gang.roles) == 1 else _TRIES].tolist()
        return chosen

    def _fewest_leaves(self, level: int, counts: Sequence[int]) -> Ints:
        """Per domain, the fewest leaves for the role that needs most of them; always 1 unless Consolidated."""
        if self._gang.strategy is not Strategy.CONSOLIDATED or level <= self._table.leaf_level:
            return np.ones(len(self._table.levels[level]), np.int64)
        each = [
            split.count_leaves(self._table, self._room.by_level(number, level), level, count)
            for number, count in enumerate(counts)
        ]
        most: Ints = np.max(each, axis=0)
        return most

    def _count_free_around(self, level: int, holds: NDArray[np.intp]) -> list[Ints]:
        """Per level above, the free GPUs around each domain: of equal domains, the one with fewer is better."""
        free = np.bitwise_count(self._context.fitter.snapshot.free[self._table.node]).astype(np.int64)
        sign = -1 if self._gang.strategy is Strategy.DISTRIBUTED else 1
        first = self._table.levels[level].starts[holds]
        above = self._table.levels[level + 1 : self._table.top]
        return [
            sign * domains.sum_by_domain(free)[np.searchsorted(domains.starts, first, "right") - 1]
            for domains in above[::-1]
        ]

    def _bound_ring_by_domain(self, level: int) -> NDArray[np.float64]:
        """Per domain, an upper bound of the GB/s of a ring inside it."""
        snapshot, nodes, domains = self._context.fitter.snapshot, self._table.node, self._table.levels[level]
        has_room = self._room.by_level(0, level)[0] > 0
        if domains.name == NVLINK:
            return domains.max_by_domain(np.where(has_room, self._context.rings.nvlink[snapshot.shape[nodes]], 0.0))
        if level:
            return domains.max_by_domain(np.where(has_room, self._table.reach_gb_per_s(level), 0.0))
        role = self._gang.roles[0]
        gpus = role.request.gpus.count * role.required_replicas
        if len(self._gang.roles) > 1 or not 0 < gpus <= bandwidth.MAX_TABLED_GPUS:
            return np.zeros(len(domains))
        table = self._context.fitter.tables.gb_per_s(gpus, Preference.NONE)
        bounds: NDArray[np.float64] = table[self._context.fitter.table_rows(nodes)].astype(np.float64)
        return bounds

    def _compare_domains(
        self, level: int, shortlist: Sequence[int], count: int, score: NDArray[np.float64], *, thorough: bool
    ) -> tuple[list[tuple[int, Ints, float]], float]:
        """Domains with their loads and GB/s, the best first, and the fastest GB/s.

        Unless `thorough`, only the first domain is certain to be in its place.
        """
        known = self._table.levels[level].known
        leaves = self._fewest_leaves(level, [count])

        def merit(domain: int, rate: float) -> tuple[bool, int, float, float]:
            """The sort key: the smallest is the best."""
            return (not known[domain], int(leaves[domain]), -rate if self._by_rate else 0.0, -float(score[domain]))

        ceilings = self._bound_rings(level, shortlist, count)
        options: list[tuple[tuple[bool, int, float, float], int, Ints, float]] = []
        fastest = 0.0
        for number, domain in enumerate(shortlist):
            rest = zip(shortlist[number:], ceilings[number:], strict=True)
            best = min((option[0] for option in options), default=None)
            if best and not thorough and all(rate <= fastest and merit(other, rate) >= best for other, rate in rest):
                break
            loads = self._split_pods(level, domain, count)
            rate = self._predict_rate(loads)
            if self._meets_min_network(np.flatnonzero(loads)):
                fastest = max(fastest, rate) if rate < np.inf else fastest
                options.append((merit(domain, rate), domain, loads, rate))
        # The sort is stable: equal domains keep the order of the shortlist.
        options.sort(key=lambda option: option[0])
        return [option[1:] for option in options], fastest

    def _bound_rings(self, level: int, shortlist: Sequence[int], count: int) -> list[float]:
        """Per domain, an upper bound of the GB/s of the gang's ring there; infinite if nothing is known."""
        domains, room = self._table.levels[level], self._room.by_level(0, level)[0]
        if not self._by_rate:
            return [0.0] * len(shortlist)
        if not self._gang.roles[0].request.gpus.count:
            return [np.inf] * len(shortlist)
        steps = domains.max_by_domain(np.where(room > 0, self._context.rings.bound_steps(self._table), 0.0))[shortlist]
        # A gang that fits one node may need no network.
        is_one_node = domains.max_by_domain(room.astype(np.float64))[shortlist] >= count
        ceilings: list[float] = np.where(is_one_node, np.inf, steps).tolist()
        return ceilings

    def _split_pods(self, level: int, domain: int, count: int) -> Ints:
        """Pods per place when the domain takes all of them."""
        at = (level, domain)
        capacity, units = self._room.by_level(0, level), self._room.units[0]
        return split.split_pods(self._table, capacity, units, at, count, strategy=self._gang.strategy)

    def _predict_rate(self, loads: Ints) -> float:
        """GB/s of the ring if the pods of each node get its best GPUs together."""
        table = self._table
        each = self._gang.roles[0].request.gpus.count
        if not each or not self._by_rate:
            return np.inf
        places = np.flatnonzero(loads)
        gpu_masks: dict[int, int] = {}
        for load in np.unique(loads[places]).tolist():
            alike = np.flatnonzero(loads == load)
            masks = self._context.fitter.choose_masks(load * each, table.node[alike])
            gpu_masks |= zip(alike.tolist(), masks.tolist(), strict=True)
        return self._context.rings.predict_ring(table, places.tolist(), gpu_masks).gb_per_s

    def _look_ahead(self, default: _DefaultChoice) -> Candidate | None:
        """Another place with as few leaves and no slower ring, if that is better for the gangs that follow."""
        if not (self._following.order or self._following.intent) or default.level < self._table.leaf_level:
            return None
        domains = self._table.levels[default.level]
        if not domains.known[default.domain]:
            return None
        levels = [default.level, *self._equal_higher_levels(default.level)]
        request = self._gang.roles[0].request
        query = follow_up.LookaheadQuery(self._table, self._room, request, default.loads, levels, self._context.history)
        intent = self._following.intent
        intended = self._context.lookahead.read_intent(query, intent) if intent else None
        if intent and intended and (found := self._place_option(default, intended, intent.reason)):
            return found
        choice = self._context.lookahead.choose_option(query, self._following)
        return self._place_option(default, choice.option, choice.describe()) if choice else None

    def _place_option(self, default: _DefaultChoice, option: PlacementOption, note: str) -> Candidate | None:
        """The option with GPUs for every pod; None if its ring is slower than that of the default choice."""
        other = follow_up.split_option(self._table, self._room, option)
        if self._predict_rate(other) < default.rate:
            return None
        level, place = option.level, int(np.flatnonzero(other)[0])
        domain = int(np.searchsorted(self._table.levels[level].starts, place, "right")) - 1
        is_default = level == default.level and np.array_equal(other, default.loads)
        return self._assign_gpus(level, domain, other, default.fastest, "" if is_default else note)

    def _equal_higher_levels(self, level: int) -> list[int]:
        """Levels above that are as good: the preferred level is missed already, and they are not known to be slower."""
        if level <= max(self._bounds.preferred, self._table.leaf_level):
            return []
        best = self._bound_ring_by_domain(level).max(initial=0.0)
        above = range(level + 1, self._bounds.top + 1)
        return [each for each in above if self._bound_ring_by_domain(each).max(initial=0.0) >= best]

    def _assign_gpus(
        self, level: int, domain: int, loads: Ints, fastest: float, choice_note: str = ""
    ) -> Candidate | None:
        """The candidate with GPUs for every pod; None when some pod gets none."""
        with self._context.fitter.snapshot.trial() as trial:
            taken = assign.assign_gpus(trial, self._context.fitter, self._table, self._gang.roles[0].request, loads)
        return None if taken is None else Candidate(level, domain, [taken], fastest, choice_note)

    def _seat_together(self, level: int, shortlist: Sequence[int], counts: Sequence[int]) -> Iterator[Candidate]:
        """Candidates for several roles, placed one after the other: the largest pods first, or the smallest first."""
        numbers = range(len(counts))
        by_size = sorted(numbers, key=lambda i: (_pod_size(self._gang.roles[i]), i), reverse=True)
        for domain in shortlist:
            for order in (by_size, by_size[::-1]):
                seating = self._seat_in_order(level, domain, counts, order)
                if seating is not None:
                    yield Candidate(level, domain, seating, 0.0)
                    break

    def _seat_in_order(self, level: int, domain: int, counts: Sequence[int], order: Iterable[int]) -> Seating | None:
        """GPUs for the pods of all roles, placed in this order; None if some pod gets none."""
        seating: Seating = [[] for _ in counts]
        loads = np.zeros(len(self._table.node), np.int64)
        milli = np.zeros_like(loads)
        with self._context.fitter.snapshot.trial() as trial:
            for number in order:
                capacity = self._room.remaining_by_level(number, level, loads, milli)
                if capacity[level][domain] < counts[number]:
                    return None
                units = self._room.units[number]
                own = split.split_pods(
                    self._table, capacity, units, (level, domain), counts[number], strategy=self._gang.strategy
                )
                taken = assign.assign_gpus(
                    trial, self._context.fitter, self._table, self._gang.roles[number].request, own
                )
                if taken is None:
                    return None
                seating[number] = taken
                loads += own
                milli += own * self._room.pod_milli[number]
        return seating if self._meets_min_network(np.flatnonzero(loads)) else None

    def _meets_min_network(self, places: NDArray[np.intp]) -> bool:
        """Whether every step between nodes has the bandwidth that the gang requires."""
        least = self._gang.min_network_gb_per_s
        if not least or len(places) == 1:
            return True
        whole = np.ones(len(places))
        rates, _ = self._context.rings.predict_steps(self._table, places, np.roll(places, -1), whole, whole)
        return bool((rates >= least).all())


def _pod_size(role: Role) -> tuple[int, int, int]:
    """The size of a pod for sorting: GPU, then CPU, then memory."""
    gpus = role.request.gpus
    return gpus.count * 1000 + gpus.milli + gpus.slices, role.request.cpu_milli, role.request.memory_bytes
