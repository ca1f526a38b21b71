"""The search for one gang: the lowest level with a domain that has room for all of it, and the best such domain.

1. Count the capacity of every domain of the level (one reduceat per level).
2. Keep the domains that hold every role. If there are none, go one level up.
3. Shortlist a few of them: fewest leaves, then the fastest network, then the best score.
4. Split the pods of each shortlisted domain over leaves, down to the nodes.
5. Take the domain with the fewest leaves, the fastest ring and the best score.
6. Use the place of the joint plan, or consider the gangs that follow: another place may be better for them.
7. Assign GPUs to every pod within a trial.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from kgwe.model.gpu import bandwidth
from kgwe.placement.fleet.node import Preference
from kgwe.placement.gang import assign, split
from kgwe.placement.gang import score as gang_score
from kgwe.placement.gang.capacity import ALL_NODES, GangCapacity, Scope
from kgwe.placement.gang.lookahead import follow_up
from kgwe.placement.gang.plan import GangPlan, LevelReport, Shortfall
from kgwe.placement.gang.request import NONE_FOLLOW, NVLINK, Strategy

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from kgwe.placement.gang.assign import Seating
    from kgwe.placement.gang.lookahead.choice import PlacementOption
    from kgwe.placement.gang.request import GangRequest, Role
    from kgwe.placement.gang.search import GangSearch

    Ints = NDArray[np.int64]

# Domains of a level that are divided to the end and compared by their rings.
_SHORTLIST: Final = 8
# Domains tried for roles that compete: there capacities do not tell whether it works.
_TRIES: Final = 32


class _Candidate(NamedTuple):
    level: int
    domain: int
    seating: Seating
    fastest: float
    """GB/s of the fastest ring of the candidates compared; 0 when none were."""
    choice_note: str = ""
    """Why it is not the default choice; empty: it is."""


class _DefaultChoice(NamedTuple):
    """Where a gang of equal pods goes if no other gang follows."""

    level: int
    domain: int
    loads: Ints
    rate: float
    """GB/s of its ring."""
    fastest: float


class DomainSearch:
    """The search for one gang, from the lowest level up."""

    def __init__(self, context: GangSearch, gang: GangRequest, scope: Scope = ALL_NODES) -> None:
        self.context = context
        self.following = scope.following if follow_up.is_eligible(gang) else NONE_FOLLOW
        self.fitter = context.fitter
        self.gang = gang
        self.table = context.level_tables.for_levels(gang.named_levels)
        self.room = GangCapacity(self.fitter, self.table, gang, scope)
        self.top = self.table.find_level(gang.required) if gang.required else self.table.top
        self.preferred = self.table.find_level(gang.preferred) if gang.preferred else self.table.top
        self.by_rate = gang.strategy in (Strategy.CONSOLIDATED, Strategy.BALANCED)
        self.start = min(self._lowest_level(), self.top)

    def _lowest_level(self) -> int:
        """The lowest level to look at."""
        if self.gang.strategy is Strategy.CONSOLIDATED:
            return 0
        if self.gang.strategy is Strategy.BALANCED and not self.gang.preferred:
            return self.table.leaf_level
        return self.preferred

    # --- how many ---------------------------------------------------------------------------------------

    def find_plan(self) -> GangPlan | Shortfall:
        roles = self.gang.roles
        most = [self._max_replicas(number, role) for number, role in enumerate(roles)]
        least = [role.required_replicas for role in roles]
        if any(bound < needed for bound, needed in zip(most, least, strict=True)):
            return self._explain_shortfall(proven=True)
        plan = self._search_levels(most)
        if plan is None and most != least:
            plan = self._search_levels(least)
            if plan is not None:
                plan = self._grow_replicas(plan, least, most)
        return plan or self._explain_shortfall(proven=len(roles) == 1)

    def has_room(self) -> bool:
        """Whether some domain holds the required replicas of each role, each role taken alone."""
        return all(
            self._max_replicas(number, role) >= role.required_replicas for number, role in enumerate(self.gang.roles)
        )

    def _max_replicas(self, number: int, role: Role) -> int:
        """The most replicas of a role that any one domain holds, the role taken alone."""
        largest = max(int(self._capacity(number, level).max(initial=0)) for level in range(self.start, self.top + 1))
        return min(role.replicas, largest // role.replica_step * role.replica_step)

    def _capacity(self, number: int, level: int) -> Ints:
        return self.room.by_level(number, level)[level]

    def _grow_replicas(self, plan: GangPlan, counts: list[int], most: list[int]) -> GangPlan:
        """Role by role, the most that can be placed."""
        for number, role in enumerate(self.gang.roles):
            low, high = counts[number] // role.replica_step, most[number] // role.replica_step
            while low < high:
                middle = (low + high + 1) // 2
                tried = [*counts[:number], middle * role.replica_step, *counts[number + 1 :]]
                found = self._search_levels(tried)
                if found is None:
                    high = middle - 1
                else:
                    plan, counts, low = found, tried, middle
        return plan

    def _explain_shortfall(self, *, proven: bool) -> Shortfall:
        """The role that is shortest, and the domain that holds most of it."""
        reports: list[LevelReport] = []
        counts = [role.required_replicas for role in self.gang.roles]
        best: tuple[int, int, int, int] | None = None
        for level in range(self.start, self.top + 1):
            self._find_domains(level, counts, reports)
        for number, needed in enumerate(counts):
            rooms = [self._capacity(number, level) for level in range(self.start, self.top + 1)]
            # Half a segment is no room.
            size = self.gang.roles[number].replica_step
            largest = [int(each.max(initial=0)) // size * size for each in rooms]
            step = max(range(len(largest)), key=lambda i: (largest[i], i))
            if best is None or largest[step] - needed < best[0]:
                domain = int(rooms[step].argmax()) if len(rooms[step]) else 0
                best = (largest[step] - needed, number, self.start + step, domain)
        short, number, level, domain = best or (0, 0, self.top, 0)
        role, domains = self.gang.roles[number], self.table.levels[level]
        return Shortfall(
            role=role.name,
            needed=role.required_replicas,
            room=role.required_replicas + short,
            level=domains.name,
            domain=domains.names[domain] if domains.names else "",
            level_reports=tuple(reports),
            most_when_empty=self._most_when_empty(number),
            proven=proven,
        )

    def _most_when_empty(self, number: int) -> int | None:
        """Counted in cards alone: no less than the truth."""
        if not self.gang.roles[number].request.gpus.count:
            return None
        size = self.gang.roles[number].replica_step
        return self.room.max_when_empty(number, self.top) // size * size

    # --- which domain -----------------------------------------------------------------------------------

    def _search_levels(self, counts: Sequence[int]) -> GangPlan | None:
        reports: list[LevelReport] = []
        for level in range(self.start, self.top + 1):
            holds = self._find_domains(level, counts, reports)
            if len(holds):
                plan = self._place_in_level(level, holds, counts, tuple(reports))
                if plan is not None:
                    return plan
        return None

    def _find_domains(self, level: int, counts: Sequence[int], reports: list[LevelReport]) -> NDArray[np.intp]:
        """The domains of a level that hold every role, each role taken alone."""
        domains = self.table.levels[level]
        capacity = np.array([self._capacity(number, level) for number in range(len(counts))])
        wanted = np.array(counts)
        holds = np.flatnonzero((capacity >= wanted[:, np.newaxis]).all(axis=0))
        if len(counts) > 1:
            gpus = sum(role.request.gpus.count * n for role, n in zip(self.gang.roles, counts, strict=True))
            free = domains.sum_by_domain(np.bitwise_count(self.fitter.snapshot.free[self.table.node]).astype(np.int64))
            holds = holds[free[holds] >= gpus]
        most = capacity.max(axis=1, initial=0)
        shortest = int(np.argmin(most - wanted))
        reports.append(LevelReport(domains.name, len(domains), len(holds), int(most[shortest]), int(wanted[shortest])))
        return holds

    def _place_in_level(
        self, level: int, holds: NDArray[np.intp], counts: Sequence[int], reports: tuple[LevelReport, ...]
    ) -> GangPlan | None:
        stand = self._score_domains(level, counts)
        score = stand.score_without_alignment(self.context.weights)
        found = next(self._iter_candidates(level, self._shortlist(level, holds, score, counts), counts, score), None)
        if found is None:
            return None
        if found.level != level:
            level, stand = found.level, self._score_domains(found.level, counts)
        ordered = assign.order_by_rank(self.gang.roles, found.seating)
        places = [place for pods in ordered for place, _ in pods]
        ahead = self.context.rings.predict_ring(self.table, places, assign.merge_gpu_masks(ordered))
        domains = self.table.levels[level]
        return GangPlan(
            seats=tuple(assign.number_seats(self.gang.roles, ordered, self.table.levels[0].names)),
            level=domains.name,
            domain=domains.names[found.domain],
            replicas={role.name: len(pods) for role, pods in zip(self.gang.roles, ordered, strict=True)},
            preferred_met=level <= self.preferred,
            ring=ahead,
            score=stand.score_domain(
                self.context.weights, found.domain, _rate_alignment(ahead.gb_per_s, found.fastest)
            ),
            size_class=gang_score.classify_size(
                self.table, self.room.count_when_empty(_largest_role(counts)), max(counts)
            ),
            level_reports=reports,
            leaves=len(np.unique(self.table.leaf[places])),
            choice_note=found.choice_note,
        )

    def _score_domains(self, level: int, counts: Sequence[int]) -> gang_score.DomainScores:
        needs = [n / np.maximum(self._capacity(i, level), 1) for i, n in enumerate(counts)]
        return gang_score.score_domains(
            self.table,
            self.fitter.snapshot,
            level,
            tightness=np.max(needs, axis=0),
            strategy=self.gang.strategy,
            history=self.context.history,
        )

    def _shortlist(
        self, level: int, holds: NDArray[np.intp], score: NDArray[np.float64], counts: Sequence[int]
    ) -> list[int]:
        """Domains in the order they are worth trying: known ones, by leaves, promise of the network, score, rest."""
        domains = self.table.levels[level]
        leaves = self._fewest_leaves(level, counts)
        promise = self._bound_ring_by_domain(level) if self.by_rate else np.zeros(len(domains))
        order = np.lexsort(
            (
                holds,
                *self._count_free_around(level, holds),
                -score[holds],
                -promise[holds],
                leaves[holds],
                ~domains.known[holds],
            )
        )
        shortest: list[int] = holds[order][: _SHORTLIST if len(self.gang.roles) == 1 else _TRIES].tolist()
        return shortest

    def _fewest_leaves(self, level: int, counts: Sequence[int]) -> Ints:
        """Per domain, the fewest leaves for the role that needs most of them; 1 where a gang does not ask for few."""
        if self.gang.strategy is not Strategy.CONSOLIDATED or level <= self.table.leaf_level:
            return np.ones(len(self.table.levels[level]), np.int64)
        each = [
            split.count_leaves(self.table, self.room.by_level(number, level), level, count)
            for number, count in enumerate(counts)
        ]
        most: Ints = np.max(each, axis=0)
        return most

    def _count_free_around(self, level: int, holds: NDArray[np.intp]) -> list[Ints]:
        """Free cards around each domain, from the highest level down: of equals, the one in the smaller hole."""
        free = np.bitwise_count(self.fitter.snapshot.free[self.table.node]).astype(np.int64)
        sign = -1 if self.gang.strategy is Strategy.DISTRIBUTED else 1
        first = self.table.levels[level].starts[holds]
        above = self.table.levels[level + 1 : self.table.top]
        return [
            sign * domains.sum_by_domain(free)[np.searchsorted(domains.starts, first, "right") - 1]
            for domains in above[::-1]
        ]

    def _bound_ring_by_domain(self, level: int) -> NDArray[np.float64]:
        """Per domain, no less than the GB/s its ring can have."""
        snapshot, nodes, domains = self.fitter.snapshot, self.table.node, self.table.levels[level]
        has_room = self.room.by_level(0, level)[0] > 0
        if domains.name == NVLINK:
            return domains.max_by_domain(np.where(has_room, self.context.rings.nvlink[snapshot.shape[nodes]], 0.0))
        if level:
            return domains.max_by_domain(np.where(has_room, self.table.reach_gb_per_s(level), 0.0))
        role = self.gang.roles[0]
        gpus = role.request.gpus.count * role.required_replicas
        if len(self.gang.roles) > 1 or not 0 < gpus <= bandwidth.MAX_TABLED_GPUS:
            return np.zeros(len(domains))
        table = self.fitter.tables.gb_per_s(gpus, Preference.NONE)
        promised: NDArray[np.float64] = table[self.fitter.table_rows(nodes)].astype(np.float64)
        return promised

    # --- into its nodes ---------------------------------------------------------------------------------

    def _iter_candidates(
        self, level: int, shortlist: Sequence[int], counts: Sequence[int], score: NDArray[np.float64]
    ) -> Iterator[_Candidate]:
        """The candidates that really work, the best first."""
        if len(counts) > 1:
            yield from self._seat_together(level, shortlist, counts)
            return
        for thorough in (False, True):
            options, fastest = self._compare_domains(level, shortlist, counts[0], score, thorough=thorough)
            for domain, loads, rate in options if thorough else options[:1]:
                usual = _DefaultChoice(level, domain, loads, rate, fastest)
                found = self._look_ahead(usual) or self._assign_gpus(level, domain, loads, fastest)
                if found is not None:
                    yield found

    def _assign_gpus(
        self, level: int, domain: int, loads: Ints, fastest: float, choice_note: str = ""
    ) -> _Candidate | None:
        """The candidate with cards for every pod; None when they cannot be had."""
        with self.fitter.snapshot.trial() as trial:
            taken = assign.assign_gpus(trial, self.fitter, self.table, self.gang.roles[0].request, loads)
        return None if taken is None else _Candidate(level, domain, [taken], fastest, choice_note)

    def _look_ahead(self, usual: _DefaultChoice) -> _Candidate | None:
        """Another place with as few leaves and no slower ring, when that is better for those that follow."""
        if not (self.following.order or self.following.intent) or usual.level < self.table.leaf_level:
            return None
        domains = self.table.levels[usual.level]
        if not domains.known[usual.domain]:
            return None
        levels = [usual.level, *self._equal_higher_levels(usual.level)]
        request = self.gang.roles[0].request
        asked = follow_up.LookaheadQuery(self.table, self.room, request, usual.loads, levels, self.context.history)
        intent = self.following.intent
        intended = self.context.lookahead.read_intent(asked, intent) if intent else None
        if intent and intended and (found := self._place_option(usual, intended, intent.reason)):
            return found
        choice = self.context.lookahead.choose_option(asked, self.following)
        return self._place_option(usual, choice.option, choice.describe()) if choice else None

    def _place_option(self, usual: _DefaultChoice, option: PlacementOption, note: str) -> _Candidate | None:
        """The option with cards for every pod; None where its ring is slower than that of the default choice."""
        other = follow_up.split_option(self.table, self.room, option)
        if self._predict_rate(other) < usual.rate:
            return None
        level, place = option.level, int(np.flatnonzero(other)[0])
        domain = int(np.searchsorted(self.table.levels[level].starts, place, "right")) - 1
        is_default = level == usual.level and np.array_equal(other, usual.loads)
        return self._assign_gpus(level, domain, other, usual.fastest, "" if is_default else note)

    def _equal_higher_levels(self, level: int) -> list[int]:
        """Levels above that are as good: not above the preferred level, and no slower as far as is known."""
        if level <= max(self.preferred, self.table.leaf_level):
            return []
        best = self._bound_ring_by_domain(level).max(initial=0.0)
        above = range(level + 1, self.top + 1)
        return [each for each in above if self._bound_ring_by_domain(each).max(initial=0.0) >= best]

    def _compare_domains(
        self, level: int, shortlist: Sequence[int], count: int, score: NDArray[np.float64], *, thorough: bool
    ) -> tuple[list[tuple[int, Ints, float]], float]:
        """Domains, their loads and rings, the best first, and the fastest; unless thorough, the best need be right."""
        known = self.table.levels[level].known
        leaves = self._fewest_leaves(level, [count])

        def merit(domain: int, rate: float) -> tuple[bool, int, float, float]:
            """The least is the best."""
            return (not known[domain], int(leaves[domain]), -rate if self.by_rate else 0.0, -float(score[domain]))

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
        # Stable: what is equal stays in the order of the shortlist.
        options.sort(key=lambda option: option[0])
        return [option[1:] for option in options], fastest

    def _bound_rings(self, level: int, shortlist: Sequence[int], count: int) -> list[float]:
        """Per domain, no less than the GB/s of the ring that the gang will have there; nothing to go by: infinite."""
        domains, room = self.table.levels[level], self.room.by_level(0, level)[0]
        if not self.by_rate:
            return [0.0] * len(shortlist)
        if not self.gang.roles[0].request.gpus.count:
            return [np.inf] * len(shortlist)
        steps = domains.max_by_domain(np.where(room > 0, self.context.rings.bound_steps(self.table), 0.0))[shortlist]
        # One that fits a node may need no network.
        is_one_node = domains.max_by_domain(room.astype(np.float64))[shortlist] >= count
        ceilings: list[float] = np.where(is_one_node, np.inf, steps).tolist()
        return ceilings

    def _split_pods(self, level: int, domain: int, count: int) -> Ints:
        """Pods per place."""
        at = (level, domain)
        capacity, units = self.room.by_level(0, level), self.room.units[0]
        return split.split_pods(self.table, capacity, units, at, count, strategy=self.gang.strategy)

    def _predict_rate(self, loads: Ints) -> float:
        """GB/s of the ring when the pods of a node get its best cards together."""
        table = self.table
        each = self.gang.roles[0].request.gpus.count
        if not each or not self.by_rate:
            return np.inf
        places = np.flatnonzero(loads)
        gpu_masks: dict[int, int] = {}
        for load in np.unique(loads[places]).tolist():
            alike = np.flatnonzero(loads == load)
            masks = self.fitter.choose_masks(load * each, table.node[alike])
            gpu_masks |= zip(alike.tolist(), masks.tolist(), strict=True)
        return self.context.rings.predict_ring(table, places.tolist(), gpu_masks).gb_per_s

    def _seat_together(self, level: int, shortlist: Sequence[int], counts: Sequence[int]) -> Iterator[_Candidate]:
        """Roles one after the other, each in what those before have left; the largest pods first, or the smallest."""
        numbers = range(len(counts))
        by_size = sorted(numbers, key=lambda i: (_pod_size(self.gang.roles[i]), i), reverse=True)
        for domain in shortlist:
            for order in (by_size, by_size[::-1]):
                seating = self._seat_in_order(level, domain, counts, order)
                if seating is not None:
                    yield _Candidate(level, domain, seating, 0.0)
                    break

    def _seat_in_order(self, level: int, domain: int, counts: Sequence[int], order: Iterable[int]) -> Seating | None:
        seating: Seating = [[] for _ in counts]
        loads = np.zeros(len(self.table.node), np.int64)
        milli = np.zeros_like(loads)
        with self.fitter.snapshot.trial() as trial:
            for number in order:
                capacity = self.room.remaining_by_level(number, level, loads, milli)
                if capacity[level][domain] < counts[number]:
                    return None
                units = self.room.units[number]
                own = split.split_pods(
                    self.table, capacity, units, (level, domain), counts[number], strategy=self.gang.strategy
                )
                taken = assign.assign_gpus(trial, self.fitter, self.table, self.gang.roles[number].request, own)
                if taken is None:
                    return None
                seating[number] = taken
                loads += own
                milli += own * self.room.pod_milli[number]
        return seating if self._meets_min_network(np.flatnonzero(loads)) else None

    def _meets_min_network(self, places: NDArray[np.intp]) -> bool:
        """Whether every step between nodes has the bandwidth the gang demands."""
        least = self.gang.min_network_gb_per_s
        if not least or len(places) == 1:
            return True
        whole = np.ones(len(places))
        rates, _ = self.context.rings.predict_steps(self.table, places, np.roll(places, -1), whole, whole)
        return bool((rates >= least).all())


def _rate_alignment(gb_per_s: float, fastest: float) -> float:
    """0..1; one card has no ring to wait for, and nothing is faster."""
    if np.isinf(gb_per_s):
        return 1.0
    return gb_per_s / max(gb_per_s, fastest) if gb_per_s else 0.0


def _pod_size(role: Role) -> tuple[int, int, int]:
    gpus = role.request.gpus
    return gpus.count * 1000 + gpus.milli + gpus.slices, role.request.cpu_milli, role.request.memory_bytes


def _largest_role(counts: Sequence[int]) -> int:
    return max(range(len(counts)), key=lambda number: (counts[number], -number))
