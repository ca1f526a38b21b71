"""What has to go for a gang to start: one workload if one will do, else a set that has no spare member.

Only work of strictly lower priority is considered, and a workload goes as a whole. Singles are tried from the lowest
priority and the fewest cards up. Sets are found by letting go of more and more (more room never hurts, so the shortest
sufficient run is found by halving), in that order and again with those first that hold most of the best domain;
keeping those on nodes that the plan then uses, and taking back each one that turns out not to be needed. The set
is minimal, not always the smallest; `kgwe.placement.preempt` looks for the cheapest one when somebody really is to
be evicted.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kgwe import errors
from kgwe.placement.gang_plan import GangPlan

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator, Sequence

    from kgwe.placement.gang_request import GangRequest
    from kgwe.placement.gang_search import GangSearch
    from kgwe.placement.snapshot import Grant, Snapshot

# A certificate is to be had in milliseconds: more than this many workloads are not tried one by one.
_SINGLES: Final = 24


@dataclass(frozen=True, slots=True)
class Evictable:
    """Work that may be asked to go; its grants are booked in the snapshot."""

    owner: str
    priority: int
    grants: tuple[Grant, ...]


def least(
    search: GangSearch, gang: GangRequest, evictable: Sequence[Evictable], near: Container[int] = frozenset()
) -> tuple[tuple[str, ...], GangPlan] | None:
    """Owners that have to go, and the plan then; None when even all of lower priority would not do.

    `near`: nodes of the domain that is the least short.
    """
    lower = sorted((each for each in evictable if each.priority < gang.priority), key=_cost)
    if not lower or _without(search, gang, lower) is None:
        return None
    for each in lower[:_SINGLES]:
        plan = _without(search, gang, [each])
        if plan is not None:
            return (each.owner,), plan
    nearest = sorted(lower, key=lambda each: (each.priority, -_cards(each, near), *_cost(each)))
    found = [_pruned(search, gang, _shortest_run(search, gang, order)) for order in (lower, nearest)]
    gone, plan = min(found, key=lambda option: (sum(_cards(each) for each in option[0]), len(option[0])))
    return tuple(each.owner for each in gone), plan


def _cost(each: Evictable) -> tuple[int, int, int, str]:
    return each.priority, _cards(each), len(each.grants), each.owner


def _cards(each: Evictable, nodes: Container[int] | None = None) -> int:
    """Cards it holds, on these nodes or on all."""
    return sum(grant.cards.bit_count() for grant in each.grants if nodes is None or grant.node in nodes)


def _shortest_run(search: GangSearch, gang: GangRequest, order: Sequence[Evictable]) -> list[Evictable]:
    """The first so many that suffice; all of them do."""
    low, high = 1, len(order)
    while low < high:
        middle = (low + high) // 2
        if _without(search, gang, order[:middle]) is None:
            low = middle + 1
        else:
            high = middle
    return list(order[:low])


def _pruned(search: GangSearch, gang: GangRequest, enough: list[Evictable]) -> tuple[list[Evictable], GangPlan]:
    plan = _without(search, gang, enough)
    if plan is None:
        raise errors.InvariantBroken("work that was enough to evict no longer is")
    nodes = {grant.node for grant in plan.grants}
    kept = enough
    touched = [each for each in enough if any(grant.node in nodes for grant in each.grants)]
    closer = _without(search, gang, touched)
    if closer is not None:
        kept, plan = touched, closer
    # The dearest first: what can stay had better be that.
    for each in kept[::-1][:_SINGLES]:
        others = [other for other in kept if other is not each]
        spared = _without(search, gang, others)
        if spared is not None:
            kept, plan = others, spared
    return kept, plan


def _without(search: GangSearch, gang: GangRequest, gone: Sequence[Evictable]) -> GangPlan | None:
    """The plan if these were gone."""
    with _released(search.fitter.snapshot, [grant for each in gone for grant in each.grants]):
        plan = search.find(gang)
    return plan if isinstance(plan, GangPlan) else None


@contextmanager
def _released(snapshot: Snapshot, grants: Sequence[Grant]) -> Iterator[None]:
    undos: list[Callable[[], None]] = []
    try:
        for grant in grants:
            undos.append(snapshot.release(grant))  # noqa: PERF401 - what was released must be known when one fails
        yield
    finally:
        for undo in reversed(undos):
            undo()
