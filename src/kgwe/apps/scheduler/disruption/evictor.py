"""Deletes pods that have to leave their place, as gracefully as their node allows.

    the node answers     by the eviction API: disruption budgets and grace periods hold, a refusal is tried again
    the node is down     no kubelet will confirm the end: the pod is marked failed and deleted
    it has no node       deleted

The Job controller creates the next pod after it has seen the end of the last one. It waits ten seconds after the first
such end, twenty after the second, and ten minutes after the seventh. A pod that is deleted here did not fail by itself.
So pods of KGWE's own Jobs lose the finalizer by which the Job controller counts ends, and the next pod is created at
once. Other pods end as Kubernetes ends the pods of a lost node: as failed, by a disruption.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Final

import structlog

from kgwe import errors
from kgwe.kube.api import resources, timestamp
from kgwe.kube.client.client import DisruptionBudgetRefused
from kgwe.kube.client.eviction import evict_pod, remove_tracking_finalizer
from kgwe.kube.client.worker_pool import WorkerPool
from kgwe.kube.client.workqueue import WorkQueue
from kgwe.kube.translate.node_health import NodeFault

if TYPE_CHECKING:
    from kgwe.apps.scheduler.deps import Deps
    from kgwe.kube.api import core
    from kgwe.kube.client.client import KubeClient

log = structlog.get_logger(__name__)

_STRATEGIC_MERGE: Final = "application/strategic-merge-patch+json"
_WORKERS: Final = 16
# A pod that was evicted is checked again after this long: its node may have gone down meanwhile.
_AGAIN_S: Final = 2.0
# How long a kubelet that is not ready may exceed the grace period of a pod before the pod is force-deleted.
_OVERDUE_S: Final = 10.0
# After a refusal by a disruption budget, the eviction is tried again after at most this long.
_CEILING_S: Final = 15.0


async def mark_failed(client: KubeClient, pod: core.Pod, why: str) -> None:
    """Mark a pod on a lost node as failed by a disruption, so that its owner may replace it."""
    meta, now = pod.metadata, timestamp.seconds()
    condition = {"type": "DisruptionTarget", "status": "True", "reason": "NodeFailed", "message": why}
    body = {
        "metadata": {"uid": meta.uid},
        "status": {
            "phase": "Failed",
            "reason": "NodeFailed",
            "message": why,
            "conditions": [condition | {"lastTransitionTime": now}],
        },
    }
    await client.patch(resources.POD, meta.name, body, meta.namespace, subresource="status", kind=_STRATEGIC_MERGE)


class Evictor:
    """The pods to delete in one term of leadership; each is checked until it is gone."""

    def __init__(self, deps: Deps) -> None:
        self._client = deps.client
        self._state = deps.state
        self._queue: WorkQueue[str] = WorkQueue(base_s=0.5, ceiling_s=_CEILING_S)
        self._why: dict[str, str] = {}  # pod uid -> why it is deleted
        self._pool = WorkerPool(self._queue, self._remove_now, workers=_WORKERS, on_error=self._handle_error)

    def start(self) -> None:
        self._pool.start()

    async def stop(self) -> None:
        await self._pool.stop()

    def __contains__(self, uid: object) -> bool:
        return uid in self._why

    def remove_pod(self, uid: str, why: str) -> None:
        """Delete the pod soon; a second call for the same pod has no effect."""
        if uid not in self._why:
            self._why[uid] = why
            self._queue.add(uid)

    def _handle_error(self, uid: str, error: Exception) -> None:
        if isinstance(error, errors.NotFound):
            self._why.pop(uid, None)
            return
        delay_s = self._queue.retry(uid)
        if isinstance(error, errors.KgweError):
            refused = isinstance(error, DisruptionBudgetRefused)
            log.info("eviction_waits", pod=uid, refused=refused, error=str(error), retry_in_s=round(delay_s, 2))
        else:
            log.error("eviction_crashed", pod=uid, exc_info=error)

    async def _remove_now(self, uid: str) -> None:
        pod = self._state.pods.get(uid)
        if pod is None:
            self._why.pop(uid, None)
            self._queue.forget(uid)
            return
        # A pod that never had a node has not failed, whatever controller owns it.
        counted = not self._state.is_external(pod) or not pod.spec.nodeName
        if self._must_force(pod):
            await self._force_delete(pod, self._why[uid], counted=counted)
        elif pod.metadata.deletionTimestamp is None:
            await evict_pod(self._client, pod)
        if counted:
            await remove_tracking_finalizer(self._client, pod)
        self._queue.forget(uid)
        self._queue.add_after(uid, _AGAIN_S)

    def _must_force(self, pod: core.Pod) -> bool:
        """Whether no kubelet can end the pod, or its kubelet should have done so by now."""
        found = self._state.reader.find_fault(pod.spec.nodeName) if pod.spec.nodeName else NodeFault.LOST
        if found is NodeFault.NOT_READY and (end := pod.metadata.deletionTimestamp):
            late_s = (dt.datetime.now(dt.UTC) - timestamp.parse(end)).total_seconds()
            return late_s > _OVERDUE_S
        return found is NodeFault.LOST

    async def _force_delete(self, pod: core.Pod, why: str, *, counted: bool) -> None:
        meta = pod.metadata
        if pod.spec.nodeName and not counted:
            await mark_failed(self._client, pod, why)
        try:
            await self._client.delete(resources.POD, meta.name, meta.namespace, uid=meta.uid, grace_s=0)
        except errors.Conflict as exc:
            raise errors.NotFound(str(exc)) from exc  # another pod of that name
