"""Why a workload or pod is where it is, or why it waits: from the API and from planning it now."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from kgwe import errors
from kgwe.apps.whatif import cuts, holders, words
from kgwe.apps.whatif.explanation import (
    Best,
    Change,
    Explanation,
    Gang,
    NodeCount,
    Placed,
    Seat,
    Turn,
    Waiting,
    Word,
)
from kgwe.cluster import names
from kgwe.cluster.offline import is_gpu_pod
from kgwe.cluster.state import effective_seats, run_state
from kgwe.cluster.suspension import marks
from kgwe.cluster.workload import metadata_keys, placement_annotations
from kgwe.cluster.workload.workload import Workload
from kgwe.kube import dialects
from kgwe.kube.api import resources
from kgwe.kube.api.kgwe.gpuworkload_status import Phase
from kgwe.kube.client.client import Forbidden
from kgwe.model.units.phrasing import end_sentence, format_count, list_names
from kgwe.placement.fleet.snapshot import list_gpus
from kgwe.placement.gang.request import NODE
from kgwe.placement.planning import explain as pure
from kgwe.placement.planning import planner
from kgwe.placement.planning.plan import Plan
from kgwe.placement.pod.shortage import Shortage
from kgwe.placement.refusal import Reason, Refusal

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kgwe.cluster.offline import View
    from kgwe.cluster.workload.runs import Run
    from kgwe.kube.api import core
    from kgwe.kube.api.meta import Condition
    from kgwe.kube.api.resources import Resource
    from kgwe.placement.planning.ask import Ask
    from kgwe.placement.planning.explain import Why
    from kgwe.placement.planning.plan import Seat as PlannedSeat

Kind = Literal["workload", "pod"]
#: for kubectl: both kinds by their full names, because kubectl shows only one of two kinds of the same plural
LISTED: Final = f"{resources.GPU_WORKLOAD.full_name},{resources.WARP_GPU_WORKLOAD.full_name},pods"

# Workloads ahead in the queue that are named.
_AHEAD: Final = 5
_SIMILAR: Final = 5
_UNSEATED: Final = 8

# Reasons of workloads that had a place and did not start.
_FAILED_ATTEMPTS: Final = frozenset(
    {
        run_state.NODE_REFUSED,
        run_state.PLACE_LOST,
        run_state.POD_REJECTED,
        run_state.NOT_SCHEDULED,
        run_state.PODS_NOT_CREATED,
        "JobCreationFailed",
        "QuotaExceeded",
        "AttemptsExhausted",
    }
)

# Nodes that a summary names: of a running workload, and of a possible place.
_NAMED: Final = 16
_NAMED_HERE: Final = 4


def find(view: View, name: str, namespace: str, kind: Kind | None = None, group: str = "") -> Workload | core.Pod:
    """The workload or pod of that name; NotFound, with names that come near, when there is none.

    `group`: API group of the workload; Permanent when workloads of both groups have the name and it is left out.
    """
    every = view.state.workloads.values() if kind != "pod" else ()
    workloads = [w for w in every if group in ("", w.kind.resource.group)]
    pods = {p.metadata.key: p for p in view.state.pods.values()} if kind != "workload" else {}
    key = f"{namespace}/{name}"
    found = [w for w in workloads if w.meta.key == key]
    if len(found) > 1:
        names = " or ".join(sorted(f"gpuworkload.{w.kind.resource.group}/{name}" for w in found))
        raise errors.Permanent(f"two GPUWorkloads are named {name!r} in namespace {namespace}: give {names}")
    if found:
        return found[0]
    if key in pods:
        return pods[key]
    if (unreadable := _find_forbidden(view, namespace, kind, group)) is not None:
        raise unreadable
    raise errors.NotFound(_not_found(name, namespace, kind, [*(w.meta.key for w in workloads), *pods]))


def _find_forbidden(view: View, namespace: str, kind: Kind | None, group: str) -> Forbidden | None:
    """The error for a user who may list none of the kinds that were searched; None: at least one could be listed."""
    searched: dict[Resource[Any], str] = {}
    if kind != "pod":
        both = (resources.GPU_WORKLOAD, resources.WARP_GPU_WORKLOAD)
        searched |= {each: "GPUWorkloads" for each in both if group in ("", each.group)}
    if kind != "workload":
        searched[resources.POD] = "pods"
    if not searched.keys() & set(view.hidden) or searched.keys() & set(view.listed):
        return None
    names = " or ".join(dict.fromkeys(searched.values()))
    missing = ", ".join(each.full_name for each in view.hidden)
    return Forbidden(f"You may not read {names} in namespace {namespace}. Rights to list that you lack: {missing}")


def _not_found(name: str, namespace: str, kind: Kind | None, keys: list[str]) -> str:
    what = {"workload": "GPUWorkload", "pod": "pod", None: "GPUWorkload or pod"}
    text = f"no {what[kind]} named {name!r} in namespace {namespace}"
    elsewhere = sorted({key.partition("/")[0] for key in keys if key.partition("/")[2] == name})
    if elsewhere:
        return f"{text}; namespace {', '.join(elsewhere)} has one: add -n {elsewhere[0]}"
    here = [key.partition("/")[2] for key in keys if key.startswith(f"{namespace}/")]
    similar = [each for each in here if each.startswith(name)][:_SIMILAR]
    similar = similar or difflib.get_close_matches(name, here, _SIMILAR)
    if similar:
        return f"{text}; did you mean {' or '.join(similar)}?"
    return f"{text}; to list all: kubectl get {LISTED} -n {namespace}"


def owner_of(view: View, subject: Workload | core.Pod) -> str:
    """Whose plan the subject's place is part of: a workload's, a gang's, or its own."""
    if isinstance(subject, Workload):
        return subject.meta.uid
    seat = view.state.seat_of(subject)
    return (seat[0] if seat is not None else "") or view.gangs.owner_of(subject.metadata.uid) or subject.metadata.uid


def explain(view: View, subject: Workload | core.Pod) -> Explanation:
    return _workload(view, subject) if isinstance(subject, Workload) else _pod(view, subject)


# --- workloads -------------------------------------------------------------------------------------------


def _workload(view: View, workload: Workload) -> Explanation:
    meta, uid = workload.meta, workload.meta.uid
    run = view.state.runs.get(uid)
    base = Explanation(
        kind=f"GPUWorkload.{workload.kind.resource.group}",
        namespace=meta.namespace,
        name=meta.name,
        state=workload.status.phase or "Waiting",
        summary="",
        said=tuple(words_of(workload.status.conditions)),
        problems=view.config_problems(),
        warnings=view.warnings,
    )
    try:
        base = _replace_fields(base, asked=describe_ask(view, view.ask_of(workload)))
    except errors.Permanent as exc:
        base = _replace_fields(base, problems=(*base.problems, str(exc)))
    if meta.deletionTimestamp is not None:
        return _replace_fields(base, state="Deleting", summary="being deleted")
    if run is not None and run.ended is None and not workload.suspend and not _waits_in_queue(workload, run):
        return _explain_running(view, workload, run, base)
    if workload.finished:
        return _replace_fields(base, summary=describe_end(workload), placed=status_placed(workload))
    if workload.suspend:
        return _replace_fields(base, state="Suspended", summary=describe_suspended(workload, run))
    if run is not None and run.suspended:
        return _replace_fields(base, state="Waiting", summary=f"{workload.status.message}. It holds no GPUs")
    estimate = workload.status.estimate
    return _explain_waiting(view, uid, _replace_fields(base, state="Waiting", estimated_start=estimate))


def _waits_in_queue(workload: Workload, run: Run) -> bool:
    """Whether Kueue has not admitted its Job, or KGWE has no plan for the admitted Job yet."""
    return bool(workload.queue) and (run.suspended or not run.seats)


def describe_end(workload: Workload) -> str:
    status = workload.status
    when = f" at {status.completion_time}" if status.completion_time else ""
    if status.phase == Phase.SUCCEEDED:
        return f"succeeded{when}; it holds no GPUs"
    return f"failed{when}: {status.message.rstrip('.')}. Edit its spec to try again"


def describe_suspended(workload: Workload, run: Run | None) -> str:
    """What a suspended workload does, and how it is resumed."""
    _, message = marks.describe_suspension(workload.kind.resource, workload.meta)
    return f"{message}. " + ("Its pods are stopping" if run is not None else "It holds no GPUs")


def status_placed(workload: Workload) -> Placed | None:
    found = workload.status.placed
    if found is None:
        return None
    details = found.details
    return Placed(
        tuple(Seat(node, gpus=gpus) for node, _, gpus in found.placements),
        details.domain,
        details.score,
        dict(details.parts),
        details.gb_per_s,
        tuple(details.reasons.splitlines()),
    )


def _explain_running(view: View, workload: Workload, run: Run, base: Explanation) -> Explanation:
    pods = view.state.pods_of(run)
    details = run.details
    seats = tuple(_seats(view, run, pods.values()))
    found = Placed(seats)
    if details is not None:
        reasons = tuple(details.reasons.splitlines())
        found = Placed(seats, details.domain, details.score, dict(details.parts), details.gb_per_s, reasons)
    problems = [*base.problems, *_seat_problems(view, seats)]
    if run.suspended:
        resume = f"kubectl patch {run.resource.full_name} {run.meta.name} -n {run.meta.namespace}"
        problems.append(
            f"{run.resource.kind} {run.meta.name} is suspended and holds no GPUs. To resume:"
            f' {resume} --type merge -p \'{{"spec":{{"suspend":false}}}}\''
        )
    unplaced = run_state.find_unplaced(view.state, workload, run, pods)
    running = sum(pod.status.phase == "Running" for pod in pods.values())
    state = "Running" if run_state.is_running(workload, run, pods) else "Placed"
    where = _name_nodes(seats)
    summary = f"{running} of {format_count(run.pods, 'pod')} running on {where}" if running else f"placed on {where}"
    if unplaced is not None:
        begun = f"{running} of {format_count(run.pods, 'pod')} running" if running else "not started"
        summary = f"{begun}. {_describe_unplaced(workload, unplaced, where)}"
    elif not problems:
        summary += "; no problems found"
    return _replace_fields(base, state=state, summary=summary, placed=found, problems=tuple(problems))


def _describe_unplaced(workload: Workload, unplaced: run_state.Unplaced, where: str) -> str:
    """What keeps its pods from their places; the scheduler may have read more about it than is known here."""
    said = workload.status.message
    if unplaced.reason == run_state.PODS_NOT_CREATED and said.startswith(unplaced.message.partition(";")[0]):
        return _sentence(said)
    return f"{_sentence(unplaced.message)} Reserved: {where}."


def _seats(view: View, run: Run, pods: Iterable[core.Pod]) -> Iterator[Seat]:
    by_seat = {run.seat_of(pod): pod for pod in pods if pod.metadata.deletionTimestamp is None}
    for number, seat in enumerate(run.seats):
        pod = by_seat.get(number)
        phase = "" if pod is None else pod.status.phase
        if number in run.done:
            phase = "Succeeded"
        yield _seat(view, seat, pod.metadata.name if pod else "", phase)


def _seat(view: View, seat: PlannedSeat, pod: str = "", phase: str = "") -> Seat:
    known = view.state.reader.cards(seat.node)
    cards = tuple(list_gpus(seat.gpus))
    gpus = tuple(known.uuids[card] for card in cards if card in known.uuids)
    gpus += tuple(known.slices[each][1] for each in seat.slices if each in known.slices)
    return Seat(seat.node, cards, gpus, pod, phase)


def _name_nodes(seats: Iterable[Seat]) -> str:
    """Names of the nodes; of many, the first few and how many more."""
    return list_names(list(dict.fromkeys(seat.node for seat in seats)), _NAMED) or "no node"


def _seat_problems(view: View, seats: Iterable[Seat]) -> Iterator[str]:
    cards: dict[str, list[int]] = {}
    for seat in seats:
        cards.setdefault(seat.node, []).extend(seat.cards)
    for name, mine in cards.items():
        fault = view.state.reader.find_fault(name)
        if fault is not None:
            yield f"node {name} is {fault.value}"
        sick = view.state.reader.unhealthy_gpus(name)
        hit = [card for card in mine if sick >> card & 1]
        if hit:
            many = "GPUs" if len(hit) > 1 else "GPU"
            verb = "are" if len(hit) > 1 else "is"
            yield f"{many} {', '.join(map(str, hit))} on node {name} {verb} unhealthy"


# --- pods ------------------------------------------------------------------------------------------------


def _pod(view: View, pod: core.Pod) -> Explanation:
    meta = pod.metadata
    base = Explanation(
        kind="Pod",
        namespace=meta.namespace,
        name=meta.name,
        state=pod.status.phase or "Pending",
        summary="",
        said=tuple(words_of(each for each in pod.status.conditions if each.type == "PodScheduled")),
        problems=view.config_problems(),
        warnings=view.warnings,
    )
    seat = view.state.seat_of(pod)
    # A pod of a workload may have no seat yet; its label names the workload.
    workload = view.state.find_workload(seat[0] if seat is not None else meta.labels.get(metadata_keys.UID_LABEL, ""))
    if workload is not None and workload.meta.namespace == meta.namespace:
        return _of_workload(view, pod, workload, base)
    owner = view.gangs.owner_of(pod.metadata.uid)
    if owner:
        return _member(view, pod, owner, base)
    if not is_gpu_pod(pod):
        where = f" (on {pod.spec.nodeName})" if pod.spec.nodeName else ""
        return _replace_fields(base, state="NotForKGWE", summary=f"requests no GPUs, so KGWE does not place it{where}")
    if pod.spec.nodeName:
        return _explain_bound(view, pod, base)
    return _explain_waiting(view, meta.uid, _replace_fields(base, state="Waiting"))


def _of_workload(view: View, pod: core.Pod, workload: Workload, base: Explanation) -> Explanation:
    """A pod of a workload: the explanation of the workload, and where this pod is."""
    whole = _workload(view, workload)
    here = f"on {pod.spec.nodeName}" if pod.spec.nodeName else "not bound yet"
    summary = f"{here}; belongs to GPUWorkload {workload.meta.key}: {whole.summary}"
    return _replace_fields(
        whole,
        kind=base.kind,
        namespace=base.namespace,
        name=base.name,
        state=base.state,
        summary=summary,
        said=base.said,
    )


def _explain_bound(view: View, pod: core.Pod, base: Explanation) -> Explanation:
    holding = view.fleet.holding(pod.metadata.uid)
    known = effective_seats.effective_cards(view.state, pod)
    seats = (Seat(pod.spec.nodeName, tuple(list_gpus(known)), pod=pod.metadata.name, phase=pod.status.phase),)
    unknown = () if known else ("GPU numbers unknown: the device plugin chose them",)
    problems = (*base.problems, *_seat_problems(view, seats))
    asks: tuple[str, ...] = ()
    try:
        asks = words.describe_ask(view.ask_of_pod(pod))
    except errors.Permanent as exc:
        # It runs, although KGWE would not place it.
        problems += (str(exc),)
    short = holding is not None and not view.fleet.is_fully_booked(pod.metadata.uid)
    if short:
        problems += (f"node {pod.spec.nodeName} does not exist, or has fewer GPUs than its pods hold",)
    summary = f"on {pod.spec.nodeName}, placed by {pod.spec.schedulerName or 'kube-scheduler'}"
    summary += "" if problems else "; no problems found"
    return _replace_fields(
        base, state="Placed", summary=summary, asked=asks, placed=Placed(seats, why=unknown), problems=problems
    )


# --- gangs -----------------------------------------------------------------------------------------------


def _member(view: View, pod: core.Pod, owner: str, base: Explanation) -> Explanation:
    base = _replace_fields(base, gang=gang_of(view, owner))
    group = view.gangs.group(owner)
    number = group.seats.get(pod.metadata.uid) if group is not None else None
    if pod.spec.nodeName:
        return _explain_bound(view, pod, base)
    if number is not None:
        place = view.state.ledger.reserved_seat(owner, number)
        node = place.node if place is not None else "its node"
        seats = (Seat(node, tuple(list_gpus(place.gpus)) if place else (), pod=pod.metadata.name),)
        gated = (
            "its scheduling gate is being removed"
            if placement_annotations.is_gated(pod)
            else "kube-scheduler binds it next"
        )
        problems = (*base.problems, *_seat_problems(view, seats))
        return _replace_fields(
            base,
            state="Placed",
            summary=f"seat {number} on {node}; {gated}",
            placed=Placed(seats),
            problems=problems,
        )
    return _explain_waiting(view, owner, _replace_fields(base, state="Waiting"))


def gang_of(view: View, owner: str) -> Gang | None:
    """The gang of that owner; None if there is none."""
    group = view.gangs.group(owner)
    if group is None:
        return None
    members = list(group.members.values())
    incomplete = dialects.describe_incomplete(group.key.title, members)
    waits = [pod.metadata.name for pod in group.unseated]
    return Gang(
        name=group.key.title,
        dialect=members[0][1].dialect if members else "",
        members=len(members),
        seated=len(members) - len(waits),
        missing=dialects.count_missing(members) if members else 0,
        problem=incomplete or group.problem,
        waits_for=tuple(waits[:_UNSEATED]),
    )


# --- waiting ---------------------------------------------------------------------------------------------


def _explain_waiting(view: View, owner: str, base: Explanation) -> Explanation:
    if owner in view.problems:
        problem = base.gang.problem if base.gang is not None else ""
        return _replace_fields(base, summary=f"waiting. {_sentence(problem or view.problems[owner])}")
    ask = view.asks.get(owner)
    if ask is None:
        return _replace_fields(base, summary="waiting. It has no pods to place yet.")
    base = _replace_fields(
        base, asked=describe_ask(view, ask), turn=turn(view, owner), cuts=cuts.lines(view.state.reader, ask)
    )
    found = view.check_allowed(ask) or pure.explain(view.fleet, ask, evictable=view.list_evictable())
    if isinstance(found, Refusal):
        turn_now = base.turn if found.possible else None
        return _replace_fields(
            base, summary=f"waiting. {_sentence(found.message)}", waiting=describe_refusal(found), turn=turn_now
        )
    if isinstance(found, Plan):
        return _fits(view, found, base)
    near = found.refusal.detail
    held = holders.list_holders(view, found.nearest, near.verdict if isinstance(near, Shortage) else None)
    waiting = msgspec.structs.replace(describe_why(found), holders=held, free_by=_estimate_room(view, ask, found))
    turn_now = None if waiting.hopeless else base.turn
    return _replace_fields(base, summary=f"waiting. {_sentence(found.binding)}", waiting=waiting, turn=turn_now)


def _estimate_room(view: View, ask: Ask, found: Why) -> str:
    """When enough nodes of the nearest place are expected to be empty; "": not known."""
    whole = planner.divide_ask(view.fleet.fitter, ask)
    roles = whole.gang.roles if whole.gang is not None else ()
    if len(roles) > 1 or found.best is None:
        return ""
    needed = 1 if found.best.level == NODE else found.best.short
    return holders.estimate_room(view, found.nearest, roles[0].request if roles else whole.request, needed)


def _sentence(text: str) -> str:
    return end_sentence(text[:1].upper() + text[1:])


def _fits(view: View, plan: Plan, base: Explanation) -> Explanation:
    """There is room for it now, and it still waits."""
    if (failed := _failed_attempt(base.said)) is not None:
        return _replace_fields(base, summary=f"waiting. {_sentence(failed.message)}")
    where = list_names(plan.nodes, _NAMED_HERE)
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
    return _replace_fields(base, summary=summary, would_go=describe_plan(view, plan), problems=(*base.problems, hint))


def _failed_attempt(said: Iterable[Word]) -> Word | None:
    """The last status, if an attempt failed for another reason than free capacity."""
    return next((word for word in said if word.status == "False" and word.reason in _FAILED_ATTEMPTS), None)


def describe_plan(view: View, plan: Plan) -> Placed:
    """A plan as a place."""
    seats = tuple(_seat(view, seat) for seat in plan.seats)
    domain = f"{plan.level}/{plan.domain}" if plan.level else ""
    rate = None if plan.gb_per_s in (None, float("inf")) else plan.gb_per_s
    return Placed(seats, domain, plan.score, dict(plan.parts), rate, tuple(plan.message.splitlines()))


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


def words_of(conditions: Iterable[Condition]) -> Iterator[Word]:
    """The conditions of an object that have a reason or message."""
    for each in (condition for condition in conditions if condition.reason or condition.message):
        yield Word(each.type, each.status, each.reason, each.message, each.lastTransitionTime or "")


def _replace_fields(told: Explanation, **changes: object) -> Explanation:
    return msgspec.structs.replace(told, **changes)
