"""Recovery from failed nodes and GPUs: finds the workloads that are hit, plans new places, and executes the plans.

    node, GPUNode ──► failed? ──► affected owners ──► one plan for all ──► stored in the Job ──► old pods deleted
                     (detector)      (census)         (plan_recovery)                             (evictor)
                                                                                              │
               running again ◄── pinned to their new places (pinner) ◄── created by the Job ◄┘

A new plan is reserved in memory, stored in the Job, and only then executed: pods that are not where the stored plan
says are deleted. The API shows what is left to do, so a new leader continues. A single pod is pinned to its node
by its Job, which is deleted and created again; its new place is reserved meanwhile.

A workload that finds no place keeps what it has and comes first whenever capacity is freed.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from kgwe.apps.scheduler.disruption.failure_detector import FailureDetector, Patience
from kgwe.apps.scheduler.disruption.failures import Failures, describe_moves
from kgwe.apps.scheduler.disruption.moves import RecoveryExecutor
from kgwe.cluster.gangs import gang_group
from kgwe.cluster.state import effective_seats
from kgwe.cluster.state.running_view import RunningView
from kgwe.cluster.workload import conditions
from kgwe.cluster.workload.owner import ExternalGangOwner, Replacement
from kgwe.kube.translate.node_health import NodeFault
from kgwe.model.units.phrasing import format_count
from kgwe.placement.disruption.recovery import Failure, Outcome, plan_recovery
from kgwe.placement.refusal import Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kgwe.apps.scheduler.deps import Deps
    from kgwe.apps.scheduler.disruption.evictor import Evictor
    from kgwe.apps.scheduler.planning.planner import Planner
    from kgwe.cluster.workload.conditions import Trouble
    from kgwe.cluster.workload.runs import Run
    from kgwe.cluster.workload.workload import Workload
    from kgwe.kube.api import core
    from kgwe.placement.disruption.recovery import Repaired
    from kgwe.placement.disruption.running import Member, Running
    from kgwe.placement.live.holding import Holding

# Changes that could help an owner without a place (a pod ends, a node is added) are handled together.
_GATHER_S: Final = 1.0
# A write that failed is tried again after this long.
_AGAIN_S: Final = 2.0

#: reasons of the condition Degraded, beside Recovering
NO_CAPACITY: Final = "NoCapacity"
LEFT_ALONE: Final = "LeftAlone"


class RecoveryController:
    """The recovery decisions of one term of leadership."""

    def __init__(
        self,
        deps: Deps,
        planner: Planner,
        evictor: Evictor,
        *,
        seat: Callable[[str, core.Pod], None],
        on_trouble: Callable[[str], None] = lambda _owner: None,
        on_lost: Callable[[set[str]], None] = lambda _nodes: None,
        may_leave: Callable[[str], bool] = lambda _node: True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`on_trouble`: called with an owner whose trouble changed.

        `may_leave`: whether pods of a node whose end is announced may be moved already.
        `on_lost`: called with the failed nodes, and nodes with failed GPUs, once for every affected owner.
        """
        self._state = deps.state
        self._gangs = deps.gangs
        self._metrics = deps.metrics
        self._most = deps.settings.recovery_moves
        self._planner = planner
        self._faults = deps.faults
        self._clock = clock
        self._executor = RecoveryExecutor(
            deps,
            planner,
            evictor,
            seat=seat,
            again=self._look_again,
            on_change=on_trouble,
            on_lost=on_lost,
            clock=clock,
        )
        self.census = RunningView(deps.state, deps.gangs, deps.settings.default_image)
        self._detector = FailureDetector(
            Patience(
                gather_s=deps.settings.recovery_gather_seconds,
                not_ready_s=deps.settings.recovery_not_ready_seconds,
                share=deps.settings.recovery_storm_share,
                hold_s=deps.settings.recovery_storm_hold_seconds,
            )
        )
        self._lacking: dict[str, float] = {}  # affected owner without a new place -> since when
        self._left_alone: set[str] = set()
        #: affected owner that stays as it is -> why
        self._stuck: dict[str, Trouble] = {}
        self._inherited: frozenset[str] = frozenset()  # owners that were degraded in an earlier term
        self._settled_at = 0.0  # until when that counts
        self._on_trouble = on_trouble
        self._may_leave = may_leave
        self._on_lost = on_lost
        self._counted: set[str] = set()  # owners whose loss was counted
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0

    # --- what is heard ----------------------------------------------------------------------------------

    def start(self) -> None:
        """Check everything once: failures may be old, and stored plans may not have been executed."""
        for node in {place.node for owner in self._state.ledger.owners() for place in self._list_places(owner)}:
            self.handle_node_health(node)
        self._take_over_troubles()
        self._executor.resume()

    def _take_over_troubles(self) -> None:
        """Keep workloads Degraded until this term has had the time to detect failures itself."""
        patience = self._detector.patience
        self._settled_at = self._clock() + patience.gather_s + patience.not_ready_s + _GATHER_S
        for workload in self._state.workloads.values():
            stored = next((each for each in workload.status.conditions if each.type == conditions.DEGRADED), None)
            if stored is not None and workload.meta.uid in self._state.runs:
                self._stuck[workload.meta.uid] = stored.reason, stored.message
        self._inherited = frozenset(self._stuck)
        if self._stuck:
            self._look_at(self._settled_at)

    def trouble_of(self, owner: str) -> Trouble | None:
        """Why an owner that has its place is degraded; None: it is not, as far as is known."""
        recovering = self._executor.message_of(owner)
        return (Reason.RECOVERING, recovering) if recovering is not None else self._stuck.get(owner)

    def failed_on_lost_hardware(self, workload: Workload, run: Run) -> bool:
        """Whether a run that failed did so on a node or GPU that is known to have failed."""
        return self._executor.failed_on_lost_hardware(workload, run)

    def restart_run(self, workload: Workload, run: Run) -> None:
        """Delete a run that failed on lost hardware; its workload is placed again."""
        self._executor.restart_run(workload, run)

    def handle_change(self, owner: str) -> None:
        """Something about the owner's run or pods changed."""
        self._executor.handle_change(owner)

    def _set_trouble(self, owner: str, reason: str, words: str) -> None:
        if self._stuck.get(owner) != (reason, words):
            self._stuck[owner] = reason, words
            self._on_trouble(owner)

    def _clear_trouble(self, owner: str) -> None:
        if self._stuck.pop(owner, None) is not None:
            self._on_trouble(owner)

    async def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for owner in list(self._lacking):
            self._stop_waiting(owner)
        await self._executor.stop()

    def handle_node_health(self, node: str) -> None:
        """The health of the node or of its GPUs may have changed."""
        now = self._clock()
        fault = self._state.reader.find_fault(node)
        if fault is NodeFault.INTERRUPTED and not self._may_leave(node):
            fault = None  # its pods checkpoint first
        self._detector.observe_node(node, fault, now)
        self._detector.observe_gpus(node, self._state.reader.unhealthy_gpus(node), now)
        if not self._detector.is_calm or self._lacking:
            self._look_at(now)

    def handle_freed_capacity(self) -> None:
        """Capacity was freed: the planner gives it to affected owners first, and whole gangs may move to use it."""
        if self._lacking:
            self._look_at(self._clock() + _GATHER_S)

    def handle_found_place(self, lost: str) -> None:
        """The planner has reserved a place for what an owner lost: plan its recovery now."""
        self._planner.confirm_plan(lost)
        self._look_for_failures()

    def forget(self, owner: str) -> None:
        self._executor.forget(owner)
        self._stop_waiting(owner)
        self._left_alone.discard(owner)
        self._stuck.pop(owner, None)
        self.census.forget(owner)

    # --- looking ----------------------------------------------------------------------------------------

    def _look_again(self) -> None:
        self._look_at(self._clock() + _AGAIN_S)

    def _look_at(self, when: float) -> None:
        if self._timer is not None:
            if self._due <= when:
                return
            self._timer.cancel()
        self._due = when
        self._timer = asyncio.get_running_loop().call_later(max(when - self._clock(), 0.0), self._look_for_failures)

    def _look_for_failures(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        try:
            self._look_now()
        except Exception as exc:  # noqa: BLE001 - the next look may succeed
            self._faults.record("recovery", "", exc)
            self._look_again()

    def _look_now(self) -> None:
        now = self._clock()
        again = self._detector.confirm_failures(now, len(self._state.fleet.snapshot))
        if again is not None:
            self._look_at(again)
        failures = Failures(self._detector.failed_nodes(), self._detector.failed_gpus(now))
        hit = [
            owner for owner in self._state.ledger.owners() if any(map(failures.has_failed, self._list_places(owner)))
        ]
        for owner in set(self._lacking).difference(hit):
            self._stop_waiting(owner)  # the failed hardware has recovered
        inherited = self._inherited if now < self._settled_at else frozenset()
        for owner in set(self._stuck).difference(hit, inherited):
            self._clear_trouble(owner)
        self._left_alone.intersection_update(hit)
        self._counted.intersection_update(hit)
        if hit:
            self._plan_recovery(hit, failures)

    def _list_places(self, owner: str) -> Sequence[Holding]:
        return tuple(effective_seats.effective_seats(self._state, owner).values())

    def _plan_recovery(self, hit: Sequence[str], failures: Failures) -> None:
        """Make one plan for all affected owners, and begin as many moves as may run at the same time."""
        for owner in hit:
            self._executor.restart_failing(owner)
        known = [self._find_running(owner, failures) for owner in hit]
        asked = {running.name: running for running in known if running is not None}
        for owner in asked:
            # The new plan may use the place that was reserved for it.
            self._state.ledger.withdraw_seats(Replacement(owner).text)
        for repaired in self._find_repairs(list(asked.values()), failures):
            if repaired.moves and self._executor.moving >= self._most:
                self._look_again()
                continue
            try:
                self._apply_repair(asked[repaired.workload], repaired, failures)
            except Exception as exc:  # noqa: BLE001 - an error of one owner; the others recover
                self._faults.record("recovery", repaired.workload, exc)

    def _find_running(self, owner: str, failures: Failures) -> Running | None:
        try:
            return self.census.find(owner, failures.has_failed) if self._is_open(owner) else None
        except Exception as exc:  # noqa: BLE001 - an error of one owner; the others recover
            self._faults.record("recovery", owner, exc)
            return None

    def _find_repairs(self, hit: Sequence[Running], failures: Failures) -> Sequence[Repaired]:
        """One plan for all; if planning fails with an error for one owner, one plan for the others."""
        fleet = self._state.fleet
        failure = Failure(nodes=failures.nodes & fleet.snapshot.index.keys())

        def plan(running: Sequence[Running]) -> Sequence[Repaired] | None:
            try:
                return plan_recovery(fleet.fitter, fleet.tree, running, failure).repairs
            except Exception as exc:  # noqa: BLE001 - counted for the owner that it concerns
                self._faults.record("recovery", running[0].name if len(running) == 1 else "", exc)
                return None

        found = plan(hit)
        if found is None:
            found = plan([running for running in hit if plan((running,)) is not None])
        return found or ()

    def _is_open(self, owner: str) -> bool:
        """Whether recovery plans for the owner now.

        The reconciler plans a run again of which no pod has found its place.
        """
        if owner in self._left_alone or self._executor.is_busy(owner):
            return False
        run = self._state.runs.get(owner)
        return run is None or any(pod.spec.nodeName for pod in self._state.pods_of(run).values())

    def _failed_since(self, running: Running, failures: Failures) -> float:
        """When the first of the failures that affect it began."""
        nodes = {place.node for place in self._list_places(running.name) if failures.has_failed(place)}
        times = [at for node in nodes if (at := self._detector.failed_since(node)) is not None]
        return self._lacking.get(running.name, min(times, default=self._clock()))

    def _apply_repair(self, running: Running, repaired: Repaired, failures: Failures) -> None:
        owner = repaired.workload
        since = self._failed_since(running, failures)
        if owner not in self._counted:
            self._counted.add(owner)
            self._on_lost({place.node for place in self._list_places(owner) if failures.has_failed(place)})
        cause = failures.describe(self._list_places(owner), self._state.reader.find_fault)
        if repaired.outcome is Outcome.LEFT_ALONE:
            self._left_alone.add(owner)
            words = f"{cause}. recoveryPolicy is None, so nothing is moved"
            self._executor.record_event(owner, "Warning", LEFT_ALONE, words)
            self._set_trouble(owner, LEFT_ALONE, words)
            return
        if repaired.outcome is Outcome.WAITS:
            pods = format_count(repaired.missing, "pod")
            words = f"{cause}. {pods} must move, but no free GPUs meet the requirements; waiting for some"
            if owner not in self._lacking:
                self._executor.record_event(owner, "Warning", Reason.RECOVERING, words)
            self._wait_for_room(running, since)
            self._set_trouble(owner, NO_CAPACITY, words)
            return
        self._stop_waiting(owner)
        if repaired.missing:
            self._wait_for_room(running, since)
            self._set_trouble(
                owner,
                NO_CAPACITY,
                f"{cause}. No free GPUs for {format_count(repaired.missing, 'pod')} that must move; waiting for some",
            )
        else:
            self._stuck.pop(owner, None)  # from here on the recovery reports it
        self._metrics.recovery_plan_seconds.observe(self._clock() - since)
        self._metrics.recoveries.labels(repaired.outcome).inc()
        self._executor.execute_repair(repaired, f"{cause}. Recovery: {describe_moves(repaired)}", since, running.gang)

    def move_seats(self, owner: str, seats: Mapping[int, str], cause: str) -> None:
        """Move seats of a workload (number -> node) whose nodes do not take their pods; the other pods stay."""
        run = self._state.runs.get(owner)
        if self._executor.is_busy(owner):
            asyncio.get_running_loop().call_later(_AGAIN_S, self.move_seats, owner, seats, cause)
            return
        known = run.seats if run is not None else ()
        there = {number for number, node in seats.items() if number < len(known) and known[number].node == node}
        running = self.census.find(owner) if there else None
        if running is None:
            return
        members = tuple(
            _mark_leaving(member, seats[int(member.name)] if int(member.name) in there else "")
            for member in running.members
        )
        fleet = self._state.fleet
        planned = plan_recovery(fleet.fitter, fleet.tree, (replace(running, members=members),), Failure())
        for repaired in planned.repairs:
            if repaired.moves:
                self._metrics.recoveries.labels(repaired.outcome).inc()
                self._executor.execute_repair(
                    repaired, f"{cause}. Recovery: {describe_moves(repaired)}", self._clock(), running.gang
                )

    def _wait_for_room(self, running: Running, since: float) -> None:
        """Let the owner wait for room before all others of its priority; preemption may make room for it."""
        self._lacking[running.name] = since
        ask = gang_group.ask_for_lost(running, self._state.fleet, *self._name_in_requests(running.name))
        if ask is not None:
            self._planner.request_place(ask)

    def _name_in_requests(self, owner: str) -> tuple[str, str]:
        """(namespace, name) of the owner in its requests: a workload's own name, a gang's with its namespace."""
        owners = self._state.owners
        is_gang = isinstance(owners.resolve(owner), ExternalGangOwner)
        return owners.namespace(owner), owners.key(owner) if is_gang else owners.key(owner).rpartition("/")[2]

    def _stop_waiting(self, owner: str) -> None:
        """The owner no longer waits for a place, or has found one."""
        if self._lacking.pop(owner, None) is not None:
            lost = Replacement(owner).text
            self._planner.forget(lost)
            self._state.ledger.release_seats(lost)


def _mark_leaving(member: Member, node: str) -> Member:
    """The member; with a node, it must leave that node."""
    if not node:
        return member
    constraints = member.request.constraints
    constraints = replace(constraints, avoid=constraints.avoid | {node})
    return replace(member, request=replace(member.request, constraints=constraints), failed=True)
