"""Adopts the run of each workload and keeps its seats in the ledger in step with it.

A Job or Deployment claims by its label to be the run of a workload. Of several that claim it one is adopted; its plan
gives the workload its seats.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import structlog

from kgwe import errors
from kgwe.cluster.workload import metadata_keys, placement_annotations, runs
from kgwe.model.units import amounts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kgwe.cluster.registry.announcer import Announcer
    from kgwe.cluster.registry.dra_allocations import DraAllocations
    from kgwe.cluster.registry.fleet_state import FleetState
    from kgwe.cluster.registry.pod_booking import PodBooking
    from kgwe.cluster.registry.pod_index import PodIndex
    from kgwe.cluster.registry.run_table import RunTable
    from kgwe.cluster.registry.workload_registry import WorkloadRegistry
    from kgwe.cluster.workload.runs import Run
    from kgwe.cluster.workload.signatures import Signer
    from kgwe.cluster.workload.workload import Details
    from kgwe.kube.api import core
    from kgwe.kube.client.informer import Change
    from kgwe.placement.live.holding import Holding
    from kgwe.placement.planning.plan import Seat as PlannedSeat

log = structlog.get_logger(__name__)


class RunRegistry:
    """Runs, the workloads they belong to, and their seats."""

    def __init__(
        self,
        *,
        fleet_state: FleetState,
        workloads: WorkloadRegistry,
        table: RunTable,
        pods: PodIndex,
        claims: DraAllocations,
        booking: PodBooking,
        announcer: Announcer,
        signer: Signer | None,
    ) -> None:
        self._fleet_state = fleet_state
        self._ledger = fleet_state.ledger
        self._workloads = workloads
        self._table = table
        self._pods = pods
        self._claims = claims
        self._booking = booking
        self._announcer = announcer
        self._signer = signer
        self._claimants: dict[str, dict[str, Run]] = {}  # workload uid -> runs that claim to be its own
        # workload uid -> plan that its run does not show yet, and the details of that plan
        self._moving: dict[str, tuple[tuple[PlannedSeat, ...], Details | None]] = {}

    # --- adoption ---------------------------------------------------------------------------------------

    def set_run(self, change: Change[Any], read: Callable[[Any], Run]) -> None:
        """A Job or Deployment was added, changed or removed. Its label may be edited like any other."""
        if runs.is_irrelevant(change.old, change.new):
            return
        uids = [obj.metadata.labels.get(metadata_keys.UID_LABEL, "") if obj else "" for obj in (change.old, change.new)]
        key = f"{read.__name__}/{change.key}"
        if change.new is None and change.old is not None:
            self._table.forget_orphan(change.old.metadata.uid)
        for uid in dict.fromkeys(uid for uid in uids if uid):
            claimants = self._claimants.setdefault(uid, {})
            before = claimants.pop(key, None)
            if change.new is not None and uid == uids[1]:
                try:
                    claimants[key] = runs.drop_unsigned_plan(read(change.new), self._signer)
                except errors.Permanent as exc:
                    log.warning("run_unreadable", name=change.key, error=str(exc))
            if not claimants:
                del self._claimants[uid]
            self.adopt_run(uid)
            if runs.has_changed(before, claimants.get(key)):
                self.touch(uid)

    def adopt_claimed(self, uid: str) -> None:
        """Adopt a run for a new workload, if any run claims to be its own."""
        if uid in self._claimants:
            self.adopt_run(uid)

    def abandon_run(self, uid: str) -> Run | None:
        """The workload is gone: release its seats; returns the run it had."""
        run = self._table.runs.get(uid)
        self._moving.pop(uid, None)
        self.adopt_run(uid)
        return run

    def adopt_run(self, uid: str) -> None:
        """Choose the run of the workload among those that claim to be its own, and reserve its seats."""
        workload = self._workloads.find(uid)
        run = runs.choose_run(self._claimants.get(uid, {}).values(), workload) if workload else None
        workload = self._workloads.keep_decision_of(uid, run)
        before = self._table.runs.pop(uid, None)
        if before is not None and (run is None or before.meta.uid != run.meta.uid):
            self._moving.pop(uid, None)
            self._table.owners.pop(runs.maker_key(before), None)
            self._ledger.release_seats(uid)
            self._rebook_pods(runs.maker_key(before))
        if run is None or workload is None:
            return
        run = self._table.runs[uid] = self._with_move(uid, runs.limit_to_workload(run, workload))
        maker = runs.maker_key(run)
        is_new = maker not in self._table.owners
        self._table.owners[maker] = uid
        seats, had = self.wanted_seats(run), self._ledger.reserved_seats(uid)
        self._ledger.reserve_seats(uid, seats)
        if is_new or before is None or had != seats:
            self._rebook_pods(maker)
        if uid in self._moving:
            return
        if not self._has_bound(run):
            new = [number for number, seat in seats.items() if number not in had or had[number].node != seat.node]
            self._ledger.drop_unfit_seats(uid, new)
        elif before is not None and before.seats == run.seats:
            # Seats it gave up when it was scaled down: their room may be in use by now.
            self._ledger.drop_unfit_seats(uid, seats.keys() - had.keys())

    def _rebook_pods(self, maker: str) -> None:
        """Count the pods of a run again: it was adopted or abandoned, or its seats changed."""
        owner = self._table.owner_of_maker(maker)
        for pod in list(self._pods.of_maker(maker).values()):
            if owner:
                self._announcer.external_pod_changed(pod.metadata.uid, None)
            if pod.spec.nodeName:
                self._booking.book(pod)
            elif owner:
                self.announce_unseated(owner, pod)

    def touch(self, uid: str) -> None:
        """Announce that something the workload depends on changed."""
        key = self._workloads.keys.get(uid)
        if key is not None:
            self._announcer.workload_touched(key)

    # --- seats ------------------------------------------------------------------------------------------

    def drop_unfit_seats(self) -> None:
        """Drop restored seats for which there is no room: nodes and pods may have been read after the plans.

        Of a run with bound pods, recovery deals with the seats on failed hardware, and on nodes that pods are being
        moved away from.
        """
        _ = self._fleet_state.fleet  # brought up to date
        left_by_moves = self._nodes_left_by_moves()
        for owner in list(self._ledger.owners()):
            run = self._table.runs.get(owner)
            if run is None:
                continue
            seats = self._ledger.reserved_seats(owner)
            spared = {seat.node for seat in seats.values()} if self._has_bound(run) else set()
            spared = {node for node in spared if node in left_by_moves or self._has_failures(node)}
            self._ledger.drop_unfit_seats(owner, [number for number, seat in seats.items() if seat.node not in spared])

    def _nodes_left_by_moves(self) -> set[str]:
        """Nodes with a bound pod whose seat is elsewhere by now."""
        return {
            pod.spec.nodeName
            for run in self._table.runs.values()
            for pod in self._pods.of_run(run).values()
            if pod.spec.nodeName
            and (seat := self._booking.seat_of(pod)) is not None
            and self._ledger.seat_of(pod.metadata.uid) != seat
        }

    def _has_failures(self, node: str) -> bool:
        reader = self._fleet_state.reader
        return bool(reader.find_fault(node) or reader.unhealthy_gpus(node))

    def settle_seats(self, uid: str) -> int:
        """Release seats beyond the scale of the run, and reserve those it may have again if there is room.

        Returns how many seats it lacks.
        """
        run = self._table.runs[uid]
        had = set(self._ledger.reserved_seats(uid))
        if self.wanted_seats(run).keys() == had:
            return 0
        self.adopt_run(uid)
        run, has = self._table.runs[uid], self._ledger.reserved_seats(uid).keys()
        if has - had:
            self.announce_all_unseated(uid)
        return len(self.wanted_seats(run).keys() - has)

    def wanted_seats(self, run: Run) -> dict[int, Holding]:
        """Seats that the run should have at its present scale."""
        return run.reserved_seats(*self._occupied_seats(run))

    def _occupied_seats(self, run: Run) -> tuple[set[int], set[int]]:
        """Seats of a scaled-down run that bound pods have, and seats that its other pods were created for.

        A pod keeps a seat beyond the scale of the run only if it is bound and takes the GPUs of the seat: then they
        count against the quota of its namespace.
        """
        occupied: set[int] = set()
        expected: set[int] = set()
        if not run.is_scaled_down:
            return occupied, expected
        gpus = amounts.filter_gpus(run.wanted)
        for pod in self._pods.of_run(run).values():
            if pod.metadata.deletionTimestamp is not None or (run.serves and placement_annotations.is_gated(pod)):
                continue
            wanted = self._claims.sum_requests(pod) if pod.spec.nodeName else {}
            is_whole = bool(wanted) and all(wanted.get(name, 0) >= count for name, count in gpus.items())
            seat = self._booking.seat_of(pod)
            if seat is not None:
                (occupied if is_whole else expected).add(seat[1])
        return occupied, expected

    def held_seats(self, run: Run) -> tuple[PlannedSeat, ...]:
        """Seats of the run without those it gave up when it was scaled down."""
        if not run.is_scaled_down:
            return run.seats
        held = self.wanted_seats(run).keys() | run.done
        return tuple(seat for number, seat in enumerate(run.seats) if number in held) or run.seats

    def taken_seats(self, owner: str) -> set[int]:
        """Seats of a run that live pods have; a gated pod has none yet."""
        run = self._table.runs.get(owner)
        pods = self._pods.of_run(run).values() if run else ()
        return {
            run.seat_of(pod)
            for pod in pods
            if run and pod.metadata.deletionTimestamp is None and not placement_annotations.is_gated(pod)
        }

    def _has_bound(self, run: Run) -> bool:
        """Whether pods of the run are bound: its plan was executed, and recovery handles its losses."""
        return any(pod.spec.nodeName and self._booking.seat_of(pod) for pod in self._pods.of_run(run).values())

    def move_seats(self, uid: str, seats: tuple[PlannedSeat, ...] | None, details: Details | None = None) -> None:
        """Give the run these seats before its object shows them; None: the seats that its object shows."""
        if seats is None:
            self._moving.pop(uid, None)
        else:
            self._moving[uid] = seats, details
        self.adopt_run(uid)

    def _with_move(self, uid: str, run: Run) -> Run:
        seats, details = self._moving.get(uid, (None, None))
        if seats is None or seats == run.seats:
            self._moving.pop(uid, None)
            return run
        return replace(run, seats=seats, details=details)

    # --- pods without a seat ----------------------------------------------------------------------------

    def list_unseated(self, owner: str) -> Iterator[core.Pod]:
        """Gated pods of the owner that wait for a seat."""
        run = self._table.runs.get(owner)
        for pod in list(self._pods.of_run(run).values()) if run else ():
            if not pod.spec.nodeName and _waits_for_seat(pod):
                yield pod

    def announce_all_unseated(self, owner: str) -> None:
        """A seat of the owner came free: announce its pods that wait for one."""
        for pod in self.list_unseated(owner):
            self._announcer.pod_unseated(owner, pod)

    def announce_unseated(self, owner: str, pod: core.Pod) -> None:
        """Announce an unbound pod of the owner if it waits for a seat."""
        if _waits_for_seat(pod):
            self._announcer.pod_unseated(owner, pod)


def _waits_for_seat(pod: core.Pod) -> bool:
    return placement_annotations.is_gated(pod) and pod.metadata.deletionTimestamp is None
