"""Whether a run is running, and if not, what keeps its pods from their places."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kgwe.cluster import names
from kgwe.cluster.state import prerequisites, refusal_text
from kgwe.cluster.workload import placement_annotations
from kgwe.kube.api.kgwe.gpuworkload_status import Phase
from kgwe.model.units.phrasing import format_count, list_names

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kgwe.cluster.state.cluster_state import ClusterState
    from kgwe.cluster.workload.runs import Run
    from kgwe.cluster.workload.workload import Workload
    from kgwe.kube.api import core

#: kube-scheduler refused the planned node
NODE_REFUSED: Final = "NodeRefused"
#: the planned node or GPUs of it no longer exist
PLACE_LOST: Final = "PlaceLost"
#: the kubelet of the planned node rejects its pods
POD_REJECTED: Final = "PodRejected"
#: a user scaled the Job or Deployment to fewer pods than it has seats
SCALED_DOWN: Final = "ScaledDown"
#: a user scaled it up again, and the room that it gave up is in use
NO_ROOM_TO_SCALE: Final = "NoRoomToScale"
NOT_SCHEDULED: Final = "NotScheduled"
PODS_NOT_CREATED: Final = "PodsNotCreated"
#: placements failed so often that a change of the spec or the nodes is awaited
ATTEMPTS_EXHAUSTED: Final = "AttemptsExhausted"


@dataclass(frozen=True)
class Unplaced:
    """Not all pods of a run have found their places."""

    reason: str
    message: str
    #: nodes that the next plan should exclude
    avoid: frozenset[str] = frozenset()
    #: waiting does not help: the status shows it at once
    is_certain: bool = False
    #: the PersistentVolumeClaim that does not exist
    volume: str = ""

    @property
    def is_nodes_fault(self) -> bool:
        """Whether another node helps; otherwise something else has to be fixed."""
        return self.reason in (NODE_REFUSED, PLACE_LOST, POD_REJECTED)


def has_started(workload: Workload, run: Run) -> bool:
    """Whether all its pods have been running: from then on recovery deals with lost pods."""
    status = workload.status
    return bool(status.start_time) and status.job_name == run.meta.name and status.phase != Phase.PENDING


def is_running(workload: Workload, run: Run, pods: Mapping[str, core.Pod]) -> bool:
    """Inference runs with its first pod; other workloads once all pods run, and then while one does."""
    running = sum(pod.status.phase == "Running" for pod in pods.values())
    if not running:
        return False
    return run.serves or running + len(run.done) >= run.pods or has_started(workload, run)


def is_bound(pods: Mapping[str, core.Pod]) -> bool:
    return any(pod.spec.nodeName for pod in pods.values())


def find_unplaced(state: ClusterState, workload: Workload, run: Run, pods: Mapping[str, core.Pod]) -> Unplaced | None:
    """What keeps pods of the run from their places; None if nothing does, or recovery deals with it."""
    if is_bound(pods) and (run.serves or has_started(workload, run)):
        return None
    live = [pod for pod in pods.values() if pod.metadata.deletionTimestamp is None]
    waiting = [pod for pod in live if not pod.spec.nodeName]
    if not run.seats:
        return Unplaced(
            PLACE_LOST, f"annotation {placement_annotations.PLAN_ANNOTATION} missing or invalid; re-planning"
        )
    if lost := _find_lost_nodes(state, workload, run):
        # The next plan may use these nodes again as soon as they have room.
        return Unplaced(
            PLACE_LOST,
            f"planned nodes no longer usable: {list_names(sorted(lost))} (deleted, cordoned, or too few free GPUs)",
        )
    for pod in waiting:
        if (said := scheduler_refusal(pod)) is not None:
            number = run.seat_of(pod)
            node = run.seats[number].node if 0 <= number < len(run.seats) else ""
            return describe_refusal(said.message, node, run.meta.namespace, state.reader.offers)
    if waiting:
        return _describe_unscheduled(state, workload, waiting)
    if run.made >= run.pods or len(pods) + len(run.done) >= run.pods:
        return None  # its pods exist or existed; the watch of pods is a little behind
    if missing := prerequisites.find_missing(state, workload):
        return Unplaced(PODS_NOT_CREATED, missing.message, is_certain=True)
    kind, name = run.resource.kind, run.meta.name
    advice = f"`kubectl describe {run.resource.full_name} {name} -n {run.meta.namespace}` shows what prevents it"
    return Unplaced(PODS_NOT_CREATED, f"{kind} created {run.made} of {format_count(run.pods, 'pod')}; {advice}")


def _describe_unscheduled(state: ClusterState, workload: Workload, waiting: Sequence[core.Pod]) -> Unplaced:
    """No scheduler has said anything about pods of the run."""
    if any(placement_annotations.is_gated(pod) for pod in waiting):
        return Unplaced(NOT_SCHEDULED, "its pods are gated until they are assigned")
    if missing := prerequisites.find_missing(state, workload):
        return Unplaced(NOT_SCHEDULED, missing.message, is_certain=True)
    pod = waiting[0]
    if template := prerequisites.find_unused_template(pod):
        text = f"no ResourceClaim was created from ResourceClaimTemplate {template}"
        check = f"check that it exists in namespace {pod.metadata.namespace}"
        return Unplaced(NOT_SCHEDULED, f"{text}; {check}")
    name = pod.spec.schedulerName or names.DEFAULT_SCHEDULER
    if name not in {names.DEFAULT_SCHEDULER, state.scheduler_name}:
        text = f"no scheduler named {name} has picked up its pod"
        fix = "Remove schedulerName from the pod template, or start that scheduler"
        return Unplaced(NOT_SCHEDULED, f"{text}. {fix}", is_certain=True)
    scheduler = "kube-scheduler" if name == names.DEFAULT_SCHEDULER else f"scheduler {name}"
    return Unplaced(NOT_SCHEDULED, f"{scheduler} has not picked up its pod; check that {scheduler} runs")


def describe_creation_error(run: Run, error: str) -> Unplaced:
    """The API server refuses the pods of the run."""
    created = f"{run.resource.kind} created {run.made} of {format_count(run.pods, 'pod')}"
    advice = refusal_text.advise_on_creation(error)
    return Unplaced(PODS_NOT_CREATED, f"{created}: {error}" + (f". {advice}" if advice else ""), is_certain=True)


def describe_refusal(message: str, node: str, namespace: str, is_offered: Callable[[str], bool]) -> Unplaced:
    """What kube-scheduler's message about a pod that it cannot place on its planned node means.

    `is_offered`: whether a node offers an extended resource.
    """
    if claim := refusal_text.find_missing_volume(message):
        problem = f"PersistentVolumeClaim {claim} does not exist in namespace {namespace}"
        fix = "Create it, or change the volumes of the pod"
        return Unplaced(NOT_SCHEDULED, f"{problem}. {fix}", is_certain=True, volume=claim)
    if resource := refusal_text.find_unoffered_resource(message, is_offered):
        problem = f"no node offers {resource}, which the pod requests"
        fix = "Remove the request, or install the device plugin that offers it"
        return Unplaced(NOT_SCHEDULED, f"{problem}. {fix}", is_certain=True)
    text = refusal_text.extract_cause(message)
    rejected = f"kube-scheduler rejected node {node}: {text}" if node else text
    return Unplaced(NODE_REFUSED, rejected, frozenset({node} if node else ()))


def describe_scale(run: Run, lacking: int) -> tuple[str, str] | None:
    """Reason and message when a run has fewer pods than were planned because a user scaled it."""
    if run.is_scaled_down:
        return SCALED_DOWN, f"{run.resource.kind} is scaled to {run.at_once} of {format_count(len(run.seats), 'pod')}"
    if lacking:
        return NO_ROOM_TO_SCALE, f"scaled up, but no room yet for {lacking} of {format_count(len(run.seats), 'pod')}"
    return None


def _find_lost_nodes(state: ClusterState, workload: Workload, run: Run) -> frozenset[str]:
    """Nodes of seats that no pod has, and that can no longer take one."""
    uid = workload.meta.uid
    fleet, ledger = state.fleet, state.ledger
    seats = {number: seat.node for number, seat in state.run_registry.wanted_seats(run).items()}
    empty = {number: node for number, node in seats.items() if not ledger.pod_in(uid, number)}
    lost = {empty[number] for number in ledger.find_short_seats(uid) if number in empty}
    # Seats that did not fit when they were restored are not reserved.
    lost |= {node for number, node in empty.items() if ledger.reserved_seat(uid, number) is None}
    for name in empty.values():
        node = fleet.node(name)
        if node is None or not node.ready:
            lost.add(name)
    return frozenset(lost)


def scheduler_refusal(pod: core.Pod) -> core.Condition | None:
    """kube-scheduler's condition that the pod is unschedulable."""
    return next((c for c in pod.status.conditions if c.type == "PodScheduled" and c.reason == "Unschedulable"), None)
