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
    nearest = sorted(lower, key=lambda each: (each.priority, -_cards(each, near), *_cost(each)))
    enough = _shortest_run(search, gang, nearest)
    if enough is None:
        return None
    for each in lower[:_SINGLES]:
        if _holds_without(search, gang, [each]):
            return _verified(search, gang, [each])
    runs = [enough, _shortest_run(search, gang, lower) or enough]
    sets = [_pruned(search, gang, run) for run in runs]
    return _verified(search, gang, min(sets, key=lambda gone: (sum(_cards(each) for each in gone), len(gone))))


def _cost(each: Evictable) -> tuple[int, int, int, str]:
    return each.priority, _cards(each), len(each.grants), each.owner


def _cards(each: Evictable, nodes: Container[int] | None = None) -> int:
    """Cards it holds, on these nodes or on all."""
    return sum(grant.cards.bit_count() for grant in each.grants if nodes is None or grant.node in nodes)


def _shortest_run(search: GangSearch, gang: GangRequest, order: Sequence[Evictable]) -> list[Evictable] | None:
    """The first so many that suffice; None when all of them do not."""
    low, high = 0, 1
    while not _holds_without(search, gang, order[:high]):
        if high >= len(order):
            return None
        low, high = high, min(2 * high, len(order))
    low += 1
    while low < high:
        middle = (low + high) // 2
        if _holds_without(search, gang, order[:middle]):
            high = middle
        else:
            low = middle + 1
    return list(order[:high])


def _pruned(search: GangSearch, gang: GangRequest, enough: list[Evictable]) -> list[Evictable]:
    """Without those that need not go after all."""
    with _released(search.fitter.snapshot, enough):
        plan = search.find(gang)
    kept = enough
    if isinstance(plan, GangPlan):
        nodes = {grant.node for grant in plan.grants}
        touched = [each for each in enough if any(grant.node in nodes for grant in each.grants)]
        if _holds_without(search, gang, touched):
            kept = touched
    # The dearest first: what can stay had better be that.
    for each in kept[::-1][:_SINGLES]:
        others = [other for other in kept if other is not each]
        if _holds_without(search, gang, others):
            kept = others
    return kept


def _verified(
    search: GangSearch, gang: GangRequest, gone: Sequence[Evictable]
) -> tuple[tuple[str, ...], GangPlan] | None:
    """The plan if these were gone, made for real."""
    with _released(search.fitter.snapshot, gone):
        plan = search.find(gang)
    owners = tuple(each.owner for each in sorted(gone, key=_cost))
    return (owners, plan) if isinstance(plan, GangPlan) else None


def _holds_without(search: GangSearch, gang: GangRequest, gone: Sequence[Evictable]) -> bool:
    with _released(search.fitter.snapshot, gone):
        return search.holds(gang)


@contextmanager
def _released(snapshot: Snapshot, gone: Sequence[Evictable]) -> Iterator[None]:
    undos: list[Callable[[], None]] = []
    try:
        for each in gone:
            for grant in each.grants:
                undos.append(snapshot.release(grant))  # noqa: PERF401 - what was released must be known when one fails
        yield
    finally:
        for undo in reversed(undos):
            undo()
