"""Gives the pods of externally created gangs their seats, and takes seats back."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from kgwe import errors
from kgwe.cluster.gangs import offered_seats
from kgwe.cluster.gangs.gang_lifecycle import GangEvent
from kgwe.cluster.gangs.offered_seats import OfferedSeat
from kgwe.cluster.workload import placement_annotations
from kgwe.kube.api import timestamp
from kgwe.placement.planning.planner import pod_amounts

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kgwe.cluster.gangs.drained_seats import DrainedSeats
    from kgwe.cluster.gangs.gang_group import Group
    from kgwe.cluster.gangs.leader_actions import Leadership
    from kgwe.cluster.gangs.pod_requests import PodRequests
    from kgwe.cluster.registry.pod_booking import PodBooking
    from kgwe.kube.api import core
    from kgwe.placement.live.holding import Holding
    from kgwe.placement.live.ledger import Ledger
    from kgwe.placement.planning.plan import Plan


class GangSeating:
    """Seats of gangs."""

    def __init__(
        self,
        *,
        ledger: Ledger,
        booking: PodBooking,
        requests: PodRequests,
        drained: DrainedSeats,
        leadership: Leadership,
    ) -> None:
        self._ledger = ledger
        self._booking = booking
        self._requests = requests
        self._drained = drained
        self._leadership = leadership

    # --- pods get seats ---------------------------------------------------------------------------------

    def assign_plan(self, owner: str, group: Group, plan: Plan) -> None:
        """Give every pod its seat of a plan that the planner has reserved."""
        group.makes_way = False
        if group.kept:
            self._drained.release_all(owner, group)  # the plan has a place for every pod
        group.lost.clear()
        pods = plan.pods or (group.members if plan.gang is None else ())
        for number, uid in enumerate(list(pods), plan.start):
            self._give_seat(owner, group, uid, number)
        if group.gang is not None and plan.gang is not None:
            group.start = plan.start
            for pod, seat in group.gang.assign_pods(plan.gang):
                self._give_seat(owner, group, pod.metadata.uid, plan.start + seat.rank)
        group.advance(GangEvent.PLAN_ASSIGNED)

    def _give_seat(self, owner: str, group: Group, uid: str, number: int) -> None:
        if uid not in group.members:
            return
        pod, _ = group.members[uid]
        group.revoked.discard(uid)
        group.seats[uid] = number
        self._leadership.actions.assign_seat(owner, pod, number)
        if pod.spec.nodeName:  # bound while it was planned
            self._booking.book(pod)

    def assign_unwritten(self, owner: str, group: Group) -> None:
        """Assign seats again that an earlier term of this process decided and did not write."""
        for uid, (pod, _) in group.members.items():
            unwritten = not pod.spec.nodeName and placement_annotations.SEAT_ANNOTATION not in pod.metadata.annotations
            if unwritten and (number := group.seats.get(uid)) is not None:
                self._leadership.actions.assign_seat(owner, pod, number)

    def seat_waiting(self, owner: str, group: Group) -> None:
        """Give seats that are reserved for them to pods that were created again, or created late."""
        self._seat_returning(owner, group)
        self._seat_latecomers(owner, group)
        self._seat_uninformed(owner, group)

    def _seat_uninformed(self, owner: str, group: Group) -> None:
        """Pods that were created without the seats that were offered to their gang get them now."""
        for uid, number in offered_seats.match_waiting(group, time.monotonic()):
            pod, place = group.members[uid][0], self._ledger.reserved_seat(owner, number)
            with contextlib.suppress(errors.Permanent):  # a pod whose request cannot be read waits, like its gang
                if place is not None and place.amounts == pod_amounts(self._requests.request_of(pod)):
                    group.take_seat(uid, number)
                    self._leadership.actions.assign_seat(owner, pod, number)

    def _seat_returning(self, owner: str, group: Group) -> None:
        """Pods created in place of lost ones get the seats that were kept for them."""
        for uid, (pod, member) in group.members.items():
            if not group.awaited or uid in group.seats or pod.spec.nodeName or pod.metadata.deletionTimestamp:
                continue
            alike = [number for number, was in group.awaited.items() if was.role == member.role]
            alike = [number for number in alike if number not in group.kept or self._drained.is_usable(owner, number)]
            own = [number for number in alike if group.awaited[number].index == member.index]
            number = next(iter([*own, *alike]), None)
            if number is not None:
                del group.awaited[number]
                self._drained.hand_over(owner, group, number)
                group.take_seat(uid, number)
                self._leadership.actions.assign_seat(owner, pod, number)

    def _seat_latecomers(self, owner: str, group: Group) -> None:
        """Pods created after the others were planned get the seats that were planned for them."""
        if group.gang is None or not group.seats:
            return
        taken = set(group.seats.values())
        for uid, (pod, member) in group.members.items():
            rank = None if uid in group.seats or pod.spec.nodeName else group.gang.rank_of(member)
            if rank is None or group.start + rank in taken:
                continue
            number = group.start + rank
            if self._ledger.reserved_seat(owner, number) is not None:
                group.take_seat(uid, number)
                taken.add(number)
                self._leadership.actions.assign_seat(owner, pod, number)

    # --- seats are offered to pods that are being created --------------------------------------------------

    def offer(self, group: Group, seats: Mapping[int, int | None]) -> None:
        """Keep reserved seats for pods that are being created. `seats`: number -> index of its pod; None: any pod."""
        group.offered = {number: OfferedSeat(index) for number, index in seats.items()}
        group.advance(GangEvent.PLAN_ASSIGNED)

    def end_offer(self, owner: str, group: Group) -> int:
        """Release the offered seats for which no pod came; returns how many these are."""
        unclaimed = list(group.offered)
        group.offered.clear()
        for number in unclaimed:
            self._ledger.release_seat(owner, number)
        return len(unclaimed)

    # --- seats are taken back ---------------------------------------------------------------------------

    def remove_pod(self, owner: str, group: Group, uid: str) -> None:
        """Remove a pod that is gone from its gang; its seat is kept if the pod was drained."""
        if uid in group.seats:
            self._note_lost(group, uid)
        pod, member = group.members.pop(uid)
        number = group.seats.pop(uid, None)
        if number is None:
            return
        if self._drained.reserve_if_drained(owner, group, number, pod, member):
            group.advance(GangEvent.SEATS_KEPT)
        else:
            self._ledger.release_seat(owner, number)

    def _note_lost(self, group: Group, uid: str) -> None:
        """The pod leaves its seat: the gang may ask for as much again before other workloads."""
        with contextlib.suppress(errors.Permanent):
            group.lost[group.seats[uid]] = self._requests.request_of(group.members[uid][0])

    def forget_plan(self, group: Group, plan: Plan) -> None:
        """Take back the seats of a plan that could not be carried out."""
        made = range(plan.start, plan.start + len(plan.seats))
        for uid in [uid for uid, number in group.seats.items() if number in made]:
            self._note_lost(group, uid)
            del group.seats[uid]
        group.advance(GangEvent.PLAN_FAILED)

    def move_seats(
        self, owner: str, group: Group, places: Mapping[int, Holding], restarted: Iterable[int]
    ) -> list[str]:
        """Move seats; these and the `restarted` ones wait for new pods. Returns the pods that have them now."""
        self._ledger.reserve_seats(owner, {**self._ledger.reserved_seats(owner), **places})
        numbers = {*places, *restarted}
        left = [uid for uid, number in group.seats.items() if number in numbers]
        for uid in left:
            self._note_lost(group, uid)
            group.awaited[group.seats.pop(uid)] = group.members[uid][1]
        group.advance(GangEvent.SEATS_KEPT)
        return left

    def give_up(self, owner: str, group: Group) -> None:
        """Release the seats for which no pods came."""
        unclaimed = list(group.awaited)
        group.awaited.clear()
        self._drained.forget(owner, group)
        group.advance(GangEvent.SEATS_GIVEN_UP)
        for number in unclaimed:
            self._ledger.release_seat(owner, number)

    def release_unbound(self, owner: str, group: Group, reason: str) -> list[core.Pod]:
        """Release the seats that no bound pod has; returns the pods that had them."""
        pods = group.unbound
        bound = {number for uid, number in group.seats.items() if group.members[uid][0].spec.nodeName}
        unbound = set(self._ledger.reserved_seats(owner)) - bound
        group.seats = {uid: number for uid, number in group.seats.items() if number in bound}
        group.awaited.clear()
        group.offered.clear()
        group.lost.clear()
        self._drained.forget(owner, group)
        for pod in pods:
            group.revoked.add(pod.metadata.uid)
            self._requests.forget_pod(pod.metadata.uid)  # what it asks for now includes the node it is pinned to
        group.release_reason = group.problem = reason
        group.last_since = timestamp.seconds()
        group.asked_about.clear()
        group.advance(GangEvent.SEATS_RELEASED)
        self._leadership.actions.withdraw_request(owner)
        for number in unbound:
            self._ledger.release_seat(owner, number)
        return pods
