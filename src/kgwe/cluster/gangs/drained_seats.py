"""Pods of gangs that a drain took from their nodes: their seats are kept for the pods made in their place.

A gang that loses a member to a drain has the same claim to its slot as one that loses a node. The owner makes the next
pod some time later (a Job after ten seconds), and the node may take pods again before that: the seat stays reserved
meanwhile, so nothing else gets the GPUs. While the node takes no pods, the new pod is planned elsewhere, before other
work of its priority; when that finds no room, the pod gets its old seat back with the node.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kgwe.cluster.gangs.gang_group import Group
    from kgwe.cluster.state.cluster_state import ClusterState
    from kgwe.kube.api import core
    from kgwe.kube.dialects import Membership

#: seconds that a seat is kept while no pod of the gang waits for it
KEEP_S: Final = 120.0
# The condition Kubernetes sets on a pod that it is about to evict, and the reason of it that is no drain.
_DISRUPTED: Final = "DisruptionTarget"
_PREEMPTED: Final = "PreemptionByScheduler"


def is_drained(pod: core.Pod, takes_pods: Callable[[str], bool], *, alone: bool) -> bool:
    """Whether a pod that is gone was drained, and its owner makes another.

    `takes_pods` tells whether a node does; `alone`: no other pod of its gang is left. Pods that are deleted from a
    cordoned node count as drained while others of the gang stay: `kubectl drain` can be told not to evict.
    """
    meta = pod.metadata
    if meta.deletionTimestamp is None or meta.controller is None or not pod.spec.nodeName:
        return False
    said = [c.reason for c in pod.status.conditions if c.type == _DISRUPTED and c.status == "True"]
    if said:
        return _PREEMPTED not in said
    return not alone and not takes_pods(pod.spec.nodeName)


class DrainedSeats:
    """Seats that are kept, over all gangs (`groups`: owner -> gang)."""

    def __init__(self, state: ClusterState, groups: Mapping[str, Group], drop: Callable[[str], None]) -> None:
        """`drop`: forget a gang of which nothing is left."""
        self._state = state
        self._groups = groups
        self._drop = drop
        self.owners: set[str] = set()
        #: call this after so many seconds
        self.after: Callable[[float, Callable[[], None]], object] = lambda _delay_s, _call: None

    def keep(self, owner: str, group: Group, number: int, pod: core.Pod, member: Membership) -> bool:
        """Keep the seat of a pod that is gone if it was drained.

        Not on a node that failed: recovery deals with that. Not of a gang that makes way for more important work.
        """
        if group.makes_way or self._state.reader.fault(pod.spec.nodeName) is not None:
            return False
        if not is_drained(pod, self._takes_pods, alone=not group.members):
            return False
        group.keep(number, member)
        self.owners.add(owner)
        self._arm(owner, number)
        return True

    def arm(self, owner: str, group: Group) -> None:
        """A term begins: the time of what is kept starts again."""
        for number in group.kept:
            self._arm(owner, number)

    def _arm(self, owner: str, number: int) -> None:
        self.after(KEEP_S, functools.partial(self._end, owner, number))

    def _end(self, owner: str, number: int) -> None:
        """The time of a kept seat is over; while pods of the gang wait for a place, it starts again."""
        group = self._groups.get(owner)
        if group is None or number not in group.kept:
            return
        if group.unseated:
            self._arm(owner, number)
        else:
            self.release(owner, group)

    def is_usable(self, owner: str, number: int) -> bool:
        """Whether the node of the seat takes pods."""
        place = self._state.ledger.seat(owner, number)
        return place is not None and self._takes_pods(place.node)

    def _takes_pods(self, name: str) -> bool:
        node = self._state.fleet.node(name)
        return node is not None and node.ready

    def give(self, owner: str, group: Group, number: int) -> None:
        """A pod has the seat now."""
        group.kept.discard(number)
        if not group.kept:
            self.owners.discard(owner)

    def release(self, owner: str, group: Group) -> None:
        """Nothing is kept for the gang any more."""
        kept = list(group.kept)
        for number in kept:
            group.awaited.pop(number, None)
        self.forget(owner, group)
        for number in kept:
            self._state.ledger.vacate(owner, number)
        if not group.members and not group.awaited:
            self._drop(owner)

    def forget(self, owner: str, group: Group) -> None:
        group.kept.clear()
        self.owners.discard(owner)
