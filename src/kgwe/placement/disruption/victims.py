"""Sets of running workloads that could be stopped, and the search for the cheapest sufficient one.

Workloads are divided into items, the smallest units that stop without others. A rigid gang is one item; each member of
an elastic gang, or of independent pods, is one. Picking more members than an elastic gang can lose stops all of it, and
weighs as all of it.

The search goes through sets of items from the lightest on (A* over sets, each reached once, in one order of items), so
the first sufficient set is the lightest of all. It relies on two properties of evictions:

- picking more never weighs less, and never draws less on a disruption budget,
- what fits after an eviction fits after a larger one.

A lower bound of what a set still lacks keeps the search narrow. It is limited in steps all the same; `proven` says
whether it was completed.
"""

from __future__ import annotations

import abc
import contextlib
import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kgwe.placement.disruption.running import Cost, Victim, grant_milli, member_cost, rank_priorities

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from kgwe.placement.disruption.running import Running
    from kgwe.placement.fleet.snapshot import Grant, Snapshot

    Picked = tuple[int, ...]

# Ties in cost go to the set of fewer pods; no set has this many.
_PODS: Final = 1 << 24


def weigh_by_cost(cost: Cost, pods: int) -> int:
    """Weigh by cost, then by pods stopped."""
    return cost.total * _PODS + pods


@dataclass(frozen=True, slots=True)
class Item:
    """Members of one workload that stop together."""

    workload: int
    members: tuple[int, ...]
    weight: int
    grants: tuple[Grant, ...]


class VictimPool:
    """Workloads that may be stopped; items are numbered from the lightest on."""

    def __init__(
        self,
        snapshot: Snapshot,
        workloads: Sequence[Running],
        now_s: float,
        budgets: Mapping[str, int] | None = None,
        weigh: Callable[[Cost, int], int] = weigh_by_cost,
    ) -> None:
        self.snapshot = snapshot
        self.workloads = workloads
        self.budgets = budgets or {}
        self._now_s = now_s
        self._ranks = rank_priorities(workloads)
        self.items = tuple(sorted(self._make_items(weigh), key=lambda item: (item.weight, item.workload, item.members)))
        self.items_on: dict[int, list[int]] = {}
        """node -> items that hold something there"""
        self._elastic_items: dict[int, list[int]] = {}
        """elastic workload -> its items"""
        for number, item in enumerate(self.items):
            for node in {grant.node for grant in item.grants}:
                self.items_on.setdefault(node, []).append(number)
            if workloads[item.workload].expendable:
                self._elastic_items.setdefault(item.workload, []).append(number)

    def _make_items(self, weigh: Callable[[Cost, int], int]) -> Iterator[Item]:
        for number, workload in enumerate(self.workloads):
            held = workload.placed_members
            least_lost = 1 if workload.expendable else len(held)
            if not held or (workload.budget and least_lost > self.budgets.get(workload.budget, 0)):
                continue
            for members in [(member,) for member in held] if workload.expendable else [held]:
                grants = tuple(grant for i in members if (grant := workload.members[i].grant) is not None)
                yield Item(number, members, weigh(self.cost(number, members), len(members)), grants)

    def cost(self, number: int, members: Iterable[int]) -> Cost:
        """What stopping these members of a workload costs."""
        workload = self.workloads[number]
        rank = self._ranks[workload.priority]
        total = Cost()
        for i in members:
            total += member_cost(workload, workload.members[i], self._now_s, self.snapshot, rank)
        return total

    # --- sets of items ----------------------------------------------------------------------------------

    def with_gang_mates(self, picked: Sequence[int]) -> Sequence[int]:
        """The items and all that stop with them: an elastic gang that loses too many stops as a whole."""
        if not self._elastic_items:
            return picked
        elastic: dict[int, int] = {}
        for number in picked:
            workload = self.items[number].workload
            if workload in self._elastic_items:
                elastic[workload] = elastic.get(workload, 0) + 1
        whole = [each for each, lost in elastic.items() if lost > self.workloads[each].expendable]
        return (
            picked
            if not whole
            else sorted({*picked, *(number for each in whole for number in self._elastic_items[each])})
        )

    def weight(self, picked: Sequence[int]) -> int:
        """Weight of stopping the items and all that stop with them."""
        return sum(self.items[number].weight for number in self.with_gang_mates(picked))

    def is_within_budgets(self, picked: Sequence[int]) -> bool:
        return not self.find_overdrawn_budgets(picked)

    def find_overdrawn_budgets(self, picked: Sequence[int]) -> list[str]:
        """Disruption budgets that do not allow the set."""
        if not self.budgets:
            return []
        drawn: dict[str, int] = {}
        for number in self.with_gang_mates(picked):
            item = self.items[number]
            budget = self.workloads[item.workload].budget
            drawn[budget] = drawn.get(budget, 0) + len(item.grants)
        return [budget for budget, pods in drawn.items() if budget and pods > self.budgets.get(budget, 0)]

    def pick_within_budgets(self, items: Sequence[int]) -> Picked:
        """As many of the items as disruption budgets allow, in order."""
        picked: Picked = ()
        if not self.budgets:
            return tuple(items)
        for number in items:
            if self.is_within_budgets((*picked, number)):
                picked = (*picked, number)
        return picked

    def grants(self, picked: Sequence[int]) -> list[Grant]:
        return [grant for number in self.with_gang_mates(picked) for grant in self.items[number].grants]

    @contextlib.contextmanager
    def without_items(self, picked: Sequence[int], node: int | None = None) -> Iterator[None]:
        """The snapshot, or one node of it, with these items stopped; restored exactly afterwards."""
        grants = [grant for grant in self.grants(picked) if node is None or grant.node == node]
        with self.snapshot.trial() as trial:
            trial.release_all(grants)
            yield

    @contextlib.contextmanager
    def with_items_running(self, items: Sequence[int]) -> Iterator[None]:
        """The snapshot with these stopped items running again."""
        grants = [grant for number in items for grant in self.items[number].grants]
        with self.snapshot.trial() as trial:
            for grant in grants:
                trial.book(grant)
            yield

    def list_victims(self, picked: Sequence[int]) -> tuple[Victim, ...]:
        """The set as victims, by workload."""
        members: dict[int, list[int]] = {}
        for number in self.with_gang_mates(picked):
            members.setdefault(self.items[number].workload, []).extend(self.items[number].members)
        found = []
        for number, chosen in sorted(members.items()):
            workload = self.workloads[number]
            stopped = [workload.members[i] for i in sorted(chosen)]
            found.append(
                Victim(
                    workload.name,
                    tuple(member.name for member in stopped),
                    tuple(member.grant for member in stopped if member.grant is not None),
                    self.cost(number, chosen),
                    whole=len(chosen) == len(workload.placed_members),
                )
            )
        return tuple(found)

    def total_milli(self) -> int:
        """Milli-GPUs that all items hold."""
        return sum(grant_milli(grant, self.snapshot) for item in self.items for grant in item.grants)


# --- search ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Found:
    """The lightest set that suffices, or None; `proven`: no lighter one exists."""

    picked: Picked | None
    proven: bool


class Problem(abc.ABC):
    """Tells whether a set suffices, and a lower bound of what it lacks. The default has no bound."""

    @abc.abstractmethod
    def is_sufficient(self, picked: Picked) -> bool: ...

    def min_lacking_weight(self, picked: Picked, rest: Sequence[int]) -> int | None:
        """Lower bound of the weight to add from `rest`; None: all of it does not suffice."""
        del picked, rest
        return 0


def find_lightest(
    pool: VictimPool, items: Sequence[int], problem: Problem, *, steps: int, below: int | None = None
) -> Found:
    """The lightest set of these items that suffices, lighter than `below`; at most `steps` sets are tried."""
    ordered = sorted(items)
    heap: list[tuple[int, Picked, int]] = []

    def offer(picked: Picked, following: int) -> None:
        lacking = problem.min_lacking_weight(picked, ordered[following:])
        if lacking is None or not pool.is_within_budgets(picked):
            return
        bound = pool.weight(picked) + lacking
        if below is None or bound < below:
            heapq.heappush(heap, (bound, picked, following))

    offer((), 0)
    for _ in range(steps):
        if not heap:
            return Found(None, proven=True)
        _, picked, following = heapq.heappop(heap)
        if problem.is_sufficient(picked):
            return Found(picked, proven=True)
        for place in range(following, len(ordered)):
            offer((*picked, ordered[place]), place + 1)
    return Found(None, proven=not heap)


def drop_unneeded(pool: VictimPool, picked: Picked, holds: Callable[[Picked], bool]) -> Picked:
    """Drop items that are not needed, the heaviest first: afterwards no item can be dropped.

    `holds` is called with the snapshot without the given set. Items are tried by halves, so that a few needed ones are
    found among many without testing each.
    """
    kept = set(picked)
    chunks = [sorted(kept, key=lambda each: (-pool.items[each].weight, each))]
    with contextlib.ExitStack() as stack:
        stack.enter_context(pool.without_items(picked))
        while chunks:
            chunk = chunks.pop(0)
            fewer = kept.difference(chunk)
            spared = set(pool.with_gang_mates(sorted(kept))).difference(pool.with_gang_mates(sorted(fewer)))
            trial = contextlib.ExitStack()
            with trial:
                trial.enter_context(pool.with_items_running(sorted(spared)))
                if holds(tuple(sorted(fewer))):
                    kept = fewer
                    stack.push(trial.pop_all())
                elif len(chunk) > 1:
                    half = len(chunk) // 2
                    chunks[:0] = [chunk[:half], chunk[half:]]
    return tuple(sorted(kept))
