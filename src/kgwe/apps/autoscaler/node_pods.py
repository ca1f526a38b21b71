"""The pods of each node, as scale-down sees them: which hold it, which may be moved, and in which order."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from kgwe import errors
from kgwe.apps.autoscaler import marks
from kgwe.cluster.workload.pdb import DisruptionBudgets
from kgwe.cluster.workload.unpinned import strip_placement, without_pin
from kgwe.kube.api import timestamp
from kgwe.kube.translate import podrequest
from kgwe.placement.fleet.node import Gpus, Request
from kgwe.placement.fleet.snapshot import Grant
from kgwe.scaling.removal import RunningPod

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kgwe.cluster.offline import View
    from kgwe.kube.api import core

_MIRROR: Final = "kubernetes.io/config.mirror"
#: Pods of lower rank are evicted first. Without the annotation a pod is in the middle.
_RANKS: Final = {"low": 0, "medium": 1, "high": 2}


@dataclass(frozen=True, slots=True)
class NodePods:
    """Pods that have not ended, by node."""

    by_node: dict[str, list[core.Pod]] = field(default_factory=dict)
    reserved: frozenset[str] = frozenset()
    """Nodes with a seat that is reserved for a pod to come."""

    def list_held(self, node: str) -> list[core.Pod]:
        """Return pods that keep a node from being empty, in the order of their eviction."""
        pods = [pod for pod in self.by_node.get(node, ()) if not is_daemon(pod)]
        return sorted(pods, key=lambda pod: (find_rank(pod), pod.spec.priority, pod.metadata.key))

    @property
    def busy(self) -> frozenset[str]:
        """Nodes on which pods other than those of DaemonSets run, or will run."""
        held = {node for node, pods in self.by_node.items() if any(not is_daemon(pod) for pod in pods)}
        return self.reserved | held


def read_node_pods(view: View) -> NodePods:
    """Return the pods of all nodes."""
    found: dict[str, list[core.Pod]] = {}
    for pod in view.state.pods.values():
        if pod.spec.nodeName:
            found.setdefault(pod.spec.nodeName, []).append(pod)
    pods = view.state.pods
    reserved = {
        node.name for node in view.fleet.snapshot.nodes if any(key not in pods for key in view.fleet.holders(node.name))
    }
    return NodePods(found, frozenset(reserved))


def is_daemon(pod: core.Pod) -> bool:
    """Whether the pod goes with its node: of a DaemonSet, or a static pod of the kubelet."""
    owner = pod.metadata.controller
    return _MIRROR in pod.metadata.annotations or (owner is not None and owner.kind in {"DaemonSet", "Node"})


def find_rank(pod: core.Pod) -> int:
    """Return the place of the pod in the order of eviction: low before medium before high."""
    return _RANKS.get(pod.metadata.annotations.get(marks.EVICTION_PRIORITY, "").lower(), 1)


def find_obstacle(pod: core.Pod, min_run_s: float, now_s: float) -> str:
    """Return why the pod must not be moved; empty: it may be."""
    said = pod.metadata.annotations
    for key, value in (
        (marks.DO_NOT_DISRUPT, "true"),
        (marks.KARPENTER_DO_NOT_DISRUPT, "true"),
        (marks.SAFE_TO_EVICT, "false"),
    ):
        if said.get(key, "").lower() == value:
            return f"annotation {key}: {value}"
    owner = pod.metadata.controller
    if owner is None:
        return "no controller would create it again"
    is_safe = said.get(marks.SAFE_TO_EVICT, "").lower() == "true"
    if owner.kind == "Job" and not said.get(marks.CHECKPOINT) and not is_safe:
        return f"a Job without annotation {marks.CHECKPOINT}"
    started = pod.status.startTime
    if started and now_s - timestamp.epoch_seconds(started) < min_run_s:
        return f"it has run for less than {min_run_s:g} s"
    return ""


def list_running(view: View, pods: NodePods, min_run_s: float, now_s: float) -> Iterator[RunningPod]:
    """List the pods of all nodes that placement knows, as the removal planner takes them."""
    budgets = DisruptionBudgets(view.state.budgets)
    index = view.fleet.snapshot.index
    for node, held in pods.by_node.items():
        if node not in index:
            continue
        for pod in held:
            yield _read_running(view, budgets, pod, min_run_s, now_s)


def _read_running(view: View, budgets: DisruptionBudgets, pod: core.Pod, min_run_s: float, now_s: float) -> RunningPod:
    uid, fleet = pod.metadata.uid, view.fleet
    grants = fleet.grants(uid)
    obstacle = find_obstacle(pod, min_run_s, now_s)
    try:
        request = _read_request(view, pod)
    except errors.Permanent:
        request, obstacle = Request(Gpus()), "its request cannot be read"
    return RunningPod(
        name=pod.metadata.key,
        request=request,
        grant=grants[0] if grants else Grant(fleet.snapshot.index[pod.spec.nodeName]),
        is_daemon=is_daemon(pod),
        # A pod that holds devices of several kinds has no single request.
        may_move=not obstacle and len(grants) == 1,
        gang=_find_gang(view, pod),
        budgets=tuple(budgets.budget_of(pod)),
    )


def _read_request(view: View, pod: core.Pod) -> Request:
    """Return what the pod asks for, as before it got a place; Permanent if that cannot be read.

    Pods of a GPUWorkload do not say all of it: the GPU model and the topology are in the spec of the workload. Its Job
    pins its pods to their nodes, and a pod that is created again may get another node.
    """
    seat = view.state.seat_of(pod) if view.state.run_of(pod) is not None else None
    known = view.census.find_request(seat[0]) if seat is not None else None
    if known is not None:
        return known
    bare = strip_placement(pod if seat is None else without_pin(pod))
    return podrequest.read_request(bare, pieces=view.fleet.shares_per_gpu(pod.spec.nodeName)).request


def _find_gang(view: View, pod: core.Pod) -> str:
    """Return the gang that the pod belongs to; empty: none."""
    run = view.state.run_of(pod)
    if run is not None:
        return run.meta.key if len(run.seats) > 1 else ""
    return view.gangs.owner_of(pod.metadata.uid)


def read_budgets(view: View) -> dict[str, int]:
    """Return how many pods each disruption budget allows to stop now."""
    return {
        key: budget.status.disruptionsAllowed if budget.status.observedGeneration >= budget.metadata.generation else 0
        for key, budget in view.state.budgets.items()
    }
