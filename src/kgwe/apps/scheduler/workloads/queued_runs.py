"""Workloads whose Job waits in a queue of Kueue: they have a suspended Job, and no seats until Kueue resumes it.

    no Job ──► suspended Job ──(Kueue admits)──► planned ──► its pods get their seats behind their gates
                    ▲                                              │
                    └──────────────(Kueue evicts)──────────────────┘

Kueue may add node selectors and tolerations to the template of the Job. The plan keeps to them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import structlog

from kgwe.apps.scheduler.workloads import workload_status as phases
from kgwe.cluster.state import run_state
from kgwe.cluster.workload import metadata_keys, placement_annotations, plan_details, plan_text, relocation, runs
from kgwe.kube.api import timestamp

if TYPE_CHECKING:
    from collections.abc import Callable

    from kgwe.apps.scheduler.deps import Deps
    from kgwe.apps.scheduler.planning.planner import Planner
    from kgwe.apps.scheduler.workloads.attempt import Attempt, Result
    from kgwe.apps.scheduler.workloads.attempts import Attempts
    from kgwe.apps.scheduler.workloads.run_creator import RunCreator
    from kgwe.apps.scheduler.workloads.waiting_status import WaitingNotices
    from kgwe.apps.scheduler.workloads.writer import StatusWriter
    from kgwe.cluster.workload.runs import Run
    from kgwe.cluster.workload.workload import Key, Workload
    from kgwe.placement.planning.plan import Plan

log = structlog.get_logger(__name__)

#: reason of a workload whose Job Kueue has not admitted
AWAITING_ADMISSION: Final = "AwaitingAdmission"
# When a new plan could not be stored, or the watch is behind.
_AGAIN_S: Final = 0.5


class QueuedRuns:
    """Takes the steps of workloads with a LocalQueue, until their Job has a plan."""

    def __init__(
        self,
        deps: Deps,
        planner: Planner,
        *,
        attempts: Attempts,
        creator: RunCreator,
        writer: StatusWriter,
        waiting: WaitingNotices,
        requeue: Callable[[Key, float], None],
        clock: Callable[[], float],
    ) -> None:
        self._client = deps.client
        self._state = deps.state
        self._planner = planner
        self._attempts = attempts
        self._creator = creator
        self._writer = writer
        self._waiting = waiting
        self._requeue = requeue
        self._clock = clock
        self._unstored: set[str] = set()  # workloads whose run has the seats of a plan that is not stored yet

    def forget(self, uid: str) -> None:
        """The workload object no longer exists."""
        self._unstored.discard(uid)

    def is_unplanned(self, workload: Workload, run: Run | None) -> bool:
        """Whether the run waits for Kueue, or for a plan after Kueue admitted it."""
        if run is None or not workload.queue or run.ended is not None or run.failing or not run.is_signed:
            return False
        if run.suspended or workload.meta.uid in self._unstored:
            return True
        return not run.seats and not run_state.is_bound(self._state.pods_of(run))

    def deliver_plan(self, uid: str, plan: Plan) -> None:
        """The planner has just reserved the plan: the run keeps its seats from now on, before its object shows them."""
        workload, run = self._state.find_workload(uid), self._state.runs.get(uid)
        if workload is not None and run is not None and self.is_unplanned(workload, run):
            self._unstored.add(uid)
            self._state.run_registry.move_seats(uid, plan.seats, plan_details.describe_plan(plan))

    def _drop_seats(self, uid: str) -> None:
        """The plan that was delivered is not used: the run has the seats that its object shows."""
        self._unstored.discard(uid)
        self._state.run_registry.move_seats(uid, None)

    async def advance(self, workload: Workload, run: Run) -> Result:
        """Take the next step of an unplanned run."""
        attempt = self._attempts.attempt_of(workload)
        if attempt.taken_back == run.meta.uid or run.meta.deletionTimestamp is not None:
            return "done"  # the watch will show that it is gone
        if runs.is_outdated(run, workload):
            await self._writer.delete_run(run)
            attempt.taken_back = run.meta.uid
            return "done"
        if run.suspended:
            return await self._await_admission(workload, run, attempt)
        if attempt.plan is not None:
            return await self._store_plan(workload, run, attempt, attempt.plan)
        if workload.meta.uid in self._unstored:
            self._drop_seats(workload.meta.uid)  # an edit or an error has discarded the plan
        return await self._ask_for_place(workload, run, attempt)

    async def _await_admission(self, workload: Workload, run: Run, attempt: Attempt) -> Result:
        """Hold nothing. A plan from before Kueue evicted the Job is removed: its places may be in use by now."""
        self._drop_seats(workload.meta.uid)
        self._attempts.release_place(workload.meta.uid)
        attempt.ask = None
        if run.seats:
            none = {placement_annotations.PLAN_ANNOTATION: ""}
            await relocation.store_plan(self._client, run, run.seats, none, self._state.signer)
        message = f"waiting for Kueue to admit Job {run.meta.name} to LocalQueue {workload.queue}"
        status = phases.pending_status(workload, AWAITING_ADMISSION, message, timestamp.seconds())
        await self._writer.write_status(workload, status)
        return "waiting"

    async def _ask_for_place(self, workload: Workload, run: Run, attempt: Attempt) -> Result:
        now = self._clock()
        if attempt.ask is None or attempt.basis is not None:  # it was read before Kueue changed the template
            attempt.avoid = {node: until for node, until in attempt.avoid.items() if until > now}
            ask = self._creator.read_ask(workload, frozenset(attempt.avoid))
            # For exactly the pods of the Job: Kueue has charged them.
            attempt.ask, attempt.basis = replace(runs.apply_flavor(run, ask), divisible=False), None
        self._planner.request_place(attempt.ask)
        if (refusal := self._planner.refusal_of(workload.meta.uid)) is not None:
            await self._waiting.report(workload, attempt, refusal, now)
        return "waiting"

    async def _store_plan(self, workload: Workload, run: Run, attempt: Attempt, plan: Plan) -> Result:
        """Store the plan on the Job, which gives its pods their seats."""
        uid = workload.meta.uid
        annotations = {
            placement_annotations.PLAN_ANNOTATION: placement_annotations.encode(
                plan.seats, plan_text.MOST_BYTES_AT_START
            ),
            metadata_keys.DETAILS_ANNOTATION: plan_details.encode_details(plan_details.describe_plan(plan)),
        }
        attempt.plan = None
        stored = False
        try:
            stored = await relocation.store_plan(self._client, run, (), annotations, self._state.signer)
        finally:
            if not stored:
                self._drop_seats(uid)
                self._planner.discard_plan(uid)
        if not stored:
            self._requeue(workload.key, _AGAIN_S)
            return "retry"
        self._unstored.discard(uid)
        self._planner.confirm_plan(uid)
        # Pods that were created before the plan was made.
        self._state.run_registry.announce_all_unseated(uid)
        log.info("queued_workload_scheduled", workload=workload.meta.key, nodes=plan.nodes[:16], queue=workload.queue)
        return "done"
