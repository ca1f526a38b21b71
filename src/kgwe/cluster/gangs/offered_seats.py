"""Seats offered to the pods of a gang while they are created: which pod gets which seat.

The leader plans a gang when its first pod is being created, and keeps the seats for some seconds. A pod gets its seat
in the answer to the API server, and the watch shows the pod with it a moment later. A pod that was created without its
seat, because an answer was late, gets one that no other pod has.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kgwe.cluster.workload import placement_annotations

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kgwe.cluster.gangs.gang_group import Group
    from kgwe.kube.dialects import Membership

#: seconds until the watch should show a pod that got a seat while it was created; else its creation failed
IN_FLIGHT_S: Final = 3.0
_LAST_NUMBER: Final = re.compile(r"\d{1,6}$", re.ASCII)


@dataclass(slots=True)
class OfferedSeat:
    """A seat reserved for a pod that is being created."""

    #: of the pod that it is for; None: for any pod
    index: int | None
    #: when a pod that is being created got it, by the monotonic clock; 0: none has
    given_s: float = 0.0

    def is_free(self, now_s: float) -> bool:
        return not self.given_s or now_s > self.given_s + IN_FLIGHT_S


def choose_seat(group: Group, member: Membership, name: str, now_s: float) -> int | None:
    """The seat for a pod that is being created, which is its own from now on; None: there is none.

    A pod with an index gets the seat of its index, also a second time: the first pod that appears has it. Without one
    it gets the seat of the number at the end of its name, so that neighbours are near each other, else any seat.
    """
    seats = group.offered
    if member.index is not None:
        number = next((number for number, seat in seats.items() if seat.index == member.index), None)
    else:
        free = [number for number, seat in seats.items() if seat.index is None and seat.is_free(now_s)]
        number = _find_neighbour(group, name, free)
    if number is not None:
        seats[number].given_s = now_s
    return number


def _find_neighbour(group: Group, name: str, free: list[int]) -> int | None:
    found = _LAST_NUMBER.search(name)
    wished = group.start + int(found.group()) if found else -1
    return wished if wished in free else next(iter(free), None)


def match_waiting(group: Group, now_s: float) -> Iterator[tuple[str, int]]:
    """(pod, seat) for pods that were created without their seats."""
    if not group.offered:
        return
    left = {number: seat for number, seat in group.offered.items() if seat.is_free(now_s)}
    for uid, (pod, member) in list(group.members.items()):
        if uid in group.seats or pod.metadata.deletionTimestamp is not None or not placement_annotations.is_gated(pod):
            continue
        number = next((number for number, seat in left.items() if seat.index == member.index), None)
        if number is not None:
            del left[number]
            yield uid, number
