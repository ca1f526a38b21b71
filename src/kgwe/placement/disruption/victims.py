"""Sets of running work that could be stopped, and the search for the cheapest one that suffices.

Work is cut into items, the smallest pieces that stop without others: a rigid gang is one item, each member of an
elastic gang, or of pods that do not know of each other, is one. Picking more members than an elastic gang can
spare stops all of it, and weighs as all of it.

The search goes through sets of items from the lightest on (A* over sets, each reached once, in one order of items),
so the first that suffices is the lightest of all. It relies on two things that hold for evictions:

- picking more never weighs less, and never overdraws a disruption budget less,
- what fits after an eviction fits after a larger one.

A lower bound of what a set still lacks keeps the search narrow. It is bounded in steps all the same; `proven` says
whether it came to its end.
"""

from __future__ import annotations

import abc
import contextlib
import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kgwe.placement.disruption.running import Cost, Victim, member_cost, milli_of, ranks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from kgwe.placement.disruption.running import Running
    from kgwe.placement.fleet.snapshot import Grant, Snapshot

    Picked = tuple[int, ...]

# Ties in cost go to the set of fewer pods; no set of work has as many.
_PODS: Final = 1 << 24


def by_cost(cost: Cost, pods: int) -> int:
    """Weigh by cost, then by pods stopped."""
    return cost.total * _PODS + pods


@dataclass(frozen=True, slots=True)
class Item:
    """Members of one workload that stop together."""

    workload: int
    members: tuple[int, ...]
    weight: int
    grants: tuple[Grant, ...]


class Pool:
    """The work that may be stopped; items are numbered from the lightest on."""

    def __init__(
        self,
        snapshot: Snapshot,
        workloads: Sequence[Running],
        now_s: float,
        budgets: Mapping[str, int] | None = None,
        weigh: Callable[[Cost, int], int] = by_cost,
    ) -> None:
        self.snapshot = snapshot
        self.workloads = workloads
        self.budgets = budgets or {}
        self._now_s = now_s
        self._ranks = ranks(workloads)
        self.items = tuple(sorted(self._cut(weigh), key=lambda item: (item.weight, item.workload, item.members)))
        self.on: dict[int, list[int]] = {}
        """node -> items that hold something there"""
        self._of: dict[int, list[int]] = {}
        """elastic workload -> its items"""
        for number, item in enumerate(self.items):
            for node in {grant.node for grant in item.grants}:
                self.on.setdefault(node, []).append(number)
            if workloads[item.workload].spare:
                self._of.setdefault(item.workload, []).append(number)

    def _cut(self, weigh: Callable[[Cost, int], int]) -> Iterator[Item]:
        for number, workload in enumerate(self.workloads):
            held = workload.held
            least_lost = 1 if workload.spare else len(held)
            if not held or (workload.budget and least_lost > self.budgets.get(workload.budget, 0)):
                continue
            for members in [(member,) for member in held] if workload.spare else [held]:
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

    def closed(self, picked: Sequence[int]) -> Sequence[int]:
        """The items that stop when these do: an elastic gang that can spare no more stops as a whole."""
        if not self._of:
            return picked
        elastic: dict[int, int] = {}
        for number in picked:
            workload = self.items[number].workload
            if workload in self._of:
                elastic[workload] = elastic.get(workload, 0) + 1
        whole = [each for each, lost in elastic.items() if lost > self.workloads[each].spare]
        return picked if not whole else sorted({*picked, *(number for each in whole for number in self._of[each])})

    def weight(self, picked: Sequence[int]) -> int:
        """What stopping them weighs, with all who stop because of them."""
        return sum(self.items[number].weight for number in self.closed(picked))

    def within_budgets(self, picked: Sequence[int]) -> bool:
        return not self.overdrawn(picked)

    def overdrawn(self, picked: Sequence[int]) -> list[str]:
        """Disruption budgets that do not allow the set."""
        if not self.budgets:
            return []
        drawn: dict[str, int] = {}
        for number in self.closed(picked):
            item = self.items[number]
            budget = self.workloads[item.workload].budget
            drawn[budget] = drawn.get(budget, 0) + len(item.grants)
        return [budget for budget, pods in drawn.items() if budget and pods > self.budgets.get(budget, 0)]

    def allowed(self, items: Sequence[int]) -> Picked:
        """As many of the items as disruption budgets allow, the first ones first."""
        picked: Picked = ()
        if not self.budgets:
            return tuple(items)
        for number in items:
            if self.within_budgets((*picked, number)):
                picked = (*picked, number)
        return picked

    def grants(self, picked: Sequence[int]) -> list[Grant]:
        return [grant for number in self.closed(picked) for grant in self.items[number].grants]

    @contextlib.contextmanager
    def without(self, picked: Sequence[int], node: int | None = None) -> Iterator[None]:
        """The snapshot, or one node of it, as it would be with these stopped; put back bit for bit afterwards."""
        grants = [grant for grant in self.grants(picked) if node is None or grant.node == node]
        with self.snapshot.trial() as trial:
            trial.release_all(grants)
            yield

    @contextlib.contextmanager
    def back(self, items: Sequence[int]) -> Iterator[None]:
        """The snapshot with these, of all that are stopped, running again."""
        grants = [grant for number in items for grant in self.items[number].grants]
        with self.snapshot.trial() as trial:
            for grant in grants:
                trial.book(grant)
            yield

    def victims(self, picked: Sequence[int]) -> tuple[Victim, ...]:
        """The set as a plan names it, by workload."""
        members: dict[int, list[int]] = {}
        for number in self.closed(picked):
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
                    whole=len(chosen) == len(workload.held),
                )
            )
        return tuple(found)

    def milli(self) -> int:
        """GPU that all of it holds."""
        return sum(milli_of(grant, self.snapshot) for item in self.items for grant in item.grants)


# --- search ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Found:
    """The lightest set that suffices, or None; `proven`: no lighter one exists."""

    picked: Picked | None
    proven: bool


class Problem(abc.ABC):
    """What a search asks: does it suffice, and how much at least is still lacking. The default knows no bound."""

    @abc.abstractmethod
    def suffices(self, picked: Picked) -> bool: ...

    def lacks(self, picked: Picked, rest: Sequence[int]) -> int | None:
        """Lower bound of the weight that must be added from `rest`; None: all of it would not do."""
        del picked, rest
        return 0


def lightest(pool: Pool, items: Sequence[int], problem: Problem, *, steps: int, below: int | None = None) -> Found:
    """The lightest set of these items that suffices, lighter than `below`; at most `steps` sets are tried."""
    ordered = sorted(items)
    heap: list[tuple[int, Picked, int]] = []

    def offer(picked: Picked, following: int) -> None:
        lacking = problem.lacks(picked, ordered[following:])
        if lacking is None or not pool.within_budgets(picked):
            return
        bound = pool.weight(picked) + lacking
        if below is None or bound < below:
            heapq.heappush(heap, (bound, picked, following))

    offer((), 0)
    for _ in range(steps):
        if not heap:
            return Found(None, proven=True)
        _, picked, following = heapq.heappop(heap)
        if problem.suffices(picked):
            return Found(picked, proven=True)
        for place in range(following, len(ordered)):
            offer((*picked, ordered[place]), place + 1)
    return Found(None, proven=not heap)


def reprieve(pool: Pool, picked: Picked, holds: Callable[[Picked], bool]) -> Picked:
    """Let go whoever is not needed, the heaviest first: afterwards no item can be dropped.

    `holds` is asked with the snapshot as it is without the set it is given. Items are tried by halves, so that a
    few who are needed are found among many who are not without asking for each.
    """
    kept = set(picked)
    chunks = [sorted(kept, key=lambda each: (-pool.items[each].weight, each))]
    with contextlib.ExitStack() as stack:
        stack.enter_context(pool.without(picked))
        while chunks:
            chunk = chunks.pop(0)
            fewer = kept.difference(chunk)
            spared = set(pool.closed(sorted(kept))).difference(pool.closed(sorted(fewer)))
            trial = contextlib.ExitStack()
            with trial:
                trial.enter_context(pool.back(sorted(spared)))
                if holds(tuple(sorted(fewer))):
                    kept = fewer
                    stack.push(trial.pop_all())
                elif len(chunk) > 1:
                    half = len(chunk) // 2
                    chunks[:0] = [chunk[:half], chunk[half:]]
    return tuple(sorted(kept))
