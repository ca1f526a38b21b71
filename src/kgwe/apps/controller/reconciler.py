"""Bring one workload to where it should be, from whatever state it is found in.

    (none) ──► Pending ──► Scheduled ──► Running ──► Succeeded
                 ▲  │          │            │
                 │  └► Scheduling (an error; tried again, then Failed)
                 └─────────────┴────────────┴──────► Failed ──(spec edited)──► Pending

Each call looks at the workload, its Job and its pods as they are now and takes at most one step; any step
may be the last before a crash, and the next call goes on from what the API shows. Child names are fixed,
so creating twice is refused; deletion is looked at before everything else, so it works in every phase.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import structlog

from kgwe import errors
from kgwe.apps.controller import jobs
from kgwe.apps.controller.workload import Status, Workload, status_patch
from kgwe.kube import resources, timestamp
from kgwe.kube.api.gpuworkload import Phase
from kgwe.kube.events import Event
from kgwe.model import backoff

if TYPE_CHECKING:
    from collections.abc import Callable

    from kgwe.apps.controller.means import Means
    from kgwe.apps.controller.planner import Planner
    from kgwe.apps.controller.state import Key
    from kgwe.kube.api import core
    from kgwe.placement.dispatch import Held

log = structlog.get_logger(__name__)

Result = Literal["done", "waiting", "retry"]

# Work that finds room at once should not first be told that it waits: that is one write for nothing.
_WAIT_BEFORE_TELLING_S = 1.0
# Rewrites of waiting messages over all workloads together, per second, at most.
_MESSAGES_PER_S = 10.0


@dataclass
class _Memory:
    """What is worth remembering of one workload between calls; losing it in a crash does no harm."""

    told_at: float = 0.0  # when its waiting message was last written
    first_held_at: float | None = None
    retry_at: float = 0.0  # an error: not before this time
    avoid: dict[str, float] = field(default_factory=dict)  # node -> until when


class Reconciler:
    """One leader's term of reconciling; everything it remembers dies with it."""

    def __init__(
        self,
        means: Means,
        planner: Planner,
        *,
        requeue: Callable[[Key, float], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.planner = planner
        self._client = means.client
        self._state = means.state
        self._settings = means.settings
        self._events = means.events
        self._metrics = means.metrics
        self._rng = means.rng
        self._requeue = requeue
        self._clock = clock
        self._memory: dict[str, _Memory] = {}

    def gone(self, uid: str) -> None:
        """The workload object no longer exists."""
        self.planner.forget(uid)
        self._memory.pop(uid, None)

    async def reconcile(self, key: Key) -> Result:
        workload = self._state.workloads.get(key)
        if workload is None:
            return "done"
        uid = workload.meta.uid
        if workload.meta.deletionTimestamp is not None:
            return await self._finalize(workload)
        job = self._state.jobs.get(uid)
        if job is not None:
            self.planner.confirm(uid)
            return await self._follow(workload, job)
        if workload.finished:
            self.planner.forget(uid)
            return "done"
        node = self.planner.planned.get(uid)
        if node is not None:
            return await self._start(workload, node)
        return await self._seek(workload)

    # --- waiting for a node -----------------------------------------------------------------------------

    async def _seek(self, workload: Workload) -> Result:
        memory = self._remember(workload)
        now = self._clock()
        if now < memory.retry_at:
            self._requeue(workload.key, memory.retry_at - now)
            return "waiting"
        try:
            template = jobs.pod_template(workload, self._settings.default_image)
            ask = jobs.ask(workload, template, self._avoided(memory, now))
        except (errors.Permanent, msgspec.ValidationError, KeyError, TypeError, AttributeError) as exc:
            message = f"podTemplate cannot be run: {exc}; edit the workload to try again"
            return await self._fail(workload, "InvalidPodTemplate", message)
        self.planner.want(ask)
        held = self.planner.held.get(workload.meta.uid)
        if held is not None:
            await self._tell_waiting(workload, memory, held, now)
        return "waiting"

    async def _tell_waiting(self, workload: Workload, memory: _Memory, held: Held, now: float) -> None:
        """Say why it waits: at once when the reason is new, seldom when only the numbers in it moved."""
        if memory.first_held_at is None:
            memory.first_held_at = now
        told = _condition(workload.status, "Scheduled")
        if told is None or told.reason != held.reason or workload.status.phase != Phase.PENDING:
            due = memory.first_held_at + _WAIT_BEFORE_TELLING_S
        elif told.message != held.message:
            pace_s = max(self._settings.message_interval_seconds, len(self.planner.waiting) / _MESSAGES_PER_S)
            due = memory.told_at + pace_s
        else:
            return
        if now < due:
            self._requeue(workload.key, due - now)
            return
        memory.told_at = now
        new = replace(
            workload.status,
            phase=Phase.PENDING,
            message=held.message,
            node="",
            job_name="",
            start_time=None,
            completion_time=None,
            observed_generation=workload.meta.generation,
        ).with_condition("Scheduled", status=False, reason=held.reason, message=held.message, now=timestamp.seconds())
        await self._write_status(workload, new)
        if told is None or told.reason != held.reason:
            self._record(workload, "Normal", held.reason, held.message, action="Waiting")

    def _avoided(self, memory: _Memory, now: float) -> frozenset[str]:
        memory.avoid = {node: until for node, until in memory.avoid.items() if until > now}
        return frozenset(memory.avoid)

    # --- creating the Job -------------------------------------------------------------------------------

    async def _start(self, workload: Workload, node: str) -> Result:
        workload = await self._ensure_finalizer(workload)
        template = jobs.pod_template(workload, self._settings.default_image)
        body = jobs.build(workload, template, node)
        try:
            await self._client.create(resources.JOB, body, workload.meta.namespace)
        except errors.AlreadyExists as exc:
            stored = await self._client.get(resources.JOB, body["metadata"]["name"], workload.meta.namespace)
            if stored.metadata.labels.get(jobs.UID_LABEL) == workload.meta.uid:
                # Ours, from before a crash; the watch will show it, with the node it was given then.
                return "done"
            return await self._creation_failed(workload, errors.Permanent(f"{exc} and belongs to somebody else"))
        except errors.Permanent as exc:
            return await self._creation_failed(workload, exc)
        now = timestamp.seconds()
        message = f"placed on {node} by {workload.strategy}"
        new = replace(
            workload.status,
            phase=Phase.SCHEDULED,
            message=message,
            node=node,
            job_name=body["metadata"]["name"],
            last_schedule_time=now,
            start_time=None,
            completion_time=None,
            observed_generation=workload.meta.generation,
        ).with_condition("Scheduled", status=True, reason="Placed", message=message, now=now)
        await self._write_status(workload, new)
        self._metrics.scheduled.labels(workload.strategy).inc()
        self._record(workload, "Normal", "Scheduled", message, action="Scheduling")
        log.info("workload_scheduled", workload=workload.meta.key, node=node, strategy=workload.strategy)
        return "done"

    async def _creation_failed(self, workload: Workload, error: errors.Permanent) -> Result:
        """An error, not a shortage: count it, wait longer each time, give up when the policy says so."""
        self.planner.forget(workload.meta.uid)
        self._metrics.failed.labels("job_creation_failed").inc()
        same_spec = workload.status.observed_generation == workload.meta.generation
        attempt = workload.status.retry_count if same_spec else 0
        if attempt >= workload.max_retries:
            return await self._fail(workload, "MaxRetriesExceeded", f"gave up after {attempt} retries: {error}")
        delay_s = backoff.delay_s(workload.backoff_s, attempt, self._rng.random())
        self._metrics.retries.inc()
        self._remember(workload).retry_at = self._clock() + delay_s
        message = f"creating the Job failed, retry {attempt + 1} of {workload.max_retries} in {delay_s:.0f} s: {error}"
        new = replace(
            workload.status,
            phase=Phase.SCHEDULING,
            message=message,
            node="",
            retry_count=attempt + 1,
            observed_generation=workload.meta.generation,
        ).with_condition(
            "Scheduled", status=False, reason="JobCreationFailed", message=message, now=timestamp.seconds()
        )
        await self._write_status(workload, new)
        self._record(workload, "Warning", "JobCreationFailed", str(error), action="Scheduling")
        self._requeue(workload.key, delay_s)
        return "retry"

    # --- following the Job ------------------------------------------------------------------------------

    async def _follow(self, workload: Workload, job: core.Job) -> Result:
        ended = jobs.outcome(job)
        generation = int(job.metadata.annotations.get(jobs.GENERATION_ANNOTATION, workload.meta.generation))
        if ended is not None and workload.status.phase == Phase.FAILED and generation < workload.meta.generation:
            # Failed and edited since: clear the way for another try.
            await self._delete_job(job)
            return "done"
        if ended is not None:
            return await self._finish(workload, job, ended, generation)
        pods = self._state.pods.get(workload.meta.uid, {})
        if await self._stuck(workload, job, pods):
            return "retry"
        node = job.metadata.annotations.get(jobs.NODE_ANNOTATION, "")
        running = any(pod.status.phase == "Running" for pod in pods.values())
        # A pod that has just ended is no longer among `pods`; the Job's verdict follows in a moment.
        was_running = workload.status.phase == Phase.RUNNING and not any(not p.spec.nodeName for p in pods.values())
        status = replace(
            workload.status, node=node, job_name=job.metadata.name, observed_generation=generation, completion_time=None
        )
        now = timestamp.seconds()
        if workload.status.phase not in (Phase.SCHEDULED, Phase.RUNNING):
            # The Job was created, its status write was lost (a crash): make up for it.
            message = f"placed on {node} by {workload.strategy}"
            status = replace(status, message=message, last_schedule_time=status.last_schedule_time or now)
            status = status.with_condition("Scheduled", status=True, reason="Placed", message=message, now=now)
        if running or was_running:
            message = f"running on {node}"
            status = replace(status, phase=Phase.RUNNING, message=message, start_time=status.start_time or now)
            status = status.with_condition("Running", status=True, reason="PodRunning", message=message, now=now)
        else:
            status = replace(status, phase=Phase.SCHEDULED)
        await self._write_status(workload, status)
        if workload.meta.generation > generation:
            note = "the spec was edited after the work was scheduled; it runs on as it was. Delete and create to apply"
            self._record(workload, "Warning", "SpecChangedWhileScheduled", note, action="Scheduling")
        return "done"

    async def _finish(self, workload: Workload, job: core.Job, ended: core.Condition, generation: int) -> Result:
        success = ended.type == "Complete"
        now = timestamp.seconds()
        message = "completed" if success else (ended.message or ended.reason or "the Job failed")
        status = replace(
            workload.status,
            phase=Phase.SUCCEEDED if success else Phase.FAILED,
            message=message,
            node=job.metadata.annotations.get(jobs.NODE_ANNOTATION, ""),
            job_name=job.metadata.name,
            start_time=workload.status.start_time or job.status.startTime,
            completion_time=workload.status.completion_time
            or job.status.completionTime
            or ended.lastTransitionTime
            or now,
            observed_generation=generation,
        )
        reason = ended.reason or ended.type
        if _condition(status, "Running") is not None:
            status = status.with_condition("Running", status=False, reason=reason, message=message, now=now)
        status = status.with_condition("Succeeded", status=success, reason=reason, message=message, now=now)
        if await self._write_status(workload, status):
            self._record(workload, "Normal" if success else "Warning", str(status.phase), message, action="Running")
            log.info("workload_finished", workload=workload.meta.key, phase=str(status.phase), reason=reason)
        return "done"

    async def _stuck(self, workload: Workload, job: core.Job, pods: dict[str, core.Pod]) -> bool:
        """kube-scheduler refuses the planned node for too long, or the node is gone: plan anew elsewhere."""
        node = job.metadata.annotations.get(jobs.NODE_ANNOTATION, "")
        refused = [why for pod in pods.values() if not pod.spec.nodeName and (why := _refusal(pod)) is not None]
        if not refused or job.metadata.deletionTimestamp is not None:
            return False
        since = min(timestamp.parse(why.lastTransitionTime) for why in refused if why.lastTransitionTime)
        waited_s = (timestamp.parse(timestamp.micro()) - since).total_seconds()
        facts = self._state.ledger.node(node)
        if facts is not None and facts.ready and waited_s < self._settings.placement_timeout_seconds:
            self._requeue(workload.key, self._settings.placement_timeout_seconds - max(waited_s, 0) + 0.1)
            return False
        memory = self._remember(workload)
        memory.avoid[node] = self._clock() + self._settings.avoid_seconds
        note = f"{node} did not take it ({refused[0].message}); planning anew"
        self._record(workload, "Warning", "NodeRefused", note, action="Scheduling")
        log.warning("node_refused", workload=workload.meta.key, node=node, message=refused[0].message)
        await self._delete_job(job)
        return True

    # --- ending -----------------------------------------------------------------------------------------

    async def _fail(self, workload: Workload, reason: str, message: str) -> Result:
        self.planner.forget(workload.meta.uid)
        now = timestamp.seconds()
        new = replace(
            workload.status,
            phase=Phase.FAILED,
            message=message,
            node="",
            completion_time=now,
            observed_generation=workload.meta.generation,
        )
        for condition in ("Scheduled", "Succeeded"):
            new = new.with_condition(condition, status=False, reason=reason, message=message, now=now)
        if await self._write_status(workload, new):
            self._record(workload, "Warning", reason, message, action="Scheduling")
            log.warning("workload_failed", workload=workload.meta.key, reason=reason, message=message)
        return "done"

    async def _finalize(self, workload: Workload) -> Result:
        """Whatever the phase: stop the Job, let the object go. Only an unreachable API server delays it."""
        self.planner.forget(workload.meta.uid)
        job = self._state.jobs.get(workload.meta.uid)
        if job is not None and job.metadata.deletionTimestamp is None:
            try:
                await self._delete_job(job)
            except errors.Permanent as exc:
                # The owner reference has the garbage collector do it; the user's delete must not wait for us.
                log.warning("job_not_deleted", job=job.metadata.key, error=str(exc))
        if workload.kind.finalizer in workload.meta.finalizers:
            kept = [name for name in workload.meta.finalizers if name != workload.kind.finalizer]
            body = {"metadata": {"resourceVersion": workload.meta.resourceVersion, "finalizers": kept}}
            with contextlib.suppress(errors.NotFound):
                await self._client.patch(workload.kind.resource, workload.meta.name, body, workload.meta.namespace)
        return "done"

    # --- writing ----------------------------------------------------------------------------------------

    async def _ensure_finalizer(self, workload: Workload) -> Workload:
        if workload.kind.finalizer in workload.meta.finalizers:
            return workload
        body: dict[str, Any] = {
            "metadata": {
                "resourceVersion": workload.meta.resourceVersion,
                "finalizers": [*workload.meta.finalizers, workload.kind.finalizer],
            }
        }
        stored = await self._client.patch(workload.kind.resource, workload.meta.name, body, workload.meta.namespace)
        return replace(workload, meta=stored.metadata)

    async def _write_status(self, workload: Workload, new: Status) -> bool:
        """One write, and only when something changed; a stale view is refused by the API server."""
        patch = status_patch(workload, new)
        if patch is None:
            return False
        patch["metadata"] = {"resourceVersion": workload.meta.resourceVersion}
        await self._client.patch(
            workload.kind.resource, workload.meta.name, patch, workload.meta.namespace, subresource="status"
        )
        return True

    async def _delete_job(self, job: core.Job) -> None:
        # Gone already, or a namesake that is not the one meant.
        with contextlib.suppress(errors.NotFound, errors.Conflict):
            await self._client.delete(resources.JOB, job.metadata.name, job.metadata.namespace, uid=job.metadata.uid)

    def _record(
        self, workload: Workload, type_: Literal["Normal", "Warning"], reason: str, note: str, *, action: str
    ) -> None:
        self._events.record(Event(workload.kind.resource, workload.meta, type_, reason, note, action))

    def _remember(self, workload: Workload) -> _Memory:
        return self._memory.setdefault(workload.meta.uid, _Memory())


def _condition(status: Status, type_: str) -> core.Condition | None:
    return next((c for c in status.conditions if c.type == type_), None)


def _refusal(pod: core.Pod) -> core.Condition | None:
    """kube-scheduler's word that the pod fits nowhere it may go."""
    return next((c for c in pod.status.conditions if c.type == "PodScheduled" and c.reason == "Unschedulable"), None)
