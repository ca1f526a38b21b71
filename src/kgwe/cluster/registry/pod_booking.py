"""Counts bound pods in the ledger, each in its seat if it has one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import structlog

from kgwe import errors
from kgwe.cluster.workload import runs
from kgwe.model.devices import assignment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kgwe.cluster.registry.dra_allocations import DraAllocations
    from kgwe.cluster.registry.fleet_state import FleetState
    from kgwe.cluster.registry.pod_index import PodIndex
    from kgwe.cluster.registry.run_table import RunTable
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
    ) -> None:
        self._fleet_state = fleet_state
        self._pods = pods
        self._run_table = run_table
        self._claims = claims
        self._external_seats = external_seats
        self._report_error = report_error

    def seat_of(self, pod: core.Pod) -> Seat | None:
        """(owner, number) of the seat that the pod was created for."""
        run = self._run_table.run_of(pod)
        if run is None:
            return self._external_seats.seat(pod.metadata.uid)
        number = run.seat_of(pod)
        return (self._run_table.owners[runs.maker_of(pod)], number) if number >= 0 else None

    def book(self, pod: core.Pod) -> None:
        """Count a bound pod, in its seat if it has one."""
        meta = pod.metadata
        try:
            wanted, claimed = self._claims.requested(pod), self._claims.settle(pod)
            given = assignment.parse_planned(meta.annotations)
            held = claimed or self._fleet_state.reader.reported_devices(pod.spec.nodeName, meta)
            ledger = self._fleet_state.ledger
            ledger.set_pod(meta.uid, pod.spec.nodeName, wanted, self.seat_of(pod), given=given, observed=held)
        except errors.Permanent as exc:
            # Never seen from a real API server. A guess of its size would be worse than this message.
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
