"""What has to go for a gang to start: one workload if one will do, else a set that has no spare member.

Only work of strictly lower priority is considered, and a workload goes as a whole. Singles are tried from the lowest
priority and the fewest cards up. Sets are found by letting go of more and more in that order (more room never hurts,
so the shortest sufficient run is found by halving), keeping those on nodes that the plan then uses, and taking back
each one that turns out not to be needed. The set is minimal, not always the smallest; `kgwe.placement.preempt` looks
for the cheapest one when somebody really is to be evicted.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kgwe.placement.gang_plan import GangPlan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

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
    search: GangSearch, gang: GangRequest, evictable: Sequence[Evictable]
) -> tuple[tuple[str, ...], GangPlan] | None:
    """Owners that have to go, and the plan then; None when even all of lower priority would not do."""
    lower = sorted((each for each in evictable if each.priority < gang.priority), key=_cost)
    enough = _shortest_run(search, gang, lower)
    if enough is None:
        return None
    for each in lower[:_SINGLES]:
        plan = _without(search, gang, [each])
        if plan is not None:
            return (each.owner,), plan
    return _pruned(search, gang, enough)


def _cost(each: Evictable) -> tuple[int, int, int, str]:
    return each.priority, sum(grant.cards.bit_count() for grant in each.grants), len(each.grants), each.owner


def _shortest_run(search: GangSearch, gang: GangRequest, lower: Sequence[Evictable]) -> list[Evictable] | None:
    if not lower or _without(search, gang, lower) is None:
        return None
    low, high = 1, len(lower)
    while low < high:
        middle = (low + high) // 2
        if _without(search, gang, lower[:middle]) is None:
            low = middle + 1
        else:
            high = middle
    return list(lower[:low])


def _pruned(search: GangSearch, gang: GangRequest, enough: list[Evictable]) -> tuple[tuple[str, ...], GangPlan] | None:
    plan = _without(search, gang, enough)
    kept = enough
    if plan is not None:
        nodes = {grant.node for grant in plan.grants}
        near = [each for each in enough if any(grant.node in nodes for grant in each.grants)]
        closer = _without(search, gang, near)
        if closer is not None:
            kept, plan = near, closer
    # The dearest first: what can stay had better be that.
    for each in kept[::-1][:_SINGLES]:
        others = [other for other in kept if other is not each]
        spared = _without(search, gang, others)
        if spared is not None:
            kept, plan = others, spared
    return (tuple(each.owner for each in kept), plan) if plan is not None else None


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
