"""Which running workloads to stop so that a gang fits inside one domain of its required level.

    per node     the weight of room for 1, 2, 3 … pods: items in order of weight per amount freed
    per domain   how many pods to put where at least weight: exact over those figures, by dynamic programming
    per cluster  the domains from the lightest on, each tested until no other can be lighter

A gang on several nodes stops as a whole, so once it is a victim its other nodes cost nothing. The choice in a domain is
therefore made again with that gang stopped, and with each of the gangs that free most for their weight stopped from the
start; and once by whole items, those first that free most for their weight. The lightest result counts.

All that is a proposal: the gang's own search on the snapshot without the set decides. If it refuses a set whose sums
were right (CPU, segments, networks), the whole domain is cleared and items that are not needed are dropped again. Few
items are searched exhaustively instead, and then nothing lighter exists.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np

from kgwe.placement.disruption import room_curves, victims
from kgwe.placement.disruption.room_curves import RoomCurves
from kgwe.placement.gang.capacity import GangCapacity
from kgwe.placement.gang.request import CLUSTER
from kgwe.placement.pod.fit_status import FitStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kgwe.placement.disruption.victims import Found, Picked, VictimPool
    from kgwe.placement.gang.request import GangRequest, Role
    from kgwe.placement.gang.search import GangSearch

# Up to this many relevant items the search is exhaustive: at most 2^12 sets, most of them excluded by the bound.
_EXACT_ITEMS: Final = 12
_EXACT_STEPS: Final = 4096
# Domains tried for real, gangs tried as the first to go, and rounds around disruption budgets, per request.
_DOMAINS: Final = 8
_SEEDS: Final = 8
_SEED_PODS: Final = 512
_ROUNDS: Final = 12
# Items of a choice that are weighed against doing without them.
_WEIGHED: Final = 8


class GangVictims:
    """The search for one gang on one snapshot."""

    def __init__(
        self, search: GangSearch, pool: VictimPool, gang: GangRequest, also: Callable[[Picked], bool] | None = None
    ) -> None:
        """`also`: a further condition on a set, tested on the snapshot without it."""
        self._search = search
        self._fitter = search.fitter
        self._pool = pool
        self._gang = gang
        self._also = also
        self._table = search.level_tables.for_levels(gang.named_levels)
        self._top = self._table.find_level(gang.required or CLUSTER)
        level = self._table.levels[self._top]
        self._domains = [np.sort(self._table.node[level.place_range(number)]) for number in range(len(level))]
        self._domain_of = np.zeros(len(self._fitter.snapshot), np.int64)
        for number, nodes in enumerate(self._domains):
            self._domain_of[nodes] = number
        per_node = gang.max_pods_per_node
        self._curves = {
            role.name: RoomCurves(self._fitter, pool, role.request, most_per_node=per_node) for role in gang.roles
        }
        self._room = {
            role.name: np.minimum(self._fitter.count_pods(role.request), per_node or math.inf) for role in gang.roles
        }
        self._possible = {
            role.name: self._fitter.check_empty_nodes(role.request) == FitStatus.FITS for role in gang.roles
        }

    def find_lightest(self, exact_items: int = _EXACT_ITEMS) -> Found:
        """A minimal set that lets the gang start; None if there is none or none was found.

        The search is exhaustive for up to `exact_items` relevant items.
        """
        picked = self._propose()
        weight = None if picked is None else self._pool.weight(picked)
        relevant = self._relevant_items(weight)
        if len(relevant) <= exact_items:
            found = victims.find_lightest(self._pool, relevant, _Exact(self), steps=_EXACT_STEPS, below=weight)
            return found if found.picked is not None else victims.Found(picked, found.proven)
        return victims.Found(picked, proven=False)

    def is_sufficient(self, picked: Picked) -> bool:
        """Whether the gang starts once these items have stopped."""
        with self._pool.without_items(picked):
            return self.fits_now(picked)

    def fits_now(self, picked: Picked) -> bool:
        """Like `is_sufficient`, on a snapshot that is already without the set."""
        return self._search.has_room(self._gang) and (self._also is None or self._also(picked))

    def _relevant_items(self, weight: int | None) -> list[int]:
        """Items that could be part of a lighter set: on nodes the gang can use, and lighter than the known set."""
        useful = np.logical_or.reduce(list(self._possible.values()))
        return [
            number
            for number, item in enumerate(self._pool.items)
            if (weight is None or item.weight < weight) and any(useful[grant.node] for grant in item.grants)
        ]

    # --- proposals --------------------------------------------------------------------------------------

    def _propose(self) -> Picked | None:
        best: Picked | None = None
        weight: float = math.inf
        ranked = sorted((self._estimate(domain), domain) for domain in self._list_hopeful_domains())
        for estimate, domain in ranked[:_DOMAINS]:
            if best is not None and estimate >= weight:
                break
            picked = self._clear_domain(domain)
            if picked is not None and self._pool.weight(picked) < weight:
                best, weight = picked, self._pool.weight(picked)
        return best

    def _list_hopeful_domains(self) -> list[int]:
        """Domains that would hold the gang if all items stopped."""
        with self._pool.without_items(range(len(self._pool.items))):
            room = GangCapacity(self._fitter, self._table, self._gang)
            holds = np.ones(len(self._domains), np.bool_)
            # With a required network bandwidth, no domain is excluded here.
            for number, role in enumerate(self._gang.roles if not self._gang.min_network_gb_per_s else ()):
                holds &= room.by_level(number, self._top)[self._top] >= role.required_replicas
        found: list[int] = np.flatnonzero(holds).tolist()
        return found

    def _estimate(self, domain: int) -> float:
        """The weight of clearing the domain if the first choice suffices; infinite: no choice."""
        chosen = self._choose(domain, frozenset(), frozenset())
        return math.inf if chosen is None else self._pool.weight(tuple(sorted(chosen)))

    def _clear_domain(self, domain: int) -> Picked | None:
        """The lightest of several sets that clear one domain, without unneeded items."""
        proposals = {
            self._choose_within_budgets(domain, gone, weighed=weighed)
            for gone in self._list_first_victims(domain)
            for weighed in ((False, True) if self._pool.budgets else (False,))
        }
        proposals.add(self._choose_with_budget_prices(domain))
        lightest_first = sorted((self._pool.weight(each), each) for each in proposals if each is not None)
        for _, picked in lightest_first:
            if self.is_sufficient(picked):
                return victims.drop_unneeded(self._pool, picked, self.fits_now)
        items = self._items_in(domain)
        for everything in dict.fromkeys(
            (self._pool.pick_within_budgets(items), self._pool.pick_within_budgets(items[::-1]))
        ):
            if self.is_sufficient(everything):
                return victims.drop_unneeded(self._pool, everything, self.fits_now)
        return None

    def _items_in(self, domain: int) -> list[int]:
        return sorted({number for node in self._domains[domain] for number in self._pool.items_on.get(int(node), ())})

    def _list_first_victims(self, domain: int) -> list[frozenset[int]]:
        """Sets to start from: the empty one, and each of the multi-node items that free most for their weight."""
        freed: dict[int, int] = {}
        request = max(
            self._gang.roles, key=lambda role: (room_curves.requested_amount(role.request), role.name)
        ).request
        for number in self._items_in(domain):
            inside = [grant for grant in self._pool.items[number].grants if self._domain_of[grant.node] == domain]
            if len({grant.node for grant in inside}) > 1:
                freed[number] = sum(room_curves.freed_amount(grant, request) for grant in inside)
        useful = [number for number, amount in freed.items() if amount]
        useful.sort(key=lambda number: (self._pool.items[number].weight / freed[number], number))
        # For large gangs one item matters little, and each try takes longer.
        tries = max(1, min(_SEEDS, _SEED_PODS // sum(role.required_replicas for role in self._gang.roles)))
        return [frozenset(), *(frozenset({number}) for number in useful[:tries])]

    def _choose_within_budgets(self, domain: int, gone: frozenset[int], *, weighed: bool) -> Picked | None:
        """A choice within all budgets: items that overdraw one are spared, and the choice is repeated.

        Of the items that share a budget the lightest are kept or, if `weighed`, the most necessary ones.
        """
        spared: frozenset[int] = frozenset()
        for _ in range(_ROUNDS):
            chosen = self._choose(domain, gone, spared)
            if chosen is None:
                return None
            again = self._choose(domain, chosen, spared)
            if again is not None and self._pool.weight(tuple(sorted(again))) < self._pool.weight(tuple(sorted(chosen))):
                chosen = again
            kept = self._pool.pick_within_budgets(sorted(chosen))
            if len(kept) == len(chosen):
                return kept
            if weighed:
                kept = self._pool.pick_within_budgets(self._sort_by_necessity(domain, gone, spared, chosen))
            spared |= chosen - set(kept)
        return None

    def _choose_with_budget_prices(self, domain: int) -> Picked | None:
        """A choice within all budgets: items of an overdrawn budget get a price that rises until none is."""
        prices: dict[str, int] = {}
        try:
            for _ in range(_ROUNDS if self._pool.budgets else 0):
                chosen = self._choose(domain, frozenset(), frozenset())
                if chosen is None:
                    return None
                picked = tuple(sorted(chosen))
                overdrawn = self._pool.find_overdrawn_budgets(picked)
                if not overdrawn:
                    return picked
                for budget in overdrawn:
                    prices[budget] = 2 * prices.get(budget, 0) or 1 + self._pool.weight(picked) // len(picked)
                self._charge(prices)
        finally:
            self._charge({})
        return None

    def _charge(self, prices: Mapping[str, int]) -> None:
        surcharge = {}
        for number, item in enumerate(self._pool.items if prices else ()):
            price = prices.get(self._pool.workloads[item.workload].budget, 0)
            if price:
                surcharge[number] = price * len(item.members)
        for curves in self._curves.values():
            curves.charge(surcharge)

    def _sort_by_necessity(
        self, domain: int, gone: frozenset[int], spared: frozenset[int], chosen: frozenset[int]
    ) -> list[int]:
        """The chosen items, most necessary first: those without which a choice would weigh most."""
        items, workloads = self._pool.items, self._pool.workloads
        limited = [number for number in sorted(chosen) if workloads[items[number].workload].budget]
        missed: dict[int, float] = {}
        for number in limited[:_WEIGHED]:
            other = self._choose(domain, gone, spared | {number})
            missed[number] = math.inf if other is None else self._pool.weight(tuple(sorted(other)))
        return sorted(chosen, key=lambda number: (-missed.get(number, 0.0), -number))

    def _choose(self, domain: int, gone: frozenset[int], spared: frozenset[int]) -> frozenset[int] | None:
        """Items to stop in a domain so that its total room holds the gang; `gone` are stopped in any case."""
        chosen: frozenset[int] = frozenset()
        for role in sorted(self._gang.roles, key=lambda each: (-room_curves.requested_amount(each.request), each.name)):
            picked = self._choose_for(role, domain, gone | chosen, spared)
            if picked is None:
                return None
            chosen |= picked
        return chosen

    def _choose_for(
        self, role: Role, domain: int, gone: frozenset[int], spared: frozenset[int]
    ) -> frozenset[int] | None:
        nodes = self._domains[domain]
        nodes = nodes[self._possible[role.name][nodes]]
        missing = role.required_replicas - int(self._room[role.name][nodes].sum())
        if missing <= 0:
            return frozenset()
        curves = self._curves[role.name]
        mix = room_curves.find_lightest_mix(curves.get_curves(nodes.tolist(), gone, spared), missing)
        if gone or mix is None:
            return mix
        # Curves count a gang on each of its nodes; counted once, whole gangs may be lighter than the mix.
        run = curves.pick_whole_items(nodes.tolist(), spared, missing)
        return min((each for each in (mix, run) if each is not None), key=self._weight)

    def _weight(self, chosen: frozenset[int]) -> tuple[int, list[int]]:
        return self._pool.weight(tuple(sorted(chosen))), sorted(chosen)


class _Exact(victims.Problem):
    """The exhaustive search; with few sets it needs no bound."""

    def __init__(self, clearing: GangVictims) -> None:
        self._clearing = clearing

    def is_sufficient(self, picked: Picked) -> bool:
        return self._clearing.is_sufficient(picked)
