"""Which running work to stop so that more important work can start: the least that suffices, or nothing.

The rules, none of which a plan ever bends:

- only work of strictly lower priority that says it may be preempted,
- a gang that cannot go on without a member counts, and is stopped, as a whole,
- disruption budgets hold, for the members of such a gang too,
- nothing is stopped unless the wanted work then starts: every set is tried on the snapshot without it, with the
  same fit and the same gang planner that place work, so what is required of wiring and domains is kept,
- nobody is stopped who could be spared: no victim can be dropped from a plan.

Of all sets that suffice, the one that costs least is taken (`kgwe.placement.disruption.running` says what counts). For
one pod that is exact: its victims are on one node, and every node that could be cheaper is searched. `proven` tells
whether no cheaper set exists or whether the search was cut short.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kgwe import errors
from kgwe.placement.disruption import gang_constraints, node_victims
from kgwe.placement.disruption.gang_victims import Clearing
from kgwe.placement.disruption.node_victims import OnNode
from kgwe.placement.disruption.running import Cost
from kgwe.placement.disruption.victims import Found, Pool
from kgwe.placement.gang.plan import GangPlan
from kgwe.placement.gang.request import GangRequest
from kgwe.placement.gang.search import GangSearch
from kgwe.placement.pod.fit import Verdict
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
    """Stop the victims, all of them, then place the work as told."""

    victims: tuple[Victim, ...]
    placement: tuple[Grant, ...]
    """One per pod, in the order of ranks."""
    cost: Cost
    proven: bool
    """Whether no cheaper set of victims exists."""
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True)
class Evictable:
    """Work that runs, of which some may be asked to make way, and what it takes to say what that costs."""

    running: Sequence[Running]
    now_s: float
    budgets: Mapping[str, int] | None = None
    """Disruption budget -> pods that may still be stopped; one that is not listed allows none."""

    def below(self, priority: int, snapshot: Snapshot) -> Pool:
        """What work of this priority may stop."""
        lower = [each for each in self.running if each.preemptible and each.priority < priority and each.held]
        return Pool(snapshot, lower, self.now_s, self.budgets)


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
    pool = Evictable(tuple(running), now_s, budgets).below(priority, fitter.snapshot)
    if isinstance(wanted, GangRequest):
        return _for_gang(GangSearch(fitter, tree or gang_constraints.flat(fitter.snapshot)), pool, wanted)
    return _for_pod(fitter, pool, wanted)


# --- one pod --------------------------------------------------------------------------------------------


def _for_pod(fitter: Fitter, pool: Pool, request: Request) -> PreemptionPlan | Refusal:
    fits = np.flatnonzero(fitter.verdicts(request) == Verdict.FITS)
    if len(fits):
        return nothing_to_stop((granted(fitter, request, int(fits[0])),))
    problems = (OnNode(fitter, pool, request, node) for node in _hopeful(fitter, pool, request))
    found, node = node_victims.best_node(pool, problems)
    if found.picked is None:
        return refuse(fitter, pool, lambda: bool((fitter.verdicts(request) == Verdict.FITS).any()))
    with pool.without(found.picked):
        grant = granted(fitter, request, node)
    return plan_of(fitter, pool, found.picked, (grant,), proven=found.proven)


def granted(fitter: Fitter, request: Request, node: int) -> Grant:
    """What the pod gets on a node that was found to fit."""
    grant = fitter.grant(request, node)
    if grant is None:
        raise errors.InvariantBroken(f"{fitter.snapshot.nodes[node].name} fits a pod and grants it nothing")
    return grant


def nothing_to_stop(placement: tuple[Grant, ...]) -> PreemptionPlan:
    return PreemptionPlan((), placement, Cost(), proven=True, reasons=("starts without stopping anything",))


def _hopeful(fitter: Fitter, pool: Pool, request: Request) -> list[int]:
    """Nodes that could hold the pod when empty and where something can be stopped."""
    possible = fitter.when_empty(request)
    return [node for node in sorted(pool.on) if possible[node] == Verdict.FITS]


def plan_of(fitter: Fitter, pool: Pool, picked: Picked, placement: Sequence[Grant], *, proven: bool) -> PreemptionPlan:
    victims = pool.victims(picked)
    nodes = fitter.snapshot.nodes
    reasons = tuple(
        f"stop {'all of ' if victim.whole else ''}{victim.workload} on "
        f"{', '.join(sorted({nodes[grant.node].name for grant in victim.grants}))}, "
        f"which costs {victim.cost.gpu_hours:.2f} GPU-hours"
        for victim in victims
    )
    return PreemptionPlan(victims, tuple(placement), sum((victim.cost for victim in victims), Cost()), proven, reasons)


def refuse(fitter: Fitter, pool: Pool, starts: Callable[[], bool]) -> Refusal:
    """Why no set of victims will do; `starts` tells whether the work would with things as they then are."""
    free = Pool(fitter.snapshot, [dataclasses.replace(each, budget="") for each in pool.workloads], 0.0)
    code = Reason.NOTHING_LOWER
    if free.items:
        with free.without(range(len(free.items))):
            code = Reason.BUDGETS if starts() else Reason.NOT_ENOUGH
    counts = {"workloads": len(free.workloads), "evictable_milli": free.milli()}
    message = f"{counts['workloads']} workloads with {counts['evictable_milli'] / 1000:g} GPUs could be stopped"
    return Refusal(code, message, counts)


# --- a gang ---------------------------------------------------------------------------------------------


def _for_gang(search: GangSearch, pool: Pool, gang: GangRequest) -> PreemptionPlan | Refusal:
    now = search.find(gang)
    if isinstance(now, GangPlan):
        return nothing_to_stop(now.grants)
    cleared = clear(search, pool, gang)
    if cleared is None:
        return refuse(search.fitter, pool, lambda: search.has_room(gang))
    return plan_of(search.fitter, pool, cleared.picked, cleared.plan.grants, proven=cleared.proven)


@dataclass(frozen=True, slots=True)
class Cleared:
    """A set of work, and where the gang goes without it."""

    picked: Picked
    plan: GangPlan
    proven: bool


def clear(search: GangSearch, pool: Pool, gang: GangRequest) -> Cleared | None:
    """The cheapest set that lets a gang start which does not start as things are, planned anew without it."""
    with pool.without(range(len(pool.items))):
        hopeless = not search.has_room(gang)
    found = Found(None, proven=True) if hopeless else Clearing(search, pool, gang).lightest()
    if found.picked is None:
        return None
    with pool.without(found.picked):
        plan = search.find(gang)
    if not isinstance(plan, GangPlan):
        raise errors.InvariantBroken(f"{gang.name or 'a gang'} has room and is not placed: {plan}")
    return Cleared(found.picked, plan, found.proven)
