"""What the controller knows of the cluster, fed by the informers and by nothing else.

Every replica keeps this up to date, leader or not, so that a new leader knows the cluster at once. Who is
interested hears two things: that a workload should be looked at (`on_work`), and that room may have come
free (`on_room`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from kgwe import errors
from kgwe.apps.scheduler import jobs
from kgwe.apps.scheduler.workload import Workload, from_kgwe, from_warp
from kgwe.kube import translate
from kgwe.placement.ledger import Ledger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kgwe.kube.api import core
    from kgwe.kube.api.gpunode import GPUNode
    from kgwe.kube.api.gpuworkload import GPUWorkload
    from kgwe.kube.api.warp import WarpGPUWorkload
    from kgwe.kube.informer import Change
    from kgwe.model.amounts import Amounts

log = structlog.get_logger(__name__)

Key = tuple[str, str]
"""(API group, namespace/name) of a workload."""


def _ignore(*_: object) -> None:
    pass


class ClusterState:
    """Workloads, their Jobs and pods, and the ledger of the nodes."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.workloads: dict[Key, Workload] = {}
        self.keys: dict[str, Key] = {}  # workload uid -> key
        self.jobs: dict[str, core.Job] = {}  # workload uid -> its Job
        self._claims: dict[str, dict[str, core.Job]] = {}  # workload uid -> Jobs labelled as its own, true or not
        self._owners: dict[str, str] = {}  # Job uid -> uid of the workload that owns it
        self._pods: dict[str, dict[str, core.Pod]] = {}  # Job uid -> pod key -> pod, not ended; any Job
        self._nodes: dict[str, core.Node] = {}
        self._fabric: dict[str, float | None] = {}  # node -> GB/s of its NVLink fabric
        self.deaf()

    def tell(
        self, *, on_work: Callable[[Key], None], on_room: Callable[[], None], on_gone: Callable[[str], None]
    ) -> None:
        """Call these from now on; `on_gone` hears the uid of a workload that no longer exists."""
        self.on_work, self.on_room, self.on_gone = on_work, on_room, on_gone

    def deaf(self) -> None:
        """Tell nobody (a standby)."""
        self.tell(on_work=_ignore, on_room=_ignore, on_gone=_ignore)

    # --- workloads --------------------------------------------------------------------------------------

    def on_warp(self, change: Change[WarpGPUWorkload]) -> None:
        if change.new is not None:
            self._set_workload(from_warp(change.new))
        elif change.old is not None:
            self._remove_workload(change.old.metadata.uid)

    def on_kgwe(self, change: Change[GPUWorkload]) -> None:
        if change.new is not None:
            self._set_workload(from_kgwe(change.new))
        elif change.old is not None:
            self._remove_workload(change.old.metadata.uid)

    def _set_workload(self, workload: Workload) -> None:
        is_new = workload.meta.uid not in self.keys
        self.workloads[workload.key] = workload
        self.keys[workload.meta.uid] = workload.key
        if is_new and workload.meta.uid in self._claims:
            self._adopt(workload.meta.uid)
        self.on_work(workload.key)

    def _remove_workload(self, uid: str) -> None:
        del self.workloads[self.keys.pop(uid)]
        self._adopt(uid)  # nobody's Job any more
        self.on_gone(uid)

    def active(self) -> Iterator[tuple[str, str]]:
        """(namespace, workload type) of every workload that has not ended."""
        for workload in self.workloads.values():
            if not workload.finished:
                yield workload.meta.namespace, workload.workload_type

    # --- jobs and pods ----------------------------------------------------------------------------------

    def on_job(self, change: Change[core.Job]) -> None:
        job = change.new or change.old
        uid = job.metadata.labels.get(jobs.UID_LABEL, "") if job else ""
        if job is None or not uid:
            return
        claims = self._claims.setdefault(uid, {})
        if change.new is None:
            claims.pop(change.key, None)
        else:
            claims[change.key] = change.new
        if not claims:
            del self._claims[uid]
        self._adopt(uid)
        self._touch(uid)

    def _adopt(self, uid: str) -> None:
        """Of the Jobs that claim to be the workload's, take the one that is, and count what it stands for."""
        workload = self.workloads.get(self.keys[uid]) if uid in self.keys else None
        claims = self._claims.get(uid, {}).values()
        job = next((each for each in claims if workload and jobs.belongs_to(each, workload)), None)
        before = self.jobs.pop(uid, None)
        if job is not None:
            self.jobs[uid] = job
        if before is not None and (job is None or before.metadata.uid != job.metadata.uid):
            self._owners.pop(before.metadata.uid, None)
            self._rebook(before.metadata.uid)
            self._release(uid)
        if job is None:
            return
        if job.metadata.uid not in self._owners:
            self._owners[job.metadata.uid] = uid
            self._rebook(job.metadata.uid)
        node = job.metadata.annotations.get(jobs.NODE_ANNOTATION, "")
        held = {} if jobs.outcome(job) is not None else self._held_by(job)
        if held and node:
            self.ledger.reserve(uid, node, held)
        else:
            self._release(uid)

    def pods_of(self, job: core.Job) -> dict[str, core.Pod]:
        """Pods the Job made that have not ended, by key."""
        return self._pods.get(job.metadata.uid, {})

    def on_pod(self, change: Change[core.Pod]) -> None:
        pod = change.new or change.old
        if pod is None:
            return
        controller = pod.metadata.controller
        job_uid = controller.uid if controller is not None and controller.kind == "Job" else ""
        ended = change.new is None or translate.is_terminal(change.new)
        if job_uid:
            mine = self._pods.setdefault(job_uid, {})
            if ended:
                mine.pop(change.key, None)
            else:
                mine[change.key] = pod
            if not mine:
                del self._pods[job_uid]
        if ended or not pod.spec.nodeName:
            if self.ledger.remove_pod(change.key):
                self.on_room()
        else:
            self._book(change.key, pod)
        uid = self._owners.get(job_uid)
        if uid and _interesting(change.old, None if ended else change.new):
            self._touch(uid)

    def _rebook(self, job_uid: str) -> None:
        """The Job became ours, or ceased to be: its pods count for its workload, or for themselves."""
        for key, pod in self._pods.get(job_uid, {}).items():
            if pod.spec.nodeName:
                self._book(key, pod)

    def _book(self, key: str, pod: core.Pod) -> None:
        controller = pod.metadata.controller
        owner = self._owners.get(controller.uid, "") if controller is not None else ""
        try:
            self.ledger.set_pod(key, owner, pod.spec.nodeName, translate.requested(pod.spec))
        except errors.Permanent as exc:
            # Never seen from a real API server. Guessing its size would be worse than saying so.
            log.warning("pod_request_unreadable", pod=key, error=str(exc))

    @staticmethod
    def _held_by(job: core.Job) -> Amounts:
        try:
            return jobs.held_by(job)
        except errors.Permanent as exc:
            log.warning("job_request_unreadable", job=job.metadata.key, error=str(exc))
            return {}

    def _release(self, uid: str) -> None:
        if self.ledger.release(uid):
            self.on_room()

    def _touch(self, uid: str) -> None:
        key = self.keys.get(uid)
        if key is not None:
            self.on_work(key)

    # --- nodes ------------------------------------------------------------------------------------------

    def on_node(self, change: Change[core.Node]) -> None:
        if change.new is None:
            self._nodes.pop(change.key, None)
            self.ledger.remove_node(change.key)
        else:
            self._nodes[change.key] = change.new
            self._set_facts(change.key)

    def on_gpunode(self, change: Change[GPUNode]) -> None:
        if change.new is None:
            self._fabric.pop(change.key, None)
        else:
            self._fabric[change.key] = translate.fabric_gbps(change.new)
        self._set_facts(change.key)

    def _set_facts(self, name: str) -> None:
        node = self._nodes.get(name)
        if node is None:
            return
        try:
            facts = translate.node_facts(node, fabric_gbps=self._fabric.get(name))
        except errors.Permanent as exc:
            log.warning("node_unreadable", node=name, error=str(exc))
            self.ledger.remove_node(name)
            return
        if self.ledger.set_node(facts):
            self.on_room()


def _interesting(old: core.Pod | None, new: core.Pod | None) -> bool:
    """Whether a change of a pod can change its workload's status."""
    if old is None or new is None:
        return True
    return (
        old.spec.nodeName != new.spec.nodeName
        or old.status.phase != new.status.phase
        or _unschedulable(old) != _unschedulable(new)
    )


def _unschedulable(pod: core.Pod) -> bool:
    return any(c.type == "PodScheduled" and c.reason == "Unschedulable" for c in pod.status.conditions)
