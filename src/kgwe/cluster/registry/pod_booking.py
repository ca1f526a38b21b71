"""Counts bound pods in the ledger, each in its seat if it has one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import structlog

from kgwe import errors
from kgwe.cluster.workload import placement_annotations, runs
from kgwe.model.devices import assignment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kgwe.cluster.registry.dra_allocations import DraAllocations
    from kgwe.cluster.registry.fleet_state import FleetState
    from kgwe.cluster.registry.pod_index import PodIndex
    from kgwe.cluster.registry.run_table import RunTable
    from kgwe.cluster.workload.runs import Run
    from kgwe.cluster.workload.signatures import Signer
    from kgwe.kube.api import core
    from kgwe.placement.live.ledger import Seat

log = structlog.get_logger(__name__)


class SeatLookup(Protocol):
    """Seats of pods that no workload owns."""

    def seat(self, uid: str) -> Seat | None:
        """(owner, number) of the pod's seat."""


class PodBooking:
    """Translates pods to bookings of the ledger."""

    def __init__(
        self,
        *,
        fleet_state: FleetState,
        pods: PodIndex,
        run_table: RunTable,
        claims: DraAllocations,
        external_seats: SeatLookup,
        report_error: Callable[[str, str, Exception], None],
        signer: Signer | None,
    ) -> None:
        """`signer`: checks the seats of pods; without one (a tool that only shows the cluster) all seats count."""
        self._fleet_state = fleet_state
        self._pods = pods
        self._run_table = run_table
        self._claims = claims
        self._external_seats = external_seats
        self._report_error = report_error
        self._signer = signer

    def seat_of(self, pod: core.Pod) -> Seat | None:
        """(owner, number) of the seat that the pod was created for.

        A user may create a pod that names the Job of a workload as its owner. Such a pod has no seat.
        """
        run = self._run_table.run_of(pod)
        if run is None:
            return self._external_seats.seat(pod.metadata.uid)
        owner, number = self._run_table.owners[runs.maker_of(pod)], run.seat_of(pod)
        if self._is_signed(pod, run, owner, number):
            return (owner, number) if number >= 0 else None
        # A bound pod keeps its seat if its annotations are edited.
        held = self._fleet_state.ledger.seat_of(pod.metadata.uid)
        return held if held is not None and held[0] == owner else None

    def _is_signed(self, pod: core.Pod, run: Run, owner: str, number: int) -> bool:
        """Whether KGWE gave the pod this seat, or will give it one: its gate is still there."""
        if self._signer is None or not run.is_signed or placement_annotations.is_gated(pod):
            return True
        return self._signer.has_signed_seat(pod, owner, number, is_single=len(run.seats) == 1)

    def book(self, pod: core.Pod) -> None:
        """Count a bound pod, in its seat if it has one."""
        meta = pod.metadata
        try:
            wanted, claimed = self._claims.sum_requests(pod), self._claims.settle(pod)
            given = assignment.parse_planned(meta.annotations)
            held = claimed or self._fleet_state.reader.reported_devices(pod.spec.nodeName, meta)
            ledger = self._fleet_state.ledger
            ledger.set_pod(meta.uid, pod.spec.nodeName, wanted, self.seat_of(pod), given=given, observed=held)
        except errors.Permanent as exc:
            # Never seen from a real API server. To guess the size of the pod would be worse than to leave it out.
            log.warning("pod_request_unreadable", pod=meta.key, error=str(exc))
        except Exception as exc:
            log.exception("pod_not_counted", pod=meta.key)
            self._report_error("count", meta.key, exc)

    def book_all(self, pods: Iterable[core.Pod]) -> None:
        for pod in pods:
            self.book(pod)

    def book_node(self, node: str) -> None:
        """Count the pods of a node again: its kubelet reports other devices for them."""
        for uid in self._fleet_state.ledger.fleet.holders(node):
            pod = self._pods.by_uid.get(uid)
            if pod is not None and pod.spec.nodeName == node:
                self.book(pod)
