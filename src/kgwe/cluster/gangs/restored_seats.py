"""Restores seats of externally created gangs from what KGWE wrote on their pods, in an earlier term or elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kgwe.cluster.workload import placement_annotations, signatures
from kgwe.kube.translate import podspec
from kgwe.model.devices import assignment
from kgwe.placement.live.holding import Holding

if TYPE_CHECKING:
    from kgwe.cluster.gangs.gang_group import Group
    from kgwe.cluster.registry.fleet_state import FleetState
    from kgwe.cluster.registry.pod_booking import PodBooking
    from kgwe.cluster.registry.pod_index import PodIndex
    from kgwe.kube.api import core


class SeatRestorer:
    """Reads seats from pods."""

    def __init__(self, fleet_state: FleetState, pods: PodIndex, booking: PodBooking) -> None:
        self._ledger = fleet_state.ledger
        self._pods = pods
        self._booking = booking

    def restore_seat(self, owner: str, group: Group, pod: core.Pod) -> core.Pod:
        """Give the pod the seat in its annotation; returns the pod without the annotation if it does not get it.

        A seat belongs to the first pod that is seen in it, and needs room on its node unless the pod is bound there.
        """
        uid, said = pod.metadata.uid, placement_annotations.seat_of(pod.metadata.annotations)
        if uid in group.revoked and said is not None and not pod.spec.nodeName:
            return signatures.strip_decisions(pod)  # what the watch shows is older than the release of its seat
        group.revoked.discard(uid)
        if said is None or uid in group.seats or (said[0] == owner and said[1] in group.awaited):
            return pod
        node = (
            pod.spec.nodeName
            or placement_annotations.pinned_node(pod.spec)
            or signatures.signed_node(pod.metadata.annotations)
        )
        if said[0] != owner or not node or said[1] in group.seats.values():
            return signatures.strip_decisions(pod)
        given = assignment.parse_planned(pod.metadata.annotations)
        holding = Holding(node, podspec.sum_requests(pod.spec), given.gpus, given.slices)
        if not self._ledger.restore_seat(owner, said[1], holding, is_bound=bool(pod.spec.nodeName)):
            return signatures.strip_decisions(pod)
        group.take_seat(uid, said[1])
        if pod.spec.nodeName:
            self._booking.book(pod)
        return pod

    def check_seats(self, owner: str, group: Group) -> None:
        """Check the seats again after all nodes and pods have been read, and restore seats that fit by now."""
        seated = {group.seats[uid]: uid for uid in group.members if uid in group.seats}
        for number in self._ledger.drop_unfit_seats(owner, list(seated)):
            uid = seated[number]
            del group.seats[uid]
            pod, member = group.members[uid]
            group.members[uid] = (signatures.strip_decisions(pod), member)
        for uid, (_, member) in list(group.members.items()):
            known = self._pods.by_uid.get(uid)
            if (
                known is not None
                and uid not in group.seats
                and placement_annotations.SEAT_ANNOTATION in known.metadata.annotations
            ):
                group.members[uid] = (self.restore_seat(owner, group, known), member)
