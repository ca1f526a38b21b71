"""Explanations of workloads, gangs and pods that wait: the cause, the nearest place and the queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from kgwe.apps.whatif import cuts, holders, words
from kgwe.apps.whatif.explanation import Best, Change, Explanation, NodeCount, Turn, Waiting, Word
from kgwe.apps.whatif.parts import as_sentence, describe_plan, replace_fields
from kgwe.cluster import names
from kgwe.cluster.state import run_state
from kgwe.cluster.state.missing_labels import find_missing_labels
from kgwe.costing.budgets.admission import TOO_SMALL
from kgwe.model.units.phrasing import format_count, list_names
from kgwe.placement.gang.request import NODE
from kgwe.placement.planning import explain as pure
from kgwe.placement.planning import planner
from kgwe.placement.planning.plan import Plan
from kgwe.placement.pod.shortage import Shortage
from kgwe.placement.refusal import Reason, Refusal

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kgwe.cluster.offline import View
    from kgwe.placement.planning.ask import Ask
    from kgwe.placement.planning.explain import Why

# Workloads ahead in the queue that are named.
_AHEAD: Final = 5
# Nodes of a possible place that a summary names.
_NAMED: Final = 4

# Reasons of workloads that had a place and did not start.
_FAILED_ATTEMPTS: Final = frozenset(
    {
        run_state.NODE_REFUSED,
        run_state.PLACE_LOST,
        run_state.POD_REJECTED,
        run_state.NOT_SCHEDULED,
        run_state.PODS_NOT_CREATED,
        run_state.ATTEMPTS_EXHAUSTED,
        "JobCreationFailed",
        "QuotaExceeded",
    }
)


def explain_waiting(view: View, owner: str, base: Explanation) -> Explanation:
    if owner in view.problems:
        problem = base.gang.problem if base.gang is not None else ""
        return replace_fields(base, summary=f"waiting. {as_sentence(problem or view.problems[owner])}")
    ask = view.asks.get(owner)
    if ask is None:
        return replace_fields(base, summary="waiting. It has no pods to place yet.")
    base = replace_fields(
        base, asked=describe_ask(view, ask), turn=turn(view, owner), cuts=cuts.lines(view.state.reader, ask)
    )
    if (money := _find_money(base.said)) is not None:
        hopeless = money.reason == Reason.COST_LIMIT or f" {TOO_SMALL}: " in money.message
        found_waiting = Waiting(money.reason, money.message, hopeless=hopeless)
        return _without_turn(
            replace_fields(base, summary=f"waiting. {as_sentence(money.message)}", waiting=found_waiting)
        )
    found = view.check_allowed(ask) or pure.explain(view.fleet, ask, evictable=view.list_evictable())
    if isinstance(found, Refusal):
        base = replace_fields(base, summary=f"waiting. {as_sentence(found.message)}", waiting=describe_refusal(found))
        return base if found.possible else _without_turn(base)
    if isinstance(found, Plan):
        return _fits(view, found, base)
    near = found.refusal.detail
    held = holders.list_holders(view, found.nearest, near.verdict if isinstance(near, Shortage) else None)
    waiting = msgspec.structs.replace(describe_why(found), holders=held, free_by=_estimate_room(view, ask, found))
    base = replace_fields(base, summary=f"waiting. {as_sentence(found.binding)}", waiting=waiting)
    base = _lead_with_missing_labels(view, ask, found.refusal.code, base)
    return _without_turn(base) if waiting.hopeless else base


def _find_money(said: Iterable[Word]) -> Word | None:
    """The last status, if the workload waits for money and not for capacity."""
    reasons = {Reason.BUDGET_EXCEEDED, Reason.COST_LIMIT}
    return next((word for word in said if word.status == "False" and word.reason in reasons), None)


def _lead_with_missing_labels(view: View, ask: Ask, code: Reason, base: Explanation) -> Explanation:
    """The explanation, which names labels that no node has before all advice on size, if they are the cause."""
    missing = find_missing_labels(view.state)
    if missing is None or not missing.is_cause(ask, code):
        return base
    rest = tuple(each for each in base.problems if as_sentence(each) != missing.text)
    return replace_fields(
        base, summary=f"waiting. {missing.text} {base.summary.removeprefix('waiting. ')}", problems=rest
    )


def _without_turn(base: Explanation) -> Explanation:
    """The explanation of what waiting cannot help: no place in the queue, and no start, even if a status has one."""
    return replace_fields(base, turn=None, estimated_start=None)


def _estimate_room(view: View, ask: Ask, found: Why) -> str:
    """When enough nodes of the nearest place are expected to be empty; "": not known."""
    whole = planner.divide_ask(view.fleet.fitter, ask)
    roles = whole.gang.roles if whole.gang is not None else ()
    if len(roles) > 1 or found.best is None:
        return ""
    needed = 1 if found.best.level == NODE else found.best.short
    return holders.estimate_room(view, found.nearest, roles[0].request if roles else whole.request, needed)


def _fits(view: View, plan: Plan, base: Explanation) -> Explanation:
    """There is room for it now, and it still waits."""
    if (failed := _failed_attempt(base.said)) is not None:
        return replace_fields(base, summary=f"waiting. {as_sentence(failed.message)}")
    where = list_names(plan.nodes, _NAMED)
    ahead = base.turn.place - 1 if base.turn is not None else 0
    if any(word.reason == Reason.HELD_FOR_OTHERS for word in base.said):
        why_not = "That room is reserved for a workload with an earlier turn; see Last status"
    elif ahead:
        why_not = f"{format_count(ahead, 'workload')} ahead of it in the queue may use that room first"
    else:
        why_not = "It is first in the queue and should start within seconds"
    check = f"kubectl get lease -n {names.SCHEDULER_LEASE_NAMESPACE} {names.SCHEDULER_LEASE}"
    hint = f"if it does not start within a minute, check that the scheduler runs ({check}) and read its log"
    summary = f"waiting. The nodes listed just now have room for it ({where}). {why_not}."
    return replace_fields(base, summary=summary, would_go=describe_plan(view, plan), problems=(*base.problems, hint))


def _failed_attempt(said: Iterable[Word]) -> Word | None:
    """The last status, if an attempt failed for another reason than free capacity."""
    return next((word for word in said if word.status == "False" and word.reason in _FAILED_ATTEMPTS), None)


def describe_refusal(found: Refusal) -> Waiting:
    """A refusal that does not depend on free capacity."""
    return Waiting(found.code, found.message, hopeless=not found.possible)


def describe_why(found: Why) -> Waiting:
    refusal = found.refusal
    best = found.best
    if best is not None and not best.short:
        best = None  # capacity is not what it lacks there
    return Waiting(
        reason=refusal.code,
        message=refusal.message,
        binding=found.binding,
        hopeless=not refusal.possible or bool(found.fix),
        fix=found.fix,
        best=None if best is None else Best(best.level, best.domain, best.room, best.needed, best.short),
        levels=tuple(look.describe() for look in found.looks),
        nodes=tuple(
            NodeCount(each.verdict.reason, each.count, each.examples, role, each.text)
            for role, listed in found.nodes.items()
            for each in listed
        ),
        changes=tuple(Change(change.kind, change.text, change.stops) for change in found.changes),
    )


def describe_ask(view: View, ask: Ask) -> tuple[str, ...]:
    return words.describe_ask(ask, planner.divide_ask(view.fleet.fitter, ask))


def turn(view: View, owner: str) -> Turn | None:
    order = view.list_in_order()
    if owner not in order:
        return None
    place = order.index(owner)
    return Turn(
        place + 1, len(order), tuple(view.state.owners.title(each) for each in order[max(place - _AHEAD, 0) : place])
    )
