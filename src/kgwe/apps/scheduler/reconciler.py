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

import structlog

from kgwe import errors
from kgwe.apps.scheduler import jobs, phases, runs
from kgwe.apps.scheduler.workload import Status, Workload, status_patch
from kgwe.kube import resources, timestamp
from kgwe.kube.api.gpuworkload import Phase
from kgwe.kube.events import Event
from kgwe.model import backoff

if TYPE_CHECKING:
    from collections.abc import Callable

    from kgwe.apps.scheduler.means import Means
    from kgwe.apps.scheduler.planner import Planner
    from kgwe.apps.scheduler.runs import Run
    from kgwe.apps.scheduler.state import Key
    from kgwe.kube.api import core
    from kgwe.placement.planning import Ask, Plan, Refusal

log = structlog.get_logger(__name__)

Result = Literal["done", "waiting", "retry"]

# What is likely to be overtaken in a moment is not worth a write: "waits" before room is found at once,
# "scheduled" before the pod runs.
_SETTLE_S = 1.0
# A Job not seen this long after its creation is asked for again; until then asking would only be refused.
_WATCH_LAG_S = 10.0
# Rewrites of waiting messages over all workloads together, per second, at most.
_MESSAGES_PER_S = 10.0


@dataclass
class _Memory:
    """What is worth remembering of one workload between calls; losing it in a crash does no harm."""

    generation: int = 0
    ask: Ask | None = None
    avoided: frozenset[str] = frozenset()  # nodes left out of `ask`
    planned_for: Ask | None = None  # what the planner was last asked
    plan: Plan | None = None  # what was decided, for the status to tell
    held_at: float | None = None  # since when it waits without room
    told_at: float = 0.0  # when its waiting message was last written
    retry_at: float = 0.0  # not before this time
    created_at: float | None = None  # when a Job was created that the watch has not shown yet
    job_uid: str = ""
    job_seen_at: float = 0.0
    taken_back: str = ""  # uid of a Job that was deleted to plan anew
    refusals: int = 0  # times a Job of it was taken back, one after another
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

    def abandon(self, key: Key) -> None:
        """The last call for this workload broke: hold nothing for it until it is tried again."""
        workload = self._state.workloads.get(key)
        if workload is not None:
            self.planner.forget(workload.meta.uid)

    async def reconcile(self, key: Key) -> Result:
        workload = self._state.workloads.get(key)
        if workload is None:
            return "done"
        uid = workload.meta.uid
        if workload.meta.deletionTimestamp is not None:
            return await self._finalize(workload)
        run = self._state.runs.get(uid)
        if run is not None:
            plan = self.planner.planned.get(uid)
            if plan is not None:
                self._remember(workload).plan = plan
            self.planner.confirm(uid)
            return await self._follow(workload, run)
        if workload.finished:
            self.planner.forget(uid)
            return "done"
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
            ask = self._ask(workload, template, memory, now)
            planned = self.planner.planned.get(workload.meta.uid)
            body = jobs.build(workload, template, planned) if planned else {}
        except (errors.Permanent, KeyError, TypeError, AttributeError, ValueError) as exc:
            # The template is free-form: whatever nonsense it holds ends here, before anything is held for it.
            message = f"podTemplate cannot be run: {exc}; edit the workload to try again"
            return await self._give_up(workload, "InvalidPodTemplate", message)
        if planned is not None and memory.planned_for == ask:
            if memory.created_at is not None and now < memory.created_at + _WATCH_LAG_S:
                self._requeue(workload.key, memory.created_at + _WATCH_LAG_S - now)
                return "done"  # the watch is about to show the Job
            return await self._start(workload, body, planned)
        # Not decided yet, or decided for a spec that was edited since.
        self.planner.forget_plan(workload.meta.uid)
        memory.planned_for = ask
        self.planner.want(ask)
        held = self.planner.held.get(workload.meta.uid)
        if held is not None:
            await self._tell_waiting(workload, memory, held, now)
        if memory.avoid:
            self._requeue(workload.key, min(memory.avoid.values()) - now + _SETTLE_S)
        return "waiting"

    def _ask(self, workload: Workload, template: dict[str, Any], memory: _Memory, now: float) -> Ask:
        """Worked out once per spec; nodes that refused are left out until their time is over."""
        memory.avoid = {node: until for node, until in memory.avoid.items() if until > now}
        avoid = frozenset(memory.avoid)
        if memory.ask is None or memory.avoided != avoid:
            memory.ask, memory.avoided = jobs.ask(workload, template, avoid), avoid
        return memory.ask

    async def _tell_waiting(self, workload: Workload, memory: _Memory, held: Refusal, now: float) -> None:
        """Say why it waits: soon when that is news, seldom when only the numbers in it moved."""
        if memory.held_at is None:
            memory.held_at = now
        new = phases.waiting(workload, held, timestamp.seconds(), self._estimate(workload))
        if status_patch(workload, new) is None:
            return
        told = workload.status.conditions[0] if workload.status.conditions else None
        is_news = (
            told is None
            or told.reason != held.reason
            or workload.status.phase != Phase.PENDING
            or workload.status.observed_generation != workload.meta.generation
        )
        pace_s = len(self.planner.waiting) / _MESSAGES_PER_S
        if is_news:
            due = max(memory.held_at + _SETTLE_S, memory.told_at + (pace_s if memory.told_at else 0))
        else:
            due = memory.told_at + max(self._settings.message_interval_seconds, pace_s)
        if now < due:
            self._requeue(workload.key, due - now)
            return
        memory.told_at = now
        await self._write_status(workload, new)
        self._requeue(workload.key, max(self._settings.message_interval_seconds, pace_s))
        if told is None or told.reason != held.reason:
            self._record(workload, "Normal", held.reason, held.message, action="Waiting")

    def _estimate(self, workload: Workload) -> tuple[str, str] | None:
        eta = self.planner.estimates.get(workload.meta.uid)
        if eta is None or eta.p50_s is None or eta.p90_s is None:
            return None
        return timestamp.of(eta.p50_s), timestamp.of(eta.p90_s)

    # --- creating the Job -------------------------------------------------------------------------------

    async def _start(self, workload: Workload, body: dict[str, Any], plan: Plan) -> Result:
        workload = await self._ensure_finalizer(workload)
        resource, namespace = jobs.resource(workload), workload.meta.namespace
        try:
            if len(plan.seats) > 1 and not workload.serves:
                with contextlib.suppress(errors.AlreadyExists):
                    await self._client.create(resources.SERVICE, jobs.service(workload), namespace)
            await self._client.create(resource, body, namespace)
        except errors.AlreadyExists as exc:
            stored = await self._client.get(resource, body["metadata"]["name"], namespace)
            managed = stored.metadata.labels.get(jobs.MANAGED_BY) == jobs.CONTROLLER_NAME
            read = runs.of_deployment if workload.serves else runs.of_job
            if managed and runs.belongs_to(read(stored), workload):
                # Ours, from before a crash; the watch will show it, with the place it was given then.
                return "done"
            return await self._creation_failed(workload, errors.Permanent(f"{exc} and belongs to somebody else"))
        except errors.Permanent as exc:
            if "exceeded quota" in str(exc):
                return await self._take_back(workload, "QuotaExceeded", str(exc))
            return await self._creation_failed(workload, exc)
        memory = self._remember(workload)
        memory.created_at, memory.plan = self._clock(), plan
        # Its status follows from the run, see _follow; most often the pod runs before a write would be done.
        self._metrics.scheduled.labels(workload.strategy).inc()
        where = plan.nodes[0] if len(plan.seats) == 1 else f"{len(plan.nodes)} nodes in {plan.level} {plan.domain}"
        self._record(workload, "Normal", "Scheduled", f"placed on {where} by {workload.strategy}", action="Scheduling")
        log.info("workload_scheduled", workload=workload.meta.key, nodes=plan.nodes, strategy=workload.strategy)
        return "done"

    async def _creation_failed(self, workload: Workload, error: errors.Permanent) -> Result:
        """An error, not a shortage: count it, wait longer each time, give up when the policy says so."""
        self.planner.forget(workload.meta.uid)
        self._metrics.failed.labels("job_creation_failed").inc()
        attempt = phases.retries(workload)
        if attempt >= workload.max_retries:
            return await self._give_up(workload, "MaxRetriesExceeded", f"gave up after {attempt} retries: {error}")
        delay_s = backoff.delay_s(workload.backoff_s, attempt, self._rng.random())
        self._metrics.retries.inc()
        self._remember(workload).retry_at = self._clock() + delay_s
        self._requeue(workload.key, delay_s)
        message = f"creating the Job failed, retry {attempt + 1} of {workload.max_retries} in {delay_s:.0f} s: {error}"
        await self._write_status(workload, phases.retrying(workload, attempt + 1, message, timestamp.seconds()))
        self._record(workload, "Warning", "JobCreationFailed", str(error), action="Scheduling")
        return "retry"

    # --- following the Job ------------------------------------------------------------------------------

    async def _follow(self, workload: Workload, run: Run) -> Result:
        memory = self._remember(workload)
        now = self._clock()
        if memory.job_uid != run.meta.uid:
            memory.job_uid, memory.job_seen_at, memory.created_at = run.meta.uid, now, None
        if memory.taken_back == run.meta.uid:
            return "done"  # the watch will show that it is gone
        memory.held_at, memory.told_at = None, 0.0
        placed = phases.Placement(run, workload, memory.plan, self._state.reader.uuids)
        if run.ended is not None:
            return await self._finish(workload, run, placed, run.ended)
        pods = self._state.pods_of(run)
        if any(pod.status.phase == "Running" for pod in pods.values()):
            memory.refusals = 0
            await self._write_status(workload, phases.running(workload, placed, timestamp.seconds()))
            self._warn_of_edit(workload, placed)
            return "done"
        if run.suspended:
            status = phases.scheduled(workload, placed, timestamp.seconds(), "it is suspended")
            await self._write_status(workload, status)
            return "done"
        if workload.status.phase == Phase.RUNNING and not pods:
            # The pod has just ended and is no longer among `pods`; the Job's verdict follows in a moment.
            return "done"
        if (why := self._unplaced(run, pods)) is not None:
            return await self._wait_placed(workload, run, memory, why)
        if now - memory.job_seen_at < _SETTLE_S:
            self._requeue(workload.key, _SETTLE_S)
            return "done"
        await self._write_status(workload, phases.scheduled(workload, placed, timestamp.seconds()))
        self._warn_of_edit(workload, placed)
        return "done"

    def _warn_of_edit(self, workload: Workload, placed: phases.Placement) -> None:
        if workload.meta.generation > placed.generation > 0:
            note = "the spec was edited after the work was scheduled; it runs on as it was. Delete and create to apply"
            self._record(workload, "Warning", "SpecChangedWhileScheduled", note, action="Scheduling")

    async def _finish(self, workload: Workload, run: Run, placed: phases.Placement, ended: core.Condition) -> Result:
        if workload.status.phase == Phase.FAILED and placed.generation < workload.meta.generation:
            # Failed and edited since: clear the way for another try.
            await self._delete_run(run)
            return "done"
        status = phases.finished(workload, placed, run, ended, timestamp.seconds())
        if await self._write_status(workload, status):
            success = status.phase == Phase.SUCCEEDED
            type_: Literal["Normal", "Warning"] = "Normal" if success else "Warning"
            self._record(workload, type_, str(status.phase), status.message, action="Running")
            log.info("workload_finished", workload=workload.meta.key, phase=str(status.phase), message=status.message)
        return "done"

    @staticmethod
    def _unplaced(run: Run, pods: dict[str, core.Pod]) -> tuple[str, str] | None:
        """(reason, message) when no pod of the run has found its place; None when one has."""
        live = [pod for pod in pods.values() if pod.metadata.deletionTimestamp is None]
        if any(pod.spec.nodeName for pod in pods.values()):
            return None
        for pod in live:
            if (refusal := _refusal(pod)) is not None:
                return "NodeRefused", refusal.message
        if live:
            return "NotScheduled", "no scheduler has taken its pod; is spec.schedulerName right?"
        if run.made:
            return None  # its pods are there, or were; our watch of them is a little behind
        kind, name = run.resource.kind, run.meta.name
        return (
            "PodsNotCreated",
            f"its {kind} could make no pods; `kubectl describe {kind.lower()} {name}` says why (a quota, a policy)",
        )

    async def _wait_placed(self, workload: Workload, run: Run, memory: _Memory, why: tuple[str, str]) -> Result:
        """Give kube-scheduler its time; then take the run back so that its room does not lie idle."""
        reason, message = why
        waited_s = self._clock() - memory.job_seen_at
        refused = reason == "NodeRefused"
        timeout_s = self._settings.placement_timeout_seconds if refused else self._settings.unscheduled_timeout_seconds
        found = [self._state.fleet.node(seat.node) for seat in run.seats]
        usable = bool(found) and all(node is not None and node.ready for node in found)
        if run.meta.deletionTimestamp is not None:
            return "done"
        if usable and waited_s < timeout_s:
            placed = phases.Placement(run, workload, memory.plan, self._state.reader.uuids)
            if waited_s >= _SETTLE_S:
                await self._write_status(workload, phases.scheduled(workload, placed, timestamp.seconds()))
            self._requeue(workload.key, _SETTLE_S if waited_s < _SETTLE_S else timeout_s - waited_s + 0.1)
            return "done"
        if refused or not usable:
            self._avoid(run, memory)
        await self._delete_run(run)
        memory.taken_back = run.meta.uid
        return await self._take_back(workload, reason, f"{run.node}: {message}" if run.node else message)

    def _avoid(self, run: Run, memory: _Memory) -> None:
        """Nodes where its pods were refused, or that are gone, are left out of the next plan."""
        until = self._clock() + self._settings.avoid_seconds
        pods = self._state.pods_of(run).values()
        refused = {run.seat_of(pod) for pod in pods if not pod.spec.nodeName and _refusal(pod) is not None}
        for number, seat in enumerate(run.seats):
            node = self._state.fleet.node(seat.node)
            if number in refused or node is None or not node.ready:
                memory.avoid[seat.node] = until

    async def _take_back(self, workload: Workload, reason: str, message: str) -> Result:
        """Neither an error of the work nor a shortage of GPUs: hold nothing, pause, longer each time, try again."""
        self.planner.forget(workload.meta.uid)
        memory = self._remember(workload)
        memory.refusals += 1
        memory.ask = None
        # The first time another node may do at once; after that somebody else has to mend something.
        again_s = 0.0
        if memory.refusals > 1 or reason != "NodeRefused":
            again_s = backoff.delay_s(workload.backoff_s, memory.refusals - 1, self._rng.random())
        memory.retry_at = self._clock() + again_s
        if again_s:
            self._requeue(workload.key, again_s)
        self._record(workload, "Warning", reason, message, action="Scheduling")
        log.warning("placement_taken_back", workload=workload.meta.key, reason=reason, message=message)
        if again_s:
            note = f"{message}; tried again in {again_s:.0f} s"
            await self._write_status(workload, phases.pending(workload, reason, note, timestamp.seconds()))
        return "retry"

    # --- ending -----------------------------------------------------------------------------------------

    async def _give_up(self, workload: Workload, reason: str, message: str) -> Result:
        self.planner.forget(workload.meta.uid)
        if await self._write_status(workload, phases.gave_up(workload, reason, message, timestamp.seconds())):
            self._record(workload, "Warning", reason, message, action="Scheduling")
            log.warning("workload_failed", workload=workload.meta.key, reason=reason, message=message)
        return "done"

    async def _finalize(self, workload: Workload) -> Result:
        """Whatever the phase: stop the Job, let the object go. Only an unreachable API server delays it."""
        if workload.kind.finalizer not in workload.meta.finalizers:
            self.planner.forget(workload.meta.uid)
            return "done"
        run = self._state.runs.get(workload.meta.uid)
        try:
            if run is not None:
                await self._delete_run(run)
            elif workload.meta.uid in self.planner.planned:
                # Created a moment ago, perhaps: the watch has not shown it yet.
                with contextlib.suppress(errors.NotFound):
                    resource, name = jobs.resource(workload), jobs.job_name(workload)
                    await self._client.delete(resource, name, workload.meta.namespace)
        except errors.Permanent as exc:
            # The owner reference has the garbage collector do it; the user's delete must not wait for us.
            log.warning("run_not_deleted", workload=workload.meta.key, error=str(exc))
        self.planner.forget(workload.meta.uid)
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

    async def _delete_run(self, run: Run) -> None:
        if run.meta.deletionTimestamp is not None:
            return
        # Gone already, or a namesake that is not the one meant.
        with contextlib.suppress(errors.NotFound, errors.Conflict):
            await self._client.delete(run.resource, run.meta.name, run.meta.namespace, uid=run.meta.uid)

    def _record(
        self, workload: Workload, type_: Literal["Normal", "Warning"], reason: str, note: str, *, action: str
    ) -> None:
        self._events.record(Event(workload.kind.resource, workload.meta, type_, reason, note, action))

    def _remember(self, workload: Workload) -> _Memory:
        """What is known of the workload; an edit of its spec starts afresh."""
        memory = self._memory.get(workload.meta.uid)
        if memory is None or memory.generation != workload.meta.generation:
            memory = self._memory[workload.meta.uid] = _Memory(generation=workload.meta.generation)
        return memory


def _refusal(pod: core.Pod) -> core.Condition | None:
    """kube-scheduler's word that the pod fits nowhere it may go."""
    return next((c for c in pod.status.conditions if c.type == "PodScheduled" and c.reason == "Unschedulable"), None)
