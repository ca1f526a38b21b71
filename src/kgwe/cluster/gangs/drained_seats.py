"""Reserves the seats of drained pods of gangs for the pods that replace them.

The owner creates the next pod some time later (a Job after ten seconds), and the node may be uncordoned before that:
the seat stays reserved, so nothing else gets the GPUs. While the node takes no pods, the new pod is planned elsewhere,
before other workloads of its priority. If that finds no room, the pod gets its old seat back with the node.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Final

from kgwe.cluster.gangs.gang_lifecycle import GangEvent

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kgwe.cluster.gangs.gang_group import Group
    from kgwe.cluster.gangs.leader_actions import Leadership
    from kgwe.cluster.registry.fleet_state import FleetState
    from kgwe.kube.api import core
    from kgwe.kube.dialects import Membership

#: seconds that a seat stays reserved while no pod of the gang waits for it
KEEP_S: Final = 120.0
# The condition that Kubernetes sets on a pod it is about to evict, and the reason that does not mean a drain.
_DISRUPTED: Final = "DisruptionTarget"
_PREEMPTED: Final = "PreemptionByScheduler"


def is_drained(pod: core.Pod, takes_pods: Callable[[str], bool], *, alone: bool) -> bool:
    """Whether a removed pod was drained and its owner creates another.

    `takes_pods`: whether a node accepts pods; `alone`: no other pod of its gang is left. Pods deleted from a cordoned
    node count as drained while others of the gang stay, because `kubectl drain` can delete instead of evict.
    """
    meta = pod.metadata
    if meta.deletionTimestamp is None or meta.controller is None or not pod.spec.nodeName:
        return False
    said = [c.reason for c in pod.status.conditions if c.type == _DISRUPTED and c.status == "True"]
    if said:
        return _PREEMPTED not in said
    return not alone and not takes_pods(pod.spec.nodeName)


class DrainedSeats:
    """Reserved seats of drained pods, over all gangs."""

    def __init__(
        self,
        *,
        fleet_state: FleetState,
        groups: Mapping[str, Group],
        leadership: Leadership,
        drop: Callable[[str], None],
    ) -> None:
        """`groups`: owner -> gang; `drop`: forget a gang of which nothing is left."""
        self._fleet_state = fleet_state
        self._ledger = fleet_state.ledger
        self._groups = groups
        self._leadership = leadership
        self._drop = drop
        self.owners: set[str] = set()

    def reserve_if_drained(self, owner: str, group: Group, number: int, pod: core.Pod, member: Membership) -> bool:
        """Reserve the seat of a removed pod if the pod was drained.

        Not on a failed node, which is for recovery. Not of a gang that is being preempted.
        """
        if group.makes_way or self._fleet_state.reader.find_fault(pod.spec.nodeName) is not None:
            return False
        if not is_drained(pod, self._fleet_state.accepts_pods, alone=not group.members):
            return False
        group.reserve_seat(number, member)
        self.owners.add(owner)
        self._start_timer(owner, number)
        return True

    def restart_timers(self, owner: str, group: Group) -> None:
        """A term begins: restart the timers of the reserved seats."""
        for number in group.kept:
            self._start_timer(owner, number)

    def _start_timer(self, owner: str, number: int) -> None:
        self._leadership.actions.call_later(KEEP_S, functools.partial(self._end_reservation, owner, number))

    def _end_reservation(self, owner: str, number: int) -> None:
        """The time of a reserved seat is over; it starts again while pods of the gang wait for a place."""
        group = self._groups.get(owner)
        if group is None or number not in group.kept:
            return
        if group.unseated:
            self._start_timer(owner, number)
        else:
            self.release_all(owner, group)

    def is_usable(self, owner: str, number: int) -> bool:
        """Whether the node of the seat accepts pods."""
        place = self._ledger.reserved_seat(owner, number)
        return place is not None and self._fleet_state.accepts_pods(place.node)

    def hand_over(self, owner: str, group: Group, number: int) -> None:
        """A pod has the seat now: it is no longer reserved."""
        group.kept.discard(number)
        if not group.kept:
            self.owners.discard(owner)

    def release_all(self, owner: str, group: Group) -> None:
        """Release all seats that are reserved for drained pods of the gang."""
        kept = list(group.kept)
        for number in kept:
            group.awaited.pop(number, None)
        self.forget(owner, group)
        if not group.awaited:
            group.advance(GangEvent.SEATS_GIVEN_UP)
        for number in kept:
            self._ledger.release_seat(owner, number)
        if group.is_empty:
            self._drop(owner)

    def forget(self, owner: str, group: Group) -> None:
        group.kept.clear()
        self.owners.discard(owner)
