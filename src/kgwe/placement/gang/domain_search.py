"""One gang's way up the levels: the first that has a domain with room for all of it, and there the best such domain.

capacity of every domain                     one reduceat per level
those that hold every role                   none: climb
the few that promise most                    by leaves, then the network, then score
divide over leaves, down to the nodes        for each of the few
fewest leaves, fastest ring, best score      wins
what those that follow will need             may choose another place with as few leaves
cards for every pod                          booked one after the other, and put back
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from kgwe.model.gpu import bandwidth
from kgwe.placement.fleet.node import Preference
from kgwe.placement.gang import assign, split
from kgwe.placement.gang import score as gang_score
from kgwe.placement.gang.capacity import ALL_NODES, GangRoom, Scope
from kgwe.placement.gang.lookahead import follow_up
from kgwe.placement.gang.plan import GangPlan, Look, Missing
from kgwe.placement.gang.request import NONE_FOLLOW, NVLINK, Strategy

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from kgwe.placement.gang.assign import Seating
    from kgwe.placement.gang.request import GangRequest, Role
    from kgwe.placement.gang.search import GangSearch

    Ints = NDArray[np.int64]

# Domains of a level that are divided to the end and compared by their rings.
_SHORTLIST: Final = 8
# Domains tried for roles that compete: there capacities do not tell whether it works.
_TRIES: Final = 32


class _Found(NamedTuple):
    rung: int
    domain: int
    seating: Seating
    fastest: float
    """GB/s of the fastest ring of the candidates compared; 0 when none were."""
    because: str = ""
    """Why not the place it would have if no gang followed."""


class _Usual(NamedTuple):
    """The place that a gang of equal pods gets if none follows."""

    rung: int
    domain: int
    loads: Ints
    rate: float
    """GB/s of its ring."""
    fastest: float


class Climb:
    """One gang's way up the ladder."""

    def __init__(self, context: GangSearch, gang: GangRequest, scope: Scope = ALL_NODES) -> None:
        self.context = context
        self.following = scope.following if follow_up.is_eligible(gang) else NONE_FOLLOW
        self.fitter = context.fitter
        self.gang = gang
        self.ladder = context.ladders.of(gang.named_levels)
        self.room = GangRoom(self.fitter, self.ladder, gang, scope)
        self.top = self.ladder.index(gang.required) if gang.required else self.ladder.top
        self.preferred = self.ladder.index(gang.preferred) if gang.preferred else self.ladder.top
        self.by_rate = gang.strategy in (Strategy.CONSOLIDATED, Strategy.BALANCED)
        self.start = min(self._start(), self.top)

    def _start(self) -> int:
        """The lowest rung to look at."""
        if self.gang.strategy is Strategy.CONSOLIDATED:
            return 0
        if self.gang.strategy is Strategy.BALANCED and not self.gang.preferred:
            return self.ladder.leaf_rung
        return self.preferred

    # --- how many ---------------------------------------------------------------------------------------

    def search(self) -> GangPlan | Missing:
        roles = self.gang.roles
        most = [self._bound(number, role) for number, role in enumerate(roles)]
        least = [role.least for role in roles]
        if any(bound < needed for bound, needed in zip(most, least, strict=True)):
            return self._missing(proven=True)
        plan = self._attempt(most)
        if plan is None and most != least:
            plan = self._attempt(least)
            if plan is not None:
                plan = self._grow(plan, least, most)
        return plan or self._missing(proven=len(roles) == 1)

    def has_room(self) -> bool:
        """Whether some domain takes the least of each role, were it alone."""
        return all(self._bound(number, role) >= role.least for number, role in enumerate(self.gang.roles))

    def _bound(self, number: int, role: Role) -> int:
        """The most replicas of a role that any one domain takes, were it alone."""
        largest = max(int(self._capacity(number, rung).max(initial=0)) for rung in range(self.start, self.top + 1))
        return min(role.replicas, largest // role.step * role.step)

    def _capacity(self, number: int, rung: int) -> Ints:
        return self.room.capacity(number, rung)[rung]

    def _grow(self, plan: GangPlan, counts: list[int], most: list[int]) -> GangPlan:
        """Role by role, the most that can be placed."""
        for number, role in enumerate(self.gang.roles):
            low, high = counts[number] // role.step, most[number] // role.step
            while low < high:
                middle = (low + high + 1) // 2
                tried = [*counts[:number], middle * role.step, *counts[number + 1 :]]
                found = self._attempt(tried)
                if found is None:
                    high = middle - 1
                else:
                    plan, counts, low = found, tried, middle
        return plan

    def _missing(self, *, proven: bool) -> Missing:
        """The role that is shortest, and the domain that holds most of it."""
        looks: list[Look] = []
        counts = [role.least for role in self.gang.roles]
        best: tuple[int, int, int, int] | None = None
        for rung in range(self.start, self.top + 1):
            self._holding(rung, counts, looks)
        for number, needed in enumerate(counts):
            rooms = [self._capacity(number, rung) for rung in range(self.start, self.top + 1)]
            # Half a segment is no room.
            size = self.gang.roles[number].step
            largest = [int(each.max(initial=0)) // size * size for each in rooms]
            step = max(range(len(largest)), key=lambda i: (largest[i], i))
            if best is None or largest[step] - needed < best[0]:
                domain = int(rooms[step].argmax()) if len(rooms[step]) else 0
                best = (largest[step] - needed, number, self.start + step, domain)
        short, number, rung, domain = best or (0, 0, self.top, 0)
        role, level = self.gang.roles[number], self.ladder.rungs[rung]
        return Missing(
            role=role.name,
            needed=role.least,
            room=role.least + short,
            level=level.name,
            domain=level.names[domain] if level.names else "",
            looks=tuple(looks),
            most_when_empty=self._most_when_empty(number),
            proven=proven,
        )

    def _most_when_empty(self, number: int) -> int | None:
        """Counted in cards alone: no less than the truth."""
        if not self.gang.roles[number].request.gpus.count:
            return None
        size = self.gang.roles[number].step
        return self.room.most_when_empty(number, self.top) // size * size

    # --- which domain -----------------------------------------------------------------------------------

    def _attempt(self, counts: Sequence[int]) -> GangPlan | None:
        looks: list[Look] = []
        for rung in range(self.start, self.top + 1):
            holds = self._holding(rung, counts, looks)
            if len(holds):
                plan = self._place(rung, holds, counts, tuple(looks))
                if plan is not None:
                    return plan
        return None

    def _holding(self, rung: int, counts: Sequence[int], looks: list[Look]) -> NDArray[np.intp]:
        """The domains of a rung that hold every role, were it alone."""
        level = self.ladder.rungs[rung]
        capacity = np.array([self._capacity(number, rung) for number in range(len(counts))])
        wanted = np.array(counts)
        holds = np.flatnonzero((capacity >= wanted[:, np.newaxis]).all(axis=0))
        if len(counts) > 1:
            cards = sum(role.request.gpus.count * n for role, n in zip(self.gang.roles, counts, strict=True))
            free = level.sums(np.bitwise_count(self.fitter.snapshot.free[self.ladder.node]).astype(np.int64))
            holds = holds[free[holds] >= cards]
        most = capacity.max(axis=1, initial=0)
        shortest = int(np.argmin(most - wanted))
        looks.append(Look(level.name, len(level), len(holds), int(most[shortest]), int(wanted[shortest])))
        return holds

    def _place(
        self, rung: int, holds: NDArray[np.intp], counts: Sequence[int], looks: tuple[Look, ...]
    ) -> GangPlan | None:
        stand = self._standing(rung, counts)
        score = stand.partial(self.context.weights)
        found = next(self._found(rung, self._shortlist(rung, holds, score, counts), counts, score), None)
        if found is None:
            return None
        if found.rung != rung:
            rung, stand = found.rung, self._standing(found.rung, counts)
        ordered = assign.rank(self.gang.roles, found.seating)
        places = [place for pods in ordered for place, _ in pods]
        ahead = self.context.rings.predict(self.ladder, places, assign.cards_in_use(ordered))
        level = self.ladder.rungs[rung]
        return GangPlan(
            seats=tuple(assign.seats(self.gang.roles, ordered, self.ladder.rungs[0].names)),
            level=level.name,
            domain=level.names[found.domain],
            replicas={role.name: len(pods) for role, pods in zip(self.gang.roles, ordered, strict=True)},
            prefers=rung <= self.preferred,
            ring=ahead,
            score=stand.score(self.context.weights, found.domain, _alignment(ahead.gb_per_s, found.fastest)),
            size=gang_score.size_class(self.ladder, self.room.when_empty(_largest(counts)), max(counts)),
            looks=looks,
            leaves=len(np.unique(self.ladder.leaf[places])),
            because=found.because,
        )

    def _standing(self, rung: int, counts: Sequence[int]) -> gang_score.Standing:
        needs = [n / np.maximum(self._capacity(i, rung), 1) for i, n in enumerate(counts)]
        return gang_score.standing(
            self.ladder,
            self.fitter.snapshot,
            rung,
            tightness=np.max(needs, axis=0),
            strategy=self.gang.strategy,
            history=self.context.history,
        )

    def _shortlist(
        self, rung: int, holds: NDArray[np.intp], score: NDArray[np.float64], counts: Sequence[int]
    ) -> list[int]:
        """Domains in the order they are worth trying: known ones, by leaves, promise of the network, score, rest."""
        level = self.ladder.rungs[rung]
        leaves = self._fewest_leaves(rung, counts)
        promise = self._promise(rung) if self.by_rate else np.zeros(len(level))
        order = np.lexsort(
            (
                holds,
                *self._surroundings(rung, holds),
                -score[holds],
                -promise[holds],
                leaves[holds],
                ~level.known[holds],
            )
        )
        shortest: list[int] = holds[order][: _SHORTLIST if len(self.gang.roles) == 1 else _TRIES].tolist()
        return shortest

    def _fewest_leaves(self, rung: int, counts: Sequence[int]) -> Ints:
        """Per domain, the fewest leaves for the role that needs most of them; 1 where a gang does not ask for few."""
        if self.gang.strategy is not Strategy.CONSOLIDATED or rung <= self.ladder.leaf_rung:
            return np.ones(len(self.ladder.rungs[rung]), np.int64)
        each = [
            split.count_leaves(self.ladder, self.room.capacity(number, rung), rung, count)
            for number, count in enumerate(counts)
        ]
        most: Ints = np.max(each, axis=0)
        return most

    def _surroundings(self, rung: int, holds: NDArray[np.intp]) -> list[Ints]:
        """Free cards around each domain, from the highest level down: of equals, the one in the smaller hole."""
        free = np.bitwise_count(self.fitter.snapshot.free[self.ladder.node]).astype(np.int64)
        sign = -1 if self.gang.strategy is Strategy.DISTRIBUTED else 1
        first = self.ladder.rungs[rung].starts[holds]
        above = self.ladder.rungs[rung + 1 : self.ladder.top]
        return [sign * level.sums(free)[np.searchsorted(level.starts, first, "right") - 1] for level in above[::-1]]

    def _promise(self, rung: int) -> NDArray[np.float64]:
        """Per domain, no less than the GB/s its ring can have."""
        snapshot, nodes, level = self.fitter.snapshot, self.ladder.node, self.ladder.rungs[rung]
        has_room = self.room.capacity(0, rung)[0] > 0
        if level.name == NVLINK:
            return level.largest(np.where(has_room, self.context.rings.nvlink[snapshot.shape[nodes]], 0.0))
        if rung:
            return level.largest(np.where(has_room, self.ladder.reach_gb_per_s(rung), 0.0))
        role = self.gang.roles[0]
        cards = role.request.gpus.count * role.least
        if len(self.gang.roles) > 1 or not 0 < cards <= bandwidth.MAX_CARDS:
            return np.zeros(len(level))
        table = self.fitter.tables.gb_per_s(cards, Preference.NONE)
        promised: NDArray[np.float64] = table[self.fitter.rows(nodes)].astype(np.float64)
        return promised

    # --- into its nodes ---------------------------------------------------------------------------------

    def _found(
        self, rung: int, shortlist: Sequence[int], counts: Sequence[int], score: NDArray[np.float64]
    ) -> Iterator[_Found]:
        """The candidates that really work, the best first."""
        if len(counts) > 1:
            yield from self._seat_together(rung, shortlist, counts)
            return
        for thorough in (False, True):
            options, fastest = self._compared(rung, shortlist, counts[0], score, thorough=thorough)
            for domain, loads, rate in options if thorough else options[:1]:
                usual = _Usual(rung, domain, loads, rate, fastest)
                found = self._considerate(usual) or self._booked(rung, domain, loads, fastest)
                if found is not None:
                    yield found

    def _booked(self, rung: int, domain: int, loads: Ints, fastest: float, because: str = "") -> _Found | None:
        """The candidate with cards for every pod; None when they cannot be had."""
        with self.fitter.snapshot.trial() as trial:
            taken = assign.assign_gpus(trial, self.fitter, self.ladder, self.gang.roles[0].request, loads)
        return None if taken is None else _Found(rung, domain, [taken], fastest, because)

    def _considerate(self, usual: _Usual) -> _Found | None:
        """Another place with as few leaves and no slower ring, when that is better for those that follow."""
        if not self.following.order or usual.rung < self.ladder.leaf_rung:
            return None
        level = self.ladder.rungs[usual.rung]
        if not level.known[usual.domain]:
            return None
        rungs = [usual.rung, *self._higher(usual.rung)]
        request = self.gang.roles[0].request
        asked = follow_up.Question(self.ladder, self.room, request, usual.loads, rungs, self.context.history)
        choice = self.context.ahead.choose(asked, self.following)
        if choice is None:
            return None
        other = follow_up.place(self.ladder, self.room, choice.way)
        if self._rate(other) < usual.rate:
            return None
        rung, place = choice.way.rung, int(np.flatnonzero(other)[0])
        domain = int(np.searchsorted(self.ladder.rungs[rung].starts, place, "right")) - 1
        return self._booked(rung, domain, other, usual.fastest, choice.words())

    def _higher(self, rung: int) -> list[int]:
        """Rungs above that are as good: none that the gang would rather not leave, and no slower as far as is known."""
        if rung <= max(self.preferred, self.ladder.leaf_rung):
            return []
        best = self._promise(rung).max(initial=0.0)
        above = range(rung + 1, self.top + 1)
        return [each for each in above if self._promise(each).max(initial=0.0) >= best]

    def _compared(
        self, rung: int, shortlist: Sequence[int], count: int, score: NDArray[np.float64], *, thorough: bool
    ) -> tuple[list[tuple[int, Ints, float]], float]:
        """Domains, their loads and rings, the best first, and the fastest; unless thorough, the best need be right."""
        known = self.ladder.rungs[rung].known
        leaves = self._fewest_leaves(rung, [count])

        def merit(domain: int, rate: float) -> tuple[bool, int, float, float]:
            """The least is the best."""
            return (not known[domain], int(leaves[domain]), -rate if self.by_rate else 0.0, -float(score[domain]))

        ceilings = self._ceilings(rung, shortlist, count)
        options: list[tuple[tuple[bool, int, float, float], int, Ints, float]] = []
        fastest = 0.0
        for number, domain in enumerate(shortlist):
            rest = zip(shortlist[number:], ceilings[number:], strict=True)
            best = min((option[0] for option in options), default=None)
            if best and not thorough and all(rate <= fastest and merit(other, rate) >= best for other, rate in rest):
                break
            loads = self._divided(rung, domain, count)
            rate = self._rate(loads)
            if self._reaches(np.flatnonzero(loads)):
                fastest = max(fastest, rate) if rate < np.inf else fastest
                options.append((merit(domain, rate), domain, loads, rate))
        # Stable: what is equal stays in the order of the shortlist.
        options.sort(key=lambda option: option[0])
        return [option[1:] for option in options], fastest

    def _ceilings(self, rung: int, domains: Sequence[int], count: int) -> list[float]:
        """Per domain, no less than the GB/s of the ring that the gang will have there; nothing to go by: infinite."""
        level, room = self.ladder.rungs[rung], self.room.capacity(0, rung)[0]
        if not self.by_rate:
            return [0.0] * len(domains)
        if not self.gang.roles[0].request.gpus.count:
            return [np.inf] * len(domains)
        steps = level.largest(np.where(room > 0, self.context.rings.ceilings(self.ladder), 0.0))[domains]
        # One that fits a node may need no network.
        is_one_node = level.largest(room.astype(np.float64))[domains] >= count
        ceilings: list[float] = np.where(is_one_node, np.inf, steps).tolist()
        return ceilings

    def _divided(self, rung: int, domain: int, count: int) -> Ints:
        """Pods per place."""
        at = (rung, domain)
        capacity, units = self.room.capacity(0, rung), self.room.units[0]
        return split.spread(self.ladder, capacity, units, at, count, strategy=self.gang.strategy)

    def _rate(self, loads: Ints) -> float:
        """GB/s of the ring when the pods of a node get its best cards together."""
        ladder = self.ladder
        each = self.gang.roles[0].request.gpus.count
        if not each or not self.by_rate:
            return np.inf
        places = np.flatnonzero(loads)
        cards: dict[int, int] = {}
        for load in np.unique(loads[places]).tolist():
            alike = np.flatnonzero(loads == load)
            masks = self.fitter.masks(load * each, ladder.node[alike])
            cards |= zip(alike.tolist(), masks.tolist(), strict=True)
        return self.context.rings.predict(ladder, places.tolist(), cards).gb_per_s

    def _seat_together(self, rung: int, shortlist: Sequence[int], counts: Sequence[int]) -> Iterator[_Found]:
        """Roles one after the other, each in what those before have left; the largest pods first, or the smallest."""
        numbers = range(len(counts))
        by_size = sorted(numbers, key=lambda i: (_size(self.gang.roles[i]), i), reverse=True)
        for domain in shortlist:
            for order in (by_size, by_size[::-1]):
                seating = self._seat_in_order(rung, domain, counts, order)
                if seating is not None:
                    yield _Found(rung, domain, seating, 0.0)
                    break

    def _seat_in_order(self, rung: int, domain: int, counts: Sequence[int], order: Iterable[int]) -> Seating | None:
        seating: Seating = [[] for _ in counts]
        loads = np.zeros(len(self.ladder.node), np.int64)
        milli = np.zeros_like(loads)
        with self.fitter.snapshot.trial() as trial:
            for number in order:
                capacity = self.room.left(number, rung, loads, milli)
                if capacity[rung][domain] < counts[number]:
                    return None
                units = self.room.units[number]
                own = split.spread(
                    self.ladder, capacity, units, (rung, domain), counts[number], strategy=self.gang.strategy
                )
                taken = assign.assign_gpus(trial, self.fitter, self.ladder, self.gang.roles[number].request, own)
                if taken is None:
                    return None
                seating[number] = taken
                loads += own
                milli += own * self.room.pod_milli[number]
        return seating if self._reaches(np.flatnonzero(loads)) else None

    def _reaches(self, places: NDArray[np.intp]) -> bool:
        """Whether every step between nodes has the bandwidth the gang demands."""
        least = self.gang.min_network_gb_per_s
        if not least or len(places) == 1:
            return True
        whole = np.ones(len(places))
        rates, _ = self.context.rings.edges(self.ladder, places, np.roll(places, -1), whole, whole)
        return bool((rates >= least).all())


def _alignment(gb_per_s: float, fastest: float) -> float:
    """0..1; one card has no ring to wait for, and nothing is faster."""
    if np.isinf(gb_per_s):
        return 1.0
    return gb_per_s / max(gb_per_s, fastest) if gb_per_s else 0.0


def _size(role: Role) -> tuple[int, int, int]:
    gpus = role.request.gpus
    return gpus.count * 1000 + gpus.milli + gpus.slices, role.request.cpu_milli, role.request.memory_bytes


def _largest(counts: Sequence[int]) -> int:
    return max(range(len(counts)), key=lambda number: (counts[number], -number))
