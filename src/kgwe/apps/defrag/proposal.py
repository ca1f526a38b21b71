"""The moves that make room for a waiting workload on the live cluster, with their cost and gain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from kgwe import errors
from kgwe.cluster.workload.pdb import DisruptionBudgets
from kgwe.kube.api import timestamp
from kgwe.kube.translate import podrequest
from kgwe.model.units.phrasing import format_count
from kgwe.placement.disruption.defrag import DefragPlan, Rules, Waiting, plan_defrag
from kgwe.placement.disruption.running import MILLI_S_PER_GPU_HOUR, Member, Running, grant_milli
from kgwe.placement.planning import planner
from kgwe.placement.refusal import Reason

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from kgwe.cluster.offline import View
    from kgwe.kube.api import core

#: annotation of a pod: "true" allows moving it to another node
ALLOW_MOVE: Final = "kgwe.nvidia.io/allow-move"
# Costs and gains are in GPU-hours; the planner compares integers of millionths.
_PER_GPU_HOUR: Final = 1_000_000
# Maximum number of waiting workloads to try, in queue order.
_MOST_TRIED: Final = 20
_MILLI: Final = 1000
_INVALID: Final = "Invalid"

_MESSAGES: Final = {
    Reason.STARTS_ANYWAY: "it fits without moves and waits for another reason (see kgwe explain)",
    Reason.NOT_NOW: "moves are not allowed at this time of the day",
    Reason.NOTHING_MOVABLE: f'no running pod may be moved: annotate pods with {ALLOW_MOVE}: "true"',
    Reason.NO_ARRANGEMENT: "moving the pods that consent does not make enough room",
    Reason.TOO_MANY: "it takes more moves than --max-moves allows",
    Reason.NOT_WORTH_IT: "the moves lose more GPU-hours than the earlier start gains",
}


@dataclass(frozen=True, slots=True)
class Terms:
    """The user's limits and assumptions."""

    #: how much earlier the waiting workload starts because of the moves
    sooner_s: float = 3600.0
    #: minimum run time of a pod before it may be moved
    min_run_s: float = 300.0
    #: time a moved pod needs until it runs again
    restart_s: float = 60.0
    max_moves: int | None = None
    #: also consider pods without consent; such a plan cannot be executed
    everyone: bool = False


class Move(msgspec.Struct, frozen=True, rename="camel"):
    """One pod that is stopped and restarted on another node."""

    namespace: str
    pod: str
    uid: str
    gpus: float
    source: str
    #: a node with room in the plan; the scheduler may choose another one
    target: str
    lost_gpu_hours: float
    restart_gpu_hours: float
    consents: bool


class Proposal(msgspec.Struct, frozen=True, rename="camel"):
    """All moves for one waiting workload."""

    waiting: str
    gpus: float
    nodes: tuple[str, ...]
    moves: tuple[Move, ...]
    lost_gpu_hours: float
    restart_gpu_hours: float
    gain_gpu_hours: float
    #: True if no plan moves fewer pods
    proven: bool
    #: pods of the waiting workload, as namespace/name; empty if they do not exist yet
    waiting_pods: tuple[str, ...] = ()
    #: the waiting GPUWorkload, as group/namespace/name
    workload: str = ""

    @property
    def cost_gpu_hours(self) -> float:
        return self.lost_gpu_hours + self.restart_gpu_hours


class NoMoves(msgspec.Struct, frozen=True, rename="camel"):
    """The reason why no pod is moved."""

    waiting: str
    reason: str
    message: str
    evictions: int = 0
    cost_gpu_hours: float = 0.0
    gain_gpu_hours: float = 0.0


def propose(view: View, name: str, terms: Terms) -> Proposal | NoMoves:
    """Return the moves for the named workload, or for the first in the queue that moves can help."""
    queued = view.list_in_order()
    owners = [owner for owner in queued if not name or _is_named(view, owner, name)]
    if not owners:
        return _refuse_stuck(view, name, queued)
    budgets = DisruptionBudgets(view.state.budgets)
    running = list(_find_movable(view, budgets, terms))
    refused: list[NoMoves] = []
    for owner in owners[:_MOST_TRIED]:
        answer = _propose_one(view, owner, running, budgets, terms)
        if isinstance(answer, Proposal):
            return answer
        refused.append(answer)
    # Skip workloads that start without moves.
    return next((each for each in refused if each.reason != Reason.STARTS_ANYWAY), refused[0])


def _refuse_stuck(view: View, name: str, queued: Sequence[str]) -> NoMoves:
    """Refuse the workload that never starts as it is; NotFound if the named one does not wait, or none does."""
    stuck = {owner: (_INVALID, problem) for owner, problem in view.problems.items()}
    for owner, ask in view.asks.items():
        if (refusal := view.refuse_hopeless(ask)) is not None:
            stuck[owner] = (str(refusal.code), refusal.message)
    for owner, (reason, message) in stuck.items():
        if not name or _is_named(view, owner, name):
            text = f"it will not start by waiting, and moves cannot help. {message}"
            return NoMoves(view.state.owners.title(owner), reason, text)
    if not name:
        raise errors.NotFound("no workload is waiting for GPUs")
    waits = ", ".join(view.state.owners.title(owner) for owner in queued) or "nothing"
    raise errors.NotFound(f"{name} is not waiting for GPUs; waiting: {waits}")


def _is_named(view: View, owner: str, name: str) -> bool:
    title = view.state.owners.title(owner).partition(" ")[2]
    names = {title, title.rpartition("/")[2]}
    if (ask := view.asks.get(owner)) is not None:
        names |= {ask.name, f"{ask.namespace}/{ask.name}"}
    return name in names


# --- movable pods ---------------------------------------------------------------------------------------


def has_consent(pod: core.Pod) -> bool:
    return pod.metadata.annotations.get(ALLOW_MOVE) == "true"


def is_recreated(pod: core.Pod) -> bool:
    """Return whether a controller recreates the pod on any node."""
    controller = pod.metadata.controller
    return controller is not None and controller.kind not in ("DaemonSet", "Node")


def _find_movable(view: View, budgets: DisruptionBudgets, terms: Terms) -> Iterator[Running]:
    """Return the running pods that may be moved: no gang, with a controller, and with consent."""
    for uid, pod in view.state.pods.items():
        is_leaving = pod.metadata.deletionTimestamp is not None
        if not pod.spec.nodeName or is_leaving or not is_recreated(pod) or not (terms.everyone or has_consent(pod)):
            continue
        if not view.state.is_external(pod) or view.gangs.seat(uid) is not None:
            continue  # workloads and gangs keep their seats
        grant = view.census.grant_of(uid)
        started_s = timestamp.epoch_seconds(pod.status.startTime) if pod.status.startTime else view.now_s
        if grant is None or not grant.gpu_mask or view.now_s - started_s < terms.min_run_s:
            continue
        try:
            request = podrequest.read_request(pod, pieces=view.fleet.shares_per_gpu(pod.spec.nodeName)).request
        except errors.Permanent:
            continue
        budget = budgets.budget_of_all([pod])
        if budget is not None:
            members = (Member(uid, request, grant),)
            yield Running(
                uid, members, pod.spec.priority, started_at_s=started_s, restart_s=terms.restart_s, budget=budget
            )


# --- the plan -------------------------------------------------------------------------------------------


def _propose_one(
    view: View, owner: str, running: Iterable[Running], budgets: DisruptionBudgets, terms: Terms
) -> Proposal | NoMoves:
    title = view.state.owners.title(owner)
    try:
        ask = planner.divide_ask(view.fleet.fitter, view.asks[owner])
        is_gang = ask.gang is not None or ask.pods > 1
        wanted = planner.gang_request(ask) if is_gang else ask.request
    except errors.Permanent as exc:
        return NoMoves(title, _INVALID, str(exc))
    rules = Rules(_PER_GPU_HOUR, budgets.left, terms.min_run_s, max_evictions=terms.max_moves)
    waiting = [Waiting(title, wanted, terms.sooner_s)]
    found = plan_defrag(view.fleet.fitter, view.fleet.tree, waiting, running, rules=rules, now_s=view.now_s)
    if isinstance(found, DefragPlan):
        return _describe(view, owner, found, terms)
    if found is None:
        return NoMoves(title, Reason.NO_ARRANGEMENT, _MESSAGES[Reason.NO_ARRANGEMENT])
    return NoMoves(
        title,
        str(found.code),
        _MESSAGES[found.code],
        found.counts.get("evictions", 0),
        _round_hours(found.counts.get("cost_micro", 0) / _PER_GPU_HOUR),
        _round_hours(found.counts.get("benefit_micro", 0) / _PER_GPU_HOUR),
    )


def _describe(view: View, owner: str, found: DefragPlan, terms: Terms) -> Proposal:
    snapshot = view.fleet.snapshot
    moves = []
    for move in found.moves:
        pod = view.state.pods[move.member]
        milli = grant_milli(move.grant, snapshot)
        started_s = timestamp.epoch_seconds(pod.status.startTime) if pod.status.startTime else view.now_s
        moves.append(
            Move(
                pod.metadata.namespace,
                pod.metadata.name,
                pod.metadata.uid,
                milli / _MILLI,
                move.source,
                move.node,
                _round_hours(milli * max(0.0, view.now_s - started_s) / MILLI_S_PER_GPU_HOUR),
                _round_hours(milli * terms.restart_s / MILLI_S_PER_GPU_HOUR),
                has_consent(pod),
            )
        )
    workload = view.state.find_workload(owner)
    return Proposal(
        waiting=found.waiting,
        gpus=sum(grant_milli(grant, snapshot) for grant in found.placement) / _MILLI,
        nodes=tuple(dict.fromkeys(snapshot.nodes[grant.node].name for grant in found.placement)),
        moves=tuple(moves),
        lost_gpu_hours=_round_hours(found.cost.lost / MILLI_S_PER_GPU_HOUR),
        restart_gpu_hours=_round_hours(found.cost.restart / MILLI_S_PER_GPU_HOUR),
        gain_gpu_hours=_round_hours(found.benefit_micro / _PER_GPU_HOUR),
        proven=found.proven,
        waiting_pods=tuple(pod.metadata.key for pod in view.state.owners.pods(owner)),
        workload="" if workload is None else f"{workload.kind.resource.group}/{workload.meta.key}",
    )


def _round_hours(hours: float) -> float:
    return round(hours, 4)


# --- text -----------------------------------------------------------------------------------------------


def to_text(answer: Proposal | NoMoves) -> str:
    if isinstance(answer, NoMoves):
        figures = (
            f" ({format_count(answer.evictions, 'move')} would lose {answer.cost_gpu_hours:g} GPU-hours and gain"
            f" {answer.gain_gpu_hours:g})"
            if answer.evictions
            else ""
        )
        return f"{answer.waiting}: no moves. {answer.reason}: {answer.message}{figures}\n"
    width = max(len(f"{move.namespace}/{move.pod}") for move in answer.moves)
    moves = format_count(len(answer.moves), "move")
    lines = [f"{answer.waiting} ({format_count(answer.gpus, 'GPU')}) can start after {moves}:", ""]
    for move in answer.moves:
        note = "" if move.consents else f'   does not consent: needs {ALLOW_MOVE}: "true"'
        pod, gpus = f"{move.namespace}/{move.pod}", format_count(move.gpus, "GPU")
        lines.append(
            f"  {pod:<{width}}  {gpus}  {move.source} -> {move.target}  loses {move.lost_gpu_hours:g} GPU-hours{note}"
        )
    fewest = "no plan moves fewer pods" if answer.proven else "fewer moves may be possible"
    lines += [
        "",
        f"Lost: {answer.lost_gpu_hours:g} GPU-hours of work, {answer.restart_gpu_hours:g} GPU-hours of restarts",
        f"Gain: {answer.gain_gpu_hours:g} GPU-hours ({answer.waiting} starts sooner on {', '.join(answer.nodes)})",
        f"Note: {fewest}",
    ]
    return "\n".join(lines) + "\n"
