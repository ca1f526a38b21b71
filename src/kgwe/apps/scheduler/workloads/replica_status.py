"""Builds the status of an inference workload from those of its replicas."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from kgwe.apps.scheduler.workloads import workload_status as phases
from kgwe.cluster.workload import runs
from kgwe.cluster.workload.conditions import DEGRADED, FAILED, RUNNING, SCHEDULED, UPDATING
from kgwe.cluster.workload.workload import NO_DETAILS, Placed, Replicas, Status
from kgwe.kube.api.kgwe.gpuworkload_status import Phase
from kgwe.model.units.phrasing import format_count
from kgwe.placement.disruption.rollout import Mode

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kgwe.cluster.registry.replica_groups import ReplicaGroup, ReplicaView
    from kgwe.cluster.workload.workload import Workload

SCALED_TO_ZERO: Final = "ScaledToZero"
# Nodes and UUIDs that a status lists.
_MOST_LISTED: Final = 512
_UPDATES: Final = {
    Mode.SURGE: "a replica of the new spec starts first, then one of the old spec stops",
    Mode.ONE_BY_ONE: "there is no room for one more replica, so each one of the old spec stops before its successor"
    " starts",
    Mode.BLOCKED: "the new spec fits no node, so those of the old spec stay",
}


def is_complete(views: Iterable[ReplicaView]) -> bool:
    """Whether every replica with a place has said how it is: after a restart each is looked at first."""
    return all(view.run is None or bool(view.workload.status.phase) for view in views)


def build_status(group: ReplicaGroup, views: Sequence[ReplicaView], now: str) -> Status:
    """The status of the object."""
    parent = group.parent
    placed = [view for view in views if view.run is not None and view.run.meta.deletionTimestamp is None]
    counts = Replicas(
        len(placed),
        sum(view.is_ready for view in placed),
        sum(view.run is not None and not runs.is_outdated(view.run, view.workload) for view in placed),
        parent.selector,
    )
    if parent.suspend:
        return replace(phases.suspended_status(parent, now), replicas=counts)
    verdicts, message = _judge(group, views, counts)
    status = Status(phase=_choose_phase(parent, views, counts), message=message)
    if placed:
        status = _describe_places(parent, status, placed, now)
    status = phases.with_conditions(parent, status, parent.meta.generation, now, verdicts)
    told = [view.workload.status for view in views if view.is_wanted]
    effective = next((each.effective for each in told if each.effective is not None), None)
    each = next((each.gpus for each in told if each.gpus), parent.gpus)
    gpus = each if parent.desired == 1 else f"{parent.desired}×{each}"
    return replace(status, replicas=counts, gpus=gpus, effective=effective)


def _choose_phase(parent: Workload, views: Sequence[ReplicaView], counts: Replicas) -> Phase:
    said = {view.workload.status.phase for view in views if view.is_wanted}
    if counts.ready or Phase.RUNNING in said:
        return Phase.RUNNING
    if counts.placed:
        return Phase.SCHEDULED
    if said == {Phase.FAILED} and parent.desired:
        return Phase.FAILED
    return Phase.SCHEDULING if Phase.SCHEDULING in said else Phase.PENDING


def _judge(
    group: ReplicaGroup, views: Sequence[ReplicaView], counts: Replicas
) -> tuple[dict[str, phases.Verdict], str]:
    """Conditions of the workload, and its message."""
    desired = group.parent.desired
    if not desired:
        message = "scaled to 0 replicas; it holds no GPUs"
        return {SCHEDULED: (False, SCALED_TO_ZERO, message)}, message
    ready = f"{counts.ready} of {format_count(desired, 'replica')} ready"
    waiting = next((view for view in views if view.is_wanted and view.run is None), None)
    verdicts: dict[str, phases.Verdict] = {SCHEDULED: (True, "Placed", f"all {desired} replicas have a place")}
    message = ready
    if waiting is not None and counts.placed < desired:
        reason, words = _find_cause(waiting)
        message = f"{ready}; replica {waiting.workload.replica} waits: {words}" if words else ready
        verdicts[SCHEDULED] = (False, reason, message)
        if waiting.workload.status.phase == Phase.FAILED:
            verdicts[FAILED] = (True, reason, message)
    if counts.ready:
        verdicts[RUNNING] = (True, "PodRunning", ready)
    for view in views:
        trouble = next((each for each in view.workload.status.conditions if each.type == DEGRADED), None)
        if trouble is not None and view.run is not None:
            verdicts[DEGRADED] = (True, trouble.reason, f"replica {view.workload.replica}: {trouble.message}")
            break
    if (mode := group.step.mode) is not Mode.STEADY:
        old = counts.placed - counts.updated
        words = f"{format_count(old, 'replica')} of an earlier spec; {_UPDATES[mode]}"
        verdicts[UPDATING] = (True, str(mode), words)
        message = f"{message}; updating: {words}"
    return verdicts, message


def _find_cause(view: ReplicaView) -> tuple[str, str]:
    """Why a replica has no place: reason and message of its own status."""
    status = view.workload.status
    told = next((each for each in status.conditions if each.type == SCHEDULED and each.status == "False"), None)
    return (told.reason or "Waiting", told.message) if told is not None else ("Waiting", status.message)


def _describe_places(parent: Workload, status: Status, placed: Sequence[ReplicaView], now: str) -> Status:
    """The places of all replicas; details of the decision are those of the first."""
    told = [view.workload.status for view in placed if view.workload.status.placed is not None]
    known = [each.placed for each in told if each.placed is not None]
    rows, left = [], _MOST_LISTED
    for node, pods, gpus in (row for each in known for row in each.placements):
        rows.append((node, pods, gpus[:left]))
        left -= len(rows[-1][2])
    nodes = list(dict.fromkeys(row[0] for row in rows))
    starts = [each.start_time for each in told if each.start_time]
    old = parent.status
    return replace(
        status,
        node=nodes[0] if nodes else "",
        nodes=f"{nodes[0]} +{len(nodes) - 1}" if len(nodes) > 1 else "".join(nodes),
        job_name=placed[0].run.meta.name if placed[0].run is not None else "",
        last_schedule_time=max((each.last_schedule_time or "" for each in told), default="") or now,
        start_time=old.start_time or min(starts, default=None),
        placed=Placed(
            tuple(rows[:_MOST_LISTED]),
            known[0].details if known else NO_DETAILS,
            tuple(row for each in known for row in each.slices)[:_MOST_LISTED],
            node_count=len(nodes),
            gpu_count=sum(each.gpu_count for each in known),
        ),
    )
