"""What waits for nodes: everything that the engine cannot place now, and that has waited long enough."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from kgwe.kube.api import timestamp
from kgwe.placement.live.scratch import ScratchFleet
from kgwe.placement.planning.plan import Plan
from kgwe.placement.planning.planner import make_plan
from kgwe.placement.refusal import Reason

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kgwe.cluster.offline import View
    from kgwe.placement.planning.ask import Ask

#: Refusals that no node cures.
_NOT_FOR_NODES: Final = frozenset(
    {Reason.INVALID, Reason.UNKNOWN_STRATEGY, Reason.STRATEGY_FAILED, Reason.NO_PRIORITY_CLASS, Reason.INTERNAL_ERROR}
)
#: Reasons of workloads that wait for money.
_FOR_MONEY: Final = frozenset({Reason.BUDGET_EXCEEDED, Reason.COST_LIMIT})
#: So much priority takes a tenth off the time that a pod must wait; a tenth of the time stays.
_PRIORITY_STEP: Final = 1000
_LEAST: Final = 0.1


@dataclass(frozen=True, slots=True)
class Demand:
    """What waits, and the fleet with everything placed that will start without a purchase."""

    fleet: ScratchFleet
    asks: tuple[Ask, ...] = ()
    """The engine finds no place for them."""
    young: int = 0
    """Asks that have not waited long enough."""
    expected: frozenset[str] = frozenset()
    """Nodes on which the engine places what waits now."""
    names: dict[str, str] = field(default_factory=dict)
    """Owner -> its name for people."""
    pending_pods: int = 0
    placed: frozenset[str] = frozenset()
    """Owners that the engine places now."""


def find_wait_s(timeout_s: float, priority: int) -> float:
    """Return how long an ask must wait before nodes are bought for it. Priority shortens it."""
    return timeout_s * max(1.0 - max(priority, 0) / _PRIORITY_STEP * _LEAST, _LEAST)


def find_demand(
    view: View,
    masked: frozenset[str],
    timeout_s: float,
    now_s: float,
    *,
    is_tried: bool = False,
    without: frozenset[str] = frozenset(),
    extra: Sequence[Ask] = (),
    booked: frozenset[str] = frozenset(),
) -> Demand:
    """Ask the engine for everything that waits, in queue order. `masked`: nodes on which nothing more is placed.

    Nodes whose GPUs have not arrived are masked: they count as capacity that comes. `is_tried`: whether every pod
    counts as refused by a scheduler. `without`: owners that are left out.
    `extra`: asks of other objects. `booked`: owners for which nothing is bought, but whose nodes stay.
    """
    view.find_waiting()
    live = view.fleet
    fleet = ScratchFleet(live, live.weights, live.domain_weights, live.strategy)
    fleet.sync(masked)
    unmet, names = [], {}
    expected: set[str] = set()
    placed: set[str] = set()
    young = pending = 0
    others = {ask.owner for ask in extra}
    for ask in sorted((*view.asks.values(), *extra), key=lambda each: each.sort_key()):
        if ask.owner in without or not (is_tried or _is_unschedulable(view, ask)):
            continue
        found = make_plan(fleet, ask, explain=False)
        if isinstance(found, Plan):
            fleet.snapshot.commit_all(found.grants)
            expected.update(seat.node for seat in found.seats)
            placed.add(ask.owner)
            continue
        if found.code in _NOT_FOR_NODES or ask.owner in booked:
            continue
        is_extra = ask.owner in others
        pending += 0 if is_extra else _count_pods(ask)
        waited_s = now_s - timestamp.epoch_seconds(ask.since) if ask.since else 0.0
        if not is_extra and waited_s < find_wait_s(timeout_s, ask.priority):
            young += 1
            continue
        unmet.append(ask)
        names[ask.owner] = f"{ask.namespace}/{ask.name}" if ask.namespace else ask.name or ask.owner
    return Demand(fleet, tuple(unmet), young, frozenset(expected), names, pending, frozenset(placed))


def _waits_for_money(view: View, ask: Ask) -> bool:
    """Whether a budget holds the workload back: more nodes would only cost more."""
    workload = view.state.find_workload(ask.owner)
    conditions = workload.status.conditions if workload is not None else ()
    return any(each.status == "False" and each.reason in _FOR_MONEY for each in conditions)


def _is_unschedulable(view: View, ask: Ask) -> bool:
    """Whether a scheduler has tried it: a lone pod must say so itself."""
    pod = view.state.pods.get(ask.owner)
    if pod is None:
        return not _waits_for_money(view, ask)
    if pod.spec.schedulingGates:
        return False
    said = next((each for each in pod.status.conditions if each.type == "PodScheduled"), None)
    return said is not None and said.status == "False" and said.reason == "Unschedulable"


def _count_pods(ask: Ask) -> int:
    return sum(role.replicas for role in ask.gang.roles) if ask.gang is not None else ask.pods
