"""Which running workloads to stop so that one of higher priority can start: the least that suffices, or nothing.

The rules, which every plan keeps:

- only workloads of strictly lower priority that are preemptible,
- a gang that cannot run without a member counts, and is stopped, as a whole,
- disruption budgets hold, for the members of such a gang too,
- nothing is stopped unless the wanted workload then starts: every set is tested on the snapshot without it, with the
  same fit and the same gang planner that place workloads, so topology and domain requirements are kept,
- no victim can be dropped from a plan.

Of all sufficient sets the cheapest is taken (`kgwe.placement.disruption.running` defines the cost). For one pod that is
exact: its victims are on one node, and every node that could be cheaper is searched. `proven` tells whether no cheaper
set exists or whether the search was cut short.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kgwe import errors
from kgwe.placement.disruption import gang_constraints, node_victims
from kgwe.placement.disruption.gang_victims import GangVictims
from kgwe.placement.disruption.node_victims import NodeVictims
from kgwe.placement.disruption.running import Cost
from kgwe.placement.disruption.victims import Found, VictimPool
from kgwe.placement.gang.plan import GangPlan
from kgwe.placement.gang.request import GangRequest
from kgwe.placement.gang.search import GangSearch
from kgwe.placement.pod.fit_status import FitStatus
from kgwe.placement.refusal import Reason, Refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from kgwe.model.network.domains import Tree
    from kgwe.placement.disruption.running import Running, Victim
    from kgwe.placement.disruption.victims import Picked
    from kgwe.placement.fleet.node import Request
    from kgwe.placement.fleet.snapshot import Grant, Snapshot
    from kgwe.placement.pod.fit import Fitter


@dataclass(frozen=True, slots=True)
class PreemptionPlan:
    """Stop all victims, then place the workload as planned."""

    victims: tuple[Victim, ...]
    placement: tuple[Grant, ...]
    """One per pod, in the order of ranks."""
    cost: Cost
    proven: bool
    """Whether no cheaper set of victims exists."""
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True)
class Evictable:
    """Running workloads that may be stopped, with what their cost depends on."""

    running: Sequence[Running]
    now_s: float
    budgets: Mapping[str, int] | None = None
    """Disruption budget -> pods that may still be stopped; one that is not listed allows none."""

    def pool_below(self, priority: int, snapshot: Snapshot) -> VictimPool:
        """The pool of workloads that one of this priority may stop."""
        lower = [each for each in self.running if each.preemptible and each.priority < priority and each.placed_members]
        return VictimPool(snapshot, lower, self.now_s, self.budgets)


def plan_preemption(
    fitter: Fitter,
    tree: Tree | None,
    wanted: Request | GangRequest,
    running: Iterable[Running],
    now_s: float,
    *,
    priority: int,
    budgets: Mapping[str, int] | None = None,
) -> PreemptionPlan | Refusal:
    """The cheapest victims that let `wanted` of this priority start; none when it starts as things are.

    `budgets`: disruption budget -> pods that may still be stopped; one that is not listed allows none.
    """
    pool = Evictable(tuple(running), now_s, budgets).pool_below(priority, fitter.snapshot)
    if isinstance(wanted, GangRequest):
        return _plan_for_gang(
            GangSearch(fitter, tree or gang_constraints.build_flat_tree(fitter.snapshot)), pool, wanted
        )
    return _plan_for_pod(fitter, pool, wanted)


# --- one pod --------------------------------------------------------------------------------------------


def _plan_for_pod(fitter: Fitter, pool: VictimPool, request: Request) -> PreemptionPlan | Refusal:
    fits = np.flatnonzero(fitter.check_nodes(request) == FitStatus.FITS)
    if len(fits):
        return plan_without_victims((grant_on_node(fitter, request, int(fits[0])),))
    problems = (NodeVictims(fitter, pool, request, node) for node in _list_hopeful_nodes(fitter, pool, request))
    found, node = node_victims.find_best_node(pool, problems)
    if found.picked is None:
        return refuse_preemption(fitter, pool, lambda: bool((fitter.check_nodes(request) == FitStatus.FITS).any()))
    with pool.without_items(found.picked):
        grant = grant_on_node(fitter, request, node)
    return build_plan(fitter, pool, found.picked, (grant,), proven=found.proven)


def grant_on_node(fitter: Fitter, request: Request, node: int) -> Grant:
    """The grant of the pod on a node where it fits."""
    grant = fitter.find_grant(request, node)
    if grant is None:
        raise errors.InvariantBroken(f"{fitter.snapshot.nodes[node].name} fits a pod and grants it nothing")
    return grant


def plan_without_victims(placement: tuple[Grant, ...]) -> PreemptionPlan:
    return PreemptionPlan((), placement, Cost(), proven=True, reasons=("starts without stopping anything",))


def _list_hopeful_nodes(fitter: Fitter, pool: VictimPool, request: Request) -> list[int]:
    """Nodes that fit the pod when empty and where something can be stopped."""
    possible = fitter.check_empty_nodes(request)
    return [node for node in sorted(pool.items_on) if possible[node] == FitStatus.FITS]


def build_plan(
    fitter: Fitter, pool: VictimPool, picked: Picked, placement: Sequence[Grant], *, proven: bool
) -> PreemptionPlan:
    victims = pool.list_victims(picked)
    nodes = fitter.snapshot.nodes
    reasons = tuple(
        f"stop {'all of ' if victim.whole else ''}{victim.workload} on "
        f"{', '.join(sorted({nodes[grant.node].name for grant in victim.grants}))}, "
        f"which costs {victim.cost.gpu_hours:.2f} GPU-hours"
        for victim in victims
    )
    return PreemptionPlan(victims, tuple(placement), sum((victim.cost for victim in victims), Cost()), proven, reasons)


def refuse_preemption(fitter: Fitter, pool: VictimPool, starts: Callable[[], bool]) -> Refusal:
    """Why no set of victims suffices; `starts`: whether the wanted workload would start on the snapshot as it is."""
    free = VictimPool(fitter.snapshot, [dataclasses.replace(each, budget="") for each in pool.workloads], 0.0)
    code = Reason.NOTHING_LOWER
    if free.items:
        with free.without_items(range(len(free.items))):
            code = Reason.BUDGETS if starts() else Reason.NOT_ENOUGH
    counts = {"workloads": len(free.workloads), "evictable_milli": free.total_milli()}
    message = f"{counts['workloads']} workloads with {counts['evictable_milli'] / 1000:g} GPUs could be stopped"
    return Refusal(code, message, counts)


# --- a gang ---------------------------------------------------------------------------------------------


def _plan_for_gang(search: GangSearch, pool: VictimPool, gang: GangRequest) -> PreemptionPlan | Refusal:
    now = search.find(gang)
    if isinstance(now, GangPlan):
        return plan_without_victims(now.grants)
    cleared = find_gang_victims(search, pool, gang)
    if cleared is None:
        return refuse_preemption(search.fitter, pool, lambda: search.has_room(gang))
    return build_plan(search.fitter, pool, cleared.picked, cleared.plan.grants, proven=cleared.proven)


@dataclass(frozen=True, slots=True)
class GangClearing:
    """A set of victims, and the plan of the gang without them."""

    picked: Picked
    plan: GangPlan
    proven: bool


def find_gang_victims(search: GangSearch, pool: VictimPool, gang: GangRequest) -> GangClearing | None:
    """The cheapest victims that let a gang start, and its plan without them."""
    with pool.without_items(range(len(pool.items))):
        hopeless = not search.has_room(gang)
    found = Found(None, proven=True) if hopeless else GangVictims(search, pool, gang).find_lightest()
    if found.picked is None:
        return None
    with pool.without_items(found.picked):
        plan = search.find(gang)
    if not isinstance(plan, GangPlan):
        raise errors.InvariantBroken(f"{gang.name or 'a gang'} has room and is not placed: {plan}")
    return GangClearing(found.picked, plan, found.proven)
