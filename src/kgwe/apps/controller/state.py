"""What the controller knows of the cluster, fed by the informers and by nothing else.

Every replica keeps this up to date, leader or not, so that a new leader knows the cluster at once. Who is
interested hears two things: that a workload should be looked at (`on_work`), and that room may have come
free (`on_room`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from kgwe import errors
from kgwe.apps.controller import jobs
from kgwe.apps.controller.workload import Workload, from_kgwe, from_warp
from kgwe.kube import translate
from kgwe.placement.ledger import Ledger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kgwe.kube.api import core
    from kgwe.kube.api.gpunode import GPUNode
    from kgwe.kube.api.gpuworkload import GPUWorkload
    from kgwe.kube.api.warp import WarpGPUWorkload
    from kgwe.kube.informer import Change

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
        self.pods: dict[str, dict[str, core.Pod]] = {}  # workload uid -> pod key -> pod, not ended
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
        self.workloads[workload.key] = workload
        self.keys[workload.meta.uid] = workload.key
        self.on_work(workload.key)

    def _remove_workload(self, uid: str) -> None:
        del self.workloads[self.keys.pop(uid)]
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
        if change.new is None:
            self.jobs.pop(uid, None)
            self._release(uid)
        else:
            self.jobs[uid] = job
            node = job.metadata.annotations.get(jobs.NODE_ANNOTATION, "")
            if jobs.outcome(job) is not None:
                self._release(uid)
            elif node:
                self.ledger.reserve(uid, node, jobs.held_by(job))
        self._touch(uid)

    def on_pod(self, change: Change[core.Pod]) -> None:
        pod = change.new or change.old
        if pod is None:
            return
        uid = pod.metadata.labels.get(jobs.UID_LABEL, "")
        ended = change.new is None or translate.is_terminal(change.new)
        if uid:
            mine = self.pods.setdefault(uid, {})
            if ended:
                mine.pop(change.key, None)
            else:
                mine[change.key] = pod
            if not mine:
                del self.pods[uid]
        if ended or not pod.spec.nodeName:
            if self.ledger.remove_pod(change.key):
                self.on_room()
        else:
            self._book(change.key, uid, pod)
        if uid and _interesting(change.old, None if ended else change.new):
            self._touch(uid)

    def _book(self, key: str, uid: str, pod: core.Pod) -> None:
        try:
            self.ledger.set_pod(key, uid, pod.spec.nodeName, translate.requested(pod.spec))
        except errors.Permanent as exc:
            # Never seen from a real API server. Guessing its size would be worse than saying so.
            log.warning("pod_request_unreadable", pod=key, error=str(exc))

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
        self._fabric[change.key] = None if change.new is None else translate.fabric_gbps(change.new)
        self._set_facts(change.key)

    def _set_facts(self, name: str) -> None:
        node = self._nodes.get(name)
        if node is None:
            return
        if self.ledger.set_node(translate.node_facts(node, fabric_gbps=self._fabric.get(name))):
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
