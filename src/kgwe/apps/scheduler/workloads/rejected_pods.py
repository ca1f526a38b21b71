"""Replaces pods of runs that ended without a failure of their own.

    deleted            by a user or a drain: its end does not count as a failure of the Job, which replaces it at once;
                       on a cordoned node its seat moves if there is room elsewhere
    never started      its kubelet rejected it (UnexpectedAdmissionError, OutOfcpu, ...): a lost seat, not a failed run

The informer shows only that a pod left; why it left is read once, and only of pods that were bound and had not started.
The first rejection of a seat does not count in its Job, so the next pod comes at once. Further ones count, and the Job
waits longer each time. After three the seat leaves its node: a running gang moves only that seat; other workloads are
planned again without the node.
"""

from __future__ import annotations

import asyncio
import functools
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import structlog

from kgwe import errors
from kgwe.apps.background import TaskSet
from kgwe.cluster.state import run_state
from kgwe.cluster.state.run_state import POD_REJECTED, Unplaced
from kgwe.kube.api import resources
from kgwe.kube.client.events import Event
from kgwe.kube.client.eviction import remove_tracking_finalizer
from kgwe.model.units.phrasing import list_names

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from kgwe.apps.scheduler.deps import Deps
    from kgwe.cluster.workload.runs import Run
    from kgwe.cluster.workload.workload import Workload
    from kgwe.kube.api import core

log = structlog.get_logger(__name__)

# Rejections of one seat by one node after which the seat leaves the node.
_MOST: Final = 3
# Rejections longer ago than this say nothing about the node.
_FORGET_S: Final = 600.0
# Calls to the API server at the same time.
_AT_ONCE: Final = 16
# The reason of a container whose state the kubelet does not know: it may never have started.
_UNKNOWN_END: Final = "ContainerStatusUnknown"
# A pod that was not started within its own activeDeadlineSeconds has failed by itself.
_OWN_REASONS: Final = frozenset({"DeadlineExceeded"})


def never_started(pod: core.EndedPod) -> bool:
    """Whether the pod failed before any of its containers started, and not by its own deadline."""
    status = pod.status
    if status.phase != "Failed" or status.reason in _OWN_REASONS:
        return False
    return not any(
        state.running is not None or (state.terminated is not None and state.terminated.reason != _UNKNOWN_END)
        for each in (*status.containerStatuses, *status.initContainerStatuses)
        for state in (each.state, each.lastState)
    )


@dataclass(frozen=True)
class Rejected:
    """How often a node has rejected the pods of one seat."""

    node: str
    times: int
    last_at: float
    words: str


class RejectedPods:
    """Handles rejected and deleted pods during one term of leadership."""

    def __init__(
        self,
        deps: Deps,
        *,
        leave: Callable[[str, Mapping[int, str], str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`leave`: move these seats (number -> node) of a running gang to other nodes, for that reason."""
        self._client = deps.client
        self._state = deps.state
        self._events = deps.events
        self._metrics = deps.metrics
        self._leave = leave
        self._clock = clock
        self._seats: dict[str, dict[int, Rejected]] = {}  # workload uid -> seat -> rejections by its node
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._tasks = TaskSet()

    def start(self) -> None:
        """Handle pods that were deleted while there was no leader."""
        for owner, run in list(self._state.runs.items()):
            for pod in list(self._state.pods_of(run).values()):
                if pod.metadata.deletionTimestamp is not None:
                    self.handle_ending(owner, pod)

    async def stop(self) -> None:
        await self._tasks.cancel()

    def forget(self, owner: str) -> None:
        self._seats.pop(owner, None)

    # --- pods that end ----------------------------------------------------------------------------------

    def handle_ending(self, owner: str, pod: core.Pod) -> None:
        """A pod of the owner's run is being deleted, or is gone though it was bound and had not started."""
        run = self._state.runs.get(owner)
        if run is None or run.ended is not None or run.failing or run.suspended or run.meta.deletionTimestamp:
            return  # its Job deletes it
        if pod.metadata.deletionTimestamp is None:
            self._start_task(functools.partial(self._look_at, owner, run, pod))
            return
        if not run.serves:
            self._start_task(functools.partial(remove_tracking_finalizer, self._client, pod))
        self._leave_cordoned(owner, run, pod)

    def _leave_cordoned(self, owner: str, run: Run, pod: core.Pod) -> None:
        """Move the seat of a drained pod of a running gang if there is room elsewhere; otherwise keep it."""
        workload, name, number = self._state.find_workload(owner), pod.spec.nodeName, run.seat_of(pod)
        node = self._state.fleet.node(name)
        is_cordoned = node is not None and not node.ready and self._state.reader.find_fault(name) is None
        if workload is None or not is_cordoned or not 0 <= number < len(run.seats):
            return
        if len(run.seats) > 1 and run.seats[number].node == name and run_state.has_started(workload, run):
            self._leave(owner, {number: name}, f"node {name} was drained")

    async def _look_at(self, owner: str, run: Run, pod: core.Pod) -> None:
        meta = pod.metadata
        found = await self._client.get(resources.ENDED_POD, meta.name, meta.namespace)
        if found.metadata.uid != meta.uid or not never_started(found):
            return
        number = run.seat_of(pod)
        rejected = self._count_rejection(owner, number, found)
        self._metrics.rejections.inc()
        workload = self._state.find_workload(owner)
        if workload is not None:
            note = f"node {rejected.node} rejected pod {meta.name}: {rejected.words}. The pod is replaced"
            self._events.record(Event(workload.kind.resource, workload.meta, "Warning", POD_REJECTED, note, "Starting"))
        log.warning("pod_rejected", pod=meta.key, node=rejected.node, times=rejected.times, reason=rejected.words)
        if not run.serves and (rejected.times == 1 or rejected.times >= _MOST):
            await remove_tracking_finalizer(self._client, pod)
        if rejected.times >= _MOST and workload is not None:
            self._move_seat(workload, run, number, rejected)

    def _count_rejection(self, owner: str, number: int, pod: core.EndedPod) -> Rejected:
        seats, now, node = self._seats.setdefault(owner, {}), self._clock(), pod.spec.nodeName
        before = seats.get(number)
        recent = before is not None and before.node == node and before.last_at > now - _FORGET_S
        times = before.times + 1 if before is not None and recent else 1
        seats[number] = Rejected(node, times, now, rejection_message(pod))
        return seats[number]

    def _move_seat(self, workload: Workload, run: Run, number: int, rejected: Rejected) -> None:
        if len(run.seats) > 1 and run_state.has_started(workload, run):
            self._seats[workload.meta.uid].pop(number)
            self._leave(
                workload.meta.uid, {number: rejected.node}, _describe_rejections({rejected.node}, rejected.words)
            )
        else:
            self._state.announcer.workload_touched(workload.key)  # the reconciler asks `unfit_seats`

    # --- what the reconciler asks -----------------------------------------------------------------------

    def unfit_seats(self, owner: str, run: Run) -> Unplaced | None:
        """Nodes of the plan that have rejected their pods too often; None: there are none."""
        found = {
            number: each
            for number, each in self._seats.get(owner, {}).items()
            if each.times >= _MOST and number < len(run.seats) and run.seats[number].node == each.node
        }
        if not found:
            return None
        nodes = frozenset(each.node for each in found.values())
        return Unplaced(POD_REJECTED, _describe_rejections(nodes, next(iter(found.values())).words), nodes)

    async def explain_failed_job(self, run: Run) -> Unplaced | None:
        """Why a failed Job is a lost run: none of its failed pods ever started. None: it failed by itself."""
        uid = run.meta.uid
        pods = await self._client.list(
            resources.ENDED_POD,
            run.meta.namespace,
            labelSelector=f"batch.kubernetes.io/controller-uid={uid}",
            fieldSelector="status.phase=Failed",
        )
        if not pods or not all(map(never_started, pods)):
            return None
        nodes = frozenset(pod.spec.nodeName for pod in pods if pod.spec.nodeName)
        return Unplaced(POD_REJECTED, _describe_rejections(nodes, rejection_message(pods[-1])), nodes)

    def _start_task(self, work: Callable[[], Awaitable[None]]) -> None:
        self._tasks.spawn(self._run_guarded(work))

    async def _run_guarded(self, work: Callable[[], Awaitable[None]]) -> None:
        async with self._slots:
            try:
                await work()
            except errors.NotFound:
                return  # gone: its owner has replaced it
            except errors.KgweError as exc:
                # Then the Job counts the failure, and replaces the pod as well.
                log.warning("ended_pod_not_handled", error=str(exc))


def rejection_message(pod: core.EndedPod) -> str:
    status = pod.status
    return ": ".join(part for part in (status.reason, status.message) if part) or "no reason given"


def _describe_rejections(nodes: Iterable[str], last: str) -> str:
    return f"{list_names(sorted(nodes))} rejected its pods: {last}"
