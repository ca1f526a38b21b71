"""Executes recovery plans: stores them, deletes pods in the wrong place, and watches until everything runs again.

gang of a workload        the new plan is stored in its Job or Deployment; pods that are not where it says are deleted
single pod                its Job, which pins it to its node, is deleted and created again at the place reserved for it
externally created gang   its seats move in memory and wait for the pods that its owner creates again
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import structlog

from kgwe import errors
from kgwe.apps.background import TaskSet
from kgwe.apps.scheduler.disruption.failures import Failures
from kgwe.cluster.state import effective_seats
from kgwe.cluster.workload import metadata_keys, placement_annotations, plan_details, relocation, seat_revocation
from kgwe.cluster.workload.owner import parse_gang
from kgwe.cluster.workload.plan_text import PlanTooLarge
from kgwe.kube.api.kgwe.gpuworkload import RecoveryPolicy
from kgwe.kube.api.kgwe.gpuworkload_status import Phase
from kgwe.kube.client.events import Event
from kgwe.placement.live.holding import Holding
from kgwe.placement.planning.plan import Seat
from kgwe.placement.refusal import Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kgwe.apps.scheduler.deps import Deps
    from kgwe.apps.scheduler.disruption.evictor import Evictor
    from kgwe.apps.scheduler.planning.planner import Planner
    from kgwe.cluster.workload.runs import Run
    from kgwe.cluster.workload.workload import Workload
    from kgwe.kube.api import core
    from kgwe.placement.disruption.recovery import Repaired
    from kgwe.placement.gang.request import GangRequest

log = structlog.get_logger(__name__)

# Events report the progress; this look makes sure that no recovery waits for one that does not come.
_WATCH_S: Final = 1.0
# Seats of an externally created gang that no pod comes back for are released after this long.
_PATIENCE_S: Final = 120.0
# A recovery that has not ended after this long is no longer counted.
_LONGEST_S: Final = 600.0


@dataclass
class RecoveryInProgress:
    """The recovery of one owner."""

    since: float
    words: str
    #: pods that move
    moves: int = 0
    #: uid of a run that is deleted and created again
    replaced: str = ""
    #: the new plan is not stored yet
    writing: bool = False


class RecoveryExecutor:
    """The recoveries of one term of leadership."""

    def __init__(
        self,
        deps: Deps,
        planner: Planner,
        evictor: Evictor,
        *,
        seat: Callable[[str, core.Pod], None],
        again: Callable[[], None],
        on_change: Callable[[str], None],
        on_lost: Callable[[set[str]], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`again`: called when something could not be done and has to be tried again later.

        `on_change`: called with an owner whose recovery begins or ends. `on_lost`: called with failed nodes on which
        a workload failed too.
        """
        self._client = deps.client
        self._state = deps.state
        self._gangs = deps.gangs
        self._events = deps.events
        self._metrics = deps.metrics
        self._planner = planner
        self._faults = deps.faults
        self._evictor = evictor
        self._seat = seat
        self._again = again
        self._clock = clock
        self._on_change = on_change
        self._on_lost = on_lost
        self._under_way: dict[str, RecoveryInProgress] = {}
        self._tasks = TaskSet()
        self._timer: asyncio.TimerHandle | None = None

    def resume(self) -> None:
        """Execute plans that an earlier leader stored."""
        for owner, run in list(self._state.runs.items()):
            try:
                note = run.meta.annotations.get(metadata_keys.NOTE_ANNOTATION)
                if note is not None and self._find_misplaced(run):
                    self._track_move(owner, RecoveryInProgress(self._clock(), note))
                    self._advance_move(owner)
            except Exception as exc:  # noqa: BLE001 - an error of one run; the term begins for the others
                self._faults.record("recovery", owner, exc)

    async def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await self._tasks.cancel()

    def execute_repair(self, repaired: Repaired, words: str, since: float, gang: GangRequest | None = None) -> None:
        """Execute the plan for one owner; `gang`: the request by which its pods were placed."""
        owner = repaired.workload
        before = self._under_way.get(owner)
        since = since if before is None else min(since, before.since)
        self._track_move(owner, RecoveryInProgress(since, words, len(repaired.moves)))
        self.record_event(owner, "Warning", Reason.RECOVERING, words)
        log.info("recovering", owner=owner, outcome=str(repaired.outcome), plan=words)
        if parse_gang(owner) is not None:
            self._move_gang(owner, repaired)
        elif len(self._state.runs[owner].seats) == 1:
            self._recreate_run(owner, repaired)
        else:
            self._move_run(owner, repaired, gang)
        self._on_change(owner)

    @property
    def moving(self) -> int:
        """How many pods are being moved."""
        return sum(each.moves for each in self._under_way.values())

    def message_of(self, owner: str) -> str | None:
        """What is done for the owner; None: it does not recover."""
        found = self._under_way.get(owner)
        return found.words if found is not None else None

    def is_busy(self, owner: str) -> bool:
        """Whether the owner cannot be planned for now: a plan is being stored, or its run is being replaced."""
        found = self._under_way.get(owner)
        return found is not None and (found.writing or bool(found.replaced))

    def forget(self, owner: str) -> None:
        """The owner is gone."""
        self._under_way.pop(owner, None)

    def handle_change(self, owner: str) -> None:
        """Something about the owner's run or pods changed."""
        self.restart_failing(owner)
        if owner in self._under_way:
            self._advance_move(owner)

    def _track_move(self, owner: str, repairing: RecoveryInProgress) -> None:
        self._under_way[owner] = repairing
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_WATCH_S, self._watch_moves)

    def _watch_moves(self) -> None:
        self._timer = None
        for owner in list(self._under_way):
            self._advance_move(owner)
        if self._under_way:
            self._timer = asyncio.get_running_loop().call_later(_WATCH_S, self._watch_moves)

    # --- workloads that ended because of what failed ---------------------------------------------------------

    def restart_failing(self, owner: str) -> None:
        """Restart a run that is about to fail on hardware that failed.

        A Job that has failed ends only when all its pods have gone, and pods on a dead node never go.
        """
        run, workload = self._state.runs.get(owner), self._state.find_workload(owner)
        if run is not None and workload is not None and run.failing and self.failed_on_lost_hardware(workload, run):
            self.restart_run(workload, run)

    def failed_on_lost_hardware(self, workload: Workload, run: Run) -> bool:
        """Whether a run that failed did so on a node or GPU that is known to have failed.

        The processes of a gang often notice first that a node or GPU is gone, and exit.
        """
        if workload.recovery == RecoveryPolicy.NONE or workload.status.phase == Phase.FAILED:
            return False
        failures = self._failures_of(run)
        return any(failures.has_failed(place) for place in _places_of(run))

    def restart_run(self, workload: Workload, run: Run) -> None:
        """Delete a run that failed on lost hardware; its workload is placed again, before others of its priority."""
        owner = workload.meta.uid
        known = self._under_way.get(owner)
        if known is not None and known.replaced == run.meta.uid:
            return
        failures, places = self._failures_of(run), _places_of(run)
        cause = failures.describe(places, self._state.reader.find_fault)
        words = f"{cause}. The run failed; restarting on other nodes"
        since = self._clock() if known is None else known.since
        self._planner.interruptions.record(owner, Reason.RECOVERING, words)
        self._track_move(owner, RecoveryInProgress(since, words, replaced=run.meta.uid))
        self._metrics.recoveries.labels("Restarted").inc()
        self._on_lost({place.node for place in places if failures.has_failed(place)})
        self.record_event(owner, "Warning", Reason.RECOVERING, words)
        self._tasks.spawn(self._delete_run(owner, run))

    def _failures_of(self, run: Run) -> Failures:
        """What of the run's hardware has failed."""
        nodes, reader = {seat.node for seat in run.seats}, self._state.reader
        return Failures(
            frozenset(node for node in nodes if reader.find_fault(node) is not None),
            {node: reader.unhealthy_gpus(node) for node in nodes},
        )

    # --- gangs of workloads ---------------------------------------------------------------------------------

    def _move_run(self, owner: str, repaired: Repaired, gang: GangRequest | None) -> None:
        run = self._state.runs[owner]
        before, seats = run.seats, list(run.seats)
        for move in repaired.moves:
            seats[int(move.member)] = Seat.from_grant(move.node, move.grant)
        try:
            text = placement_annotations.encode(seats)
        except PlanTooLarge as exc:
            log.warning("recovery_not_stored", owner=owner, error=str(exc))
            self._start_again(owner, run)
            return
        note = self._under_way[owner].words
        details = plan_details.moved_details(
            self._state.fleet.gangs.survey(gang, [_cards_of(seat) for seat in seats]), note
        )
        annotations = {
            placement_annotations.PLAN_ANNOTATION: text,
            metadata_keys.DETAILS_ANNOTATION: plan_details.encode_details(details),
            metadata_keys.NOTE_ANNOTATION: note,
        }
        if repaired.restarts:
            annotations[metadata_keys.ROUND_ANNOTATION] = str(relocation.round_of(run.meta.annotations) + 1)
        self._under_way[owner].writing = True
        self._state.run_registry.move_seats(owner, tuple(seats), details)
        self._tasks.spawn(self._write_plan(owner, before, annotations))

    def _start_again(self, owner: str, run: Run) -> None:
        """Delete the run: its workload is planned as a whole again, which gives a shorter plan."""
        self._planner.interruptions.record(owner, Reason.RECOVERING, self._under_way[owner].words)
        self._under_way[owner].replaced = run.meta.uid
        self._tasks.spawn(self._delete_run(owner, run))

    async def _write_plan(self, owner: str, before: tuple[Seat, ...], annotations: Mapping[str, str]) -> None:
        """Store the new plan if it replaces the old one, then execute it."""
        run = self._state.runs.get(owner)
        try:
            if run is not None and run.seats_in_template:
                # First, so that pods created from now on wait for their new seats.
                jobs = {each.meta.uid for each in self._state.runs.values()}
                await seat_revocation.revoke_seats(self._client, run.meta, jobs.__contains__)
            stored = run is not None and await relocation.store_plan(
                self._client, run, before, annotations, self._state.signer
            )
        except errors.KgweError as exc:
            log.warning("recovery_not_stored", owner=owner, error=str(exc))
            stored = False
        repairing = self._under_way.get(owner)
        if not stored:
            self._under_way.pop(owner, None)
            self._state.run_registry.move_seats(owner, None)
            self._again()
        elif repairing is not None:
            repairing.writing = False
            self._advance_move(owner)

    # --- a single pod of ours ---------------------------------------------------------------------------

    def _recreate_run(self, owner: str, repaired: Repaired) -> None:
        """A Job cannot move: it is deleted and created again at the place that is reserved for it."""
        run = self._state.runs[owner]
        (move,) = repaired.moves
        place = Seat.from_grant(move.node, move.grant)
        self._planner.reserve(owner, {0: Holding(place.node, run.wanted, place.gpus, place.slices)}, ready=True)
        self._planner.interruptions.record(owner, Reason.RECOVERING, self._under_way[owner].words)
        self._under_way[owner].replaced = run.meta.uid
        self._tasks.spawn(self._delete_run(owner, run))

    async def _delete_run(self, owner: str, run: Run) -> None:
        try:
            with contextlib.suppress(errors.NotFound, errors.Conflict):
                await self._client.delete(run.resource, run.meta.name, run.meta.namespace, uid=run.meta.uid)
        except errors.KgweError as exc:
            log.warning("run_not_deleted", owner=owner, error=str(exc))
            self._under_way.pop(owner, None)
            self._planner.release_reservation(owner)
            self._again()
            return
        for uid in list(self._state.pods_of(run)):
            self._evictor.remove_pod(uid, "its workload moves to other nodes")

    # --- externally created gangs -------------------------------------------------------------------------------

    def _move_gang(self, owner: str, repaired: Repaired) -> None:
        places = self._state.ledger.reserved_seats(owner)
        moved: dict[int, Holding] = {}
        for move in repaired.moves:
            if not move.member.isdigit():
                continue  # it never had a seat: it is planned with the other waiting pods
            seat = Seat.from_grant(move.node, move.grant)
            moved[int(move.member)] = Holding(seat.node, places[int(move.member)].amounts, seat.gpus, seat.slices)
        restarted = [int(member) for member in repaired.restarts if member.isdigit()]
        for uid in self._gangs.move_seats(owner, moved, restarted):
            self._evictor.remove_pod(uid, self._under_way[owner].words)

    # --- on the way -------------------------------------------------------------------------------------

    def _advance_move(self, owner: str) -> None:
        """Delete pods that are in the way of the plan, and report when everything runs again."""
        repairing = self._under_way[owner]
        if repairing.writing:
            return
        run = self._state.runs.get(owner)
        if run is not None and run.meta.uid != repairing.replaced:
            for uid in self._find_misplaced(run):
                self._evictor.remove_pod(uid, repairing.words)
            for pod in self._state.run_registry.list_unseated(owner):
                self._seat(owner, pod)
        if self._is_whole(owner, repairing):
            took_s = self._clock() - repairing.since
            del self._under_way[owner]
            self._metrics.recovery_seconds.observe(took_s)
            self.record_event(
                owner, "Normal", "Recovered", f"{repairing.words}. All pods running again after {took_s:.1f} s."
            )
            log.info("recovered", owner=owner, seconds=round(took_s, 2))
        elif self._is_over(owner, repairing):
            del self._under_way[owner]
            log.info("recovery_ended", owner=owner, seconds=round(self._clock() - repairing.since, 2))
        if owner not in self._under_way:
            self._on_change(owner)

    def _is_over(self, owner: str, repairing: RecoveryInProgress) -> bool:
        """Whether the plan cannot be executed any more: the run has ended or is gone, or no pods come."""
        late_s = self._clock() - repairing.since
        if parse_gang(owner) is not None:
            if late_s > _PATIENCE_S:
                self._gangs.give_up_seats(owner)
            return late_s > _PATIENCE_S or self._gangs.group(owner) is None
        run = self._state.runs.get(owner)
        if run is not None and run.meta.uid == repairing.replaced:
            return False
        ended = run.ended is not None if run is not None else not repairing.replaced
        return late_s > _LONGEST_S or ended

    def _find_misplaced(self, run: Run) -> list[str]:
        pods = self._state.pods_of(run).values()
        cards = functools.partial(effective_seats.effective_cards, self._state)
        return [
            pod.metadata.uid for pod in relocation.find_misplaced(run, pods, self._state.reader.unhealthy_gpus, cards)
        ]

    def _is_whole(self, owner: str, repairing: RecoveryInProgress) -> bool:
        run = self._state.runs.get(owner)
        places = self._state.ledger.reserved_seats(owner)
        if not places or (run is not None and run.meta.uid == repairing.replaced):
            return False
        if run is not None and self._find_misplaced(run):
            return False
        pods = [self._state.pods.get(self._state.ledger.pod_in(owner, number)) for number in places]
        return all(pod is not None and pod.status.phase == "Running" for pod in pods)

    def record_event(self, owner: str, type_: Literal["Normal", "Warning"], reason: str, words: str) -> None:
        """Record an Event on the workload, or on a pod of the gang."""
        target = self._state.owners.event_target(owner)
        if target is not None:
            self._events.record(Event(target.resource, target.meta, type_, reason, words, "Recovery"))


def _cards_of(seat: Seat) -> tuple[str, int]:
    """(node, mask of the GPUs that the seat uses)"""
    return seat.node, functools.reduce(lambda mask, each: mask | 1 << each[0], seat.slices, seat.gpus)


def _places_of(run: Run) -> list[Holding]:
    return [Holding(seat.node, gpus=seat.gpus) for seat in run.seats]
