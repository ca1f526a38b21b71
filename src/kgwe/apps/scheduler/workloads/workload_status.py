"""Builds the whole status of a workload, conditions included, for each phase.

A status does not depend on the one before. Each phase sets every field and every condition; only times are carried over
(the transition times of conditions, and the start of the run).
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING

from kgwe.cluster.suspension import marks
from kgwe.cluster.workload import effective_request, metadata_keys, scheduler_policy
from kgwe.cluster.workload.conditions import (
    COMPLETE,
    DEGRADED,
    FAILED,
    IDLE,
    PRIORITY_LIMITED,
    RUNNING,
    SCHEDULED,
    SUCCEEDED,
    SUSPENDED,
)
from kgwe.cluster.workload.workload import NO_DETAILS, Placed, Replicas, Status
from kgwe.kube.api.kgwe.gpuworkload_status import Phase
from kgwe.kube.api.meta import Condition
from kgwe.model.units import amounts
from kgwe.model.units.phrasing import end_sentence
from kgwe.placement.fleet.snapshot import list_gpus
from kgwe.placement.planning.diagnosis import Diagnosis

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kgwe.cluster.workload.conditions import Trouble
    from kgwe.cluster.workload.runs import Run
    from kgwe.cluster.workload.workload import Workload
    from kgwe.kube.api import core
    from kgwe.kube.translate.nodes import Cards
    from kgwe.placement.refusal import Refusal

# The CRD allows more. Messages of the API server can be too long to read.
_MESSAGE_CHARS = 1024
# Nodes and UUIDs that a status lists: an object has room for 1.5 MiB, and every write carries all of it.
_MOST_LISTED = 512

#: reason of the condition Suspended of a workload that has ended
ALREADY_FINISHED = "AlreadyFinished"

Verdict = tuple[bool, str, str]
"""(status, reason, message) of one condition."""


def pending_status(workload: Workload, reason: str, message: str, now: str) -> Status:
    """The workload waits, for room or for a user to fix something. Nothing of an earlier run remains in the status."""
    status = Status(phase=Phase.PENDING, message=_shorten(message), retry_count=retry_count(workload))
    return with_conditions(workload, status, workload.meta.generation, now, {SCHEDULED: (False, reason, message)})


def waiting_status(workload: Workload, held: Refusal, now: str, estimate: tuple[str, str] | None = None) -> Status:
    """The workload waits for room: why, when it may start, and what would let it start now.

    There is no estimate where waiting cannot help. The message has the same times as `estimatedStart`.
    """
    found = held.detail if isinstance(held.detail, Diagnosis) else None
    if not held.possible or (found is not None and found.fix):
        estimate = None
    message = held.message
    if estimate is not None:
        message = f"{end_sentence(message)} May start by {estimate[0]} (50 % likely), {estimate[1]} (90 % likely)."
    status = pending_status(workload, held.code, message, now)
    words = found.describe() if found is not None else ""
    return replace(status, certificate=_shorten(words), estimate=estimate)


def retrying_status(workload: Workload, attempt: int, message: str, now: str) -> Status:
    """An error is being retried; `attempt` counts from 1."""
    status = Status(phase=Phase.SCHEDULING, message=_shorten(message), retry_count=attempt)
    verdict = (False, "JobCreationFailed", message)
    return with_conditions(workload, status, workload.meta.generation, now, {SCHEDULED: verdict})


def suspended_status(workload: Workload, now: str) -> Status:
    """The workload is suspended: it holds nothing and does not wait. Errors before do not count when it is resumed."""
    reason, message = marks.describe_suspension(workload.kind.resource, workload.meta)
    status = Status(phase=Phase.PENDING, message=_shorten(message))
    verdicts = {SCHEDULED: (False, reason, message), SUSPENDED: (True, reason, message)}
    return with_conditions(workload, status, workload.meta.generation, now, verdicts)


def ended_status(workload: Workload, now: str) -> Status:
    """The status of a workload that has ended, with the note that `suspend` changes nothing, or without it."""
    status = workload.status
    if status.phase == Phase.FAILED and not status.spec_hash:
        status = replace(status, spec_hash=workload.hash_spec())
    kept = tuple(each for each in status.conditions if each.type != SUSPENDED)
    if not (note := _unsuspended_condition(workload, status.phase)):
        return replace(status, conditions=kept)
    found = with_conditions(workload, status, workload.meta.generation, now, note).conditions[0]
    return replace(status, conditions=(*kept, found))


def failed_status(workload: Workload, reason: str, message: str, now: str) -> Status:
    """The workload failed before it had a Job."""
    status = Status(
        phase=Phase.FAILED,
        message=_shorten(message),
        retry_count=retry_count(workload),
        completion_time=now,
        spec_hash=workload.hash_spec(),
    )
    verdict = (False, reason, message)
    verdicts = {SCHEDULED: verdict, SUCCEEDED: verdict, FAILED: (True, reason, message)}
    return with_conditions(workload, status, workload.meta.generation, now, verdicts)


def scheduled_status(
    workload: Workload, placed: Placement, now: str, message: str = "", trouble: Trouble | None = None
) -> Status:
    """The workload has its place; `message`: what keeps its pods from starting there."""
    words = message or placed.words
    reason = "Reserved" if message else placed.reason
    verdicts = {SCHEDULED: (True, reason, words), **_degraded_condition(trouble)}
    return _with_job(workload, placed, now, phase=Phase.SCHEDULED, message=words, verdicts=verdicts)


def running_status(workload: Workload, placed: Placement, now: str, trouble: Trouble | None = None) -> Status:
    """The workload runs; `trouble`: a part of it is lost."""
    message = f"running on {placed.where}" + (f"; {trouble[1]}" if trouble else "")
    if idle := marks.describe_notice(workload.meta):
        message += f"; {idle}"
    verdicts = {RUNNING: (True, "PodRunning", message), **_degraded_condition(trouble)}
    verdicts |= {IDLE: (True, "IdleGPUs", idle)} if idle else {}
    status = _with_job(workload, placed, now, phase=Phase.RUNNING, message=message, verdicts=verdicts)
    return replace(status, start_time=workload.status.start_time or now)


def finished_status(workload: Workload, placed: Placement, run: Run, ended: core.Condition, now: str) -> Status:
    success = ended.type == "Complete"
    message = "completed" if success else (ended.message or ended.reason or "the Job failed")
    reason = ended.reason or ended.type
    verdicts = {
        RUNNING: (False, reason, message),
        SUCCEEDED: (success, reason, message),
        COMPLETE if success else FAILED: (True, reason, message),
    }
    phase = Phase.SUCCEEDED if success else Phase.FAILED
    verdicts |= _unsuspended_condition(workload, phase)
    status = _with_job(workload, placed, now, phase=phase, message=message, verdicts=verdicts)
    return replace(
        status,
        start_time=workload.status.start_time or run.start_time,
        completion_time=run.completion_time or ended.lastTransitionTime or now,
        spec_hash="" if success else run.spec_hash,
    )


class Placement:
    """Where a workload was placed and why, as its run shows."""

    def __init__(
        self,
        run: Run,
        workload: Workload,
        cards: Callable[[str], Cards],
        pods: Mapping[str, core.Pod] | None = None,
        *,
        default_strategy: str = "score",
    ) -> None:
        """`pods`: those of the run that are there; `default_strategy`: of a workload that names none."""
        self.node = run.node
        self.job_name = run.meta.name
        self.generation = run.generation
        self.placed = _build_placed(run, workload.status.placed, cards)
        self.where = run.node if self.placed.node_count == 1 else f"{self.placed.node_count} nodes"
        self.nodes = f"{run.node} +{self.placed.node_count - 1}" if self.placed.node_count > 1 else run.node
        self.reason, self.words = "Placed", f"placed on {self.where} by {workload.strategy or default_strategy}"
        if note := run.meta.annotations.get(metadata_keys.NOTE_ANNOTATION):
            running = sum(pod.status.phase == "Running" for pod in (pods or {}).values()) + len(run.done)
            self.reason = "Recovered" if running >= run.pods else "Recovering"
            self.words = _shorten(note)


def _build_placed(run: Run, told: Placed | None, cards: Callable[[str], Cards]) -> Placed:
    placements: list[tuple[str, int, tuple[str, ...]]] = []
    slices: list[tuple[str, str, str]] = []
    left = _MOST_LISTED
    by_node = itertools.groupby(run.seats, key=lambda seat: seat.node)
    for node, here in itertools.islice(by_node, _MOST_LISTED):
        known, seats = cards(node), list(here)
        mine = [known.uuids[card] for seat in seats for card in list_gpus(seat.gpus) if card in known.uuids][:left]
        left -= len(mine)
        slices += [known.slices[each] for seat in seats for each in seat.slices if each in known.slices]
        placements.append((node, len(seats), tuple(mine)))
    why = run.details
    if why is None and told is not None and [each[:2] for each in told.placements] == [each[:2] for each in placements]:
        why = told.details  # they were removed from the run
    return Placed(
        tuple(placements),
        why or NO_DETAILS,
        tuple(slices),
        node_count=len({seat.node for seat in run.seats}),
        gpu_count=len(run.seats) * run.wanted.get(amounts.GPU, 0),
    )


def retry_count(workload: Workload) -> int:
    """Errors so far; an edited spec starts from none."""
    return workload.status.retry_count if workload.status.observed_generation == workload.meta.generation else 0


def _with_job(
    workload: Workload, placed: Placement, now: str, *, phase: Phase, message: str, verdicts: dict[str, Verdict]
) -> Status:
    old = workload.status
    same_run = old.job_name == placed.job_name and old.observed_generation == placed.generation
    status = Status(
        phase=phase,
        message=_shorten(message),
        node=placed.node,
        nodes=placed.nodes,
        job_name=placed.job_name,
        retry_count=old.retry_count if same_run else 0,
        last_schedule_time=(old.last_schedule_time if same_run else None) or now,
        start_time=old.start_time if same_run else None,
        placed=placed.placed,
        cost=old.cost,
    )
    return with_conditions(
        workload, status, placed.generation, now, {SCHEDULED: (True, placed.reason, placed.words), **verdicts}
    )


def with_conditions(
    workload: Workload, status: Status, generation: int, now: str, verdicts: dict[str, Verdict]
) -> Status:
    """The status with exactly these conditions; a transition time changes only with the status of its condition."""
    before = {condition.type: condition for condition in workload.status.conditions}
    conditions = []
    for type_, (is_so, reason, message) in (verdicts | _limited_condition(workload)).items():
        value = "True" if is_so else "False"
        old = before.get(type_)
        since = old.lastTransitionTime if old is not None and old.status == value else now
        conditions.append(Condition(type_, value, reason, _shorten(message), since, generation))
    counts = count_single(workload, status) if workload.is_scalable else None
    return replace(
        status,
        gpus=workload.gpus,
        effective=effective_request.build_status(workload),
        observed_generation=generation,
        conditions=tuple(conditions),
        replicas=counts,
    )


def count_single(workload: Workload, status: Status) -> Replicas:
    """The replicas of a workload with one replica at most."""
    placed = int(bool(status.job_name))
    return Replicas(placed, int(status.phase == Phase.RUNNING), placed, workload.selector)


def _degraded_condition(trouble: Trouble | None) -> dict[str, Verdict]:
    return {} if trouble is None else {DEGRADED: (True, *trouble)}


def _limited_condition(workload: Workload) -> dict[str, Verdict]:
    note = scheduler_policy.priority_note(workload)
    return {PRIORITY_LIMITED: (True, "AboveLimit", note)} if note else {}


def _unsuspended_condition(workload: Workload, phase: str) -> dict[str, Verdict]:
    """The note that `suspend` of a workload that has ended changes nothing."""
    words = f"the workload has {phase.lower()}: spec.suspend has no effect. It holds no GPUs"
    return {SUSPENDED: (False, ALREADY_FINISHED, words)} if workload.suspend else {}


def _shorten(message: str) -> str:
    return message if len(message) <= _MESSAGE_CHARS else message[: _MESSAGE_CHARS - 1] + "…"
