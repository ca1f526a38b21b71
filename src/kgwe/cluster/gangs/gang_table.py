"""Externally created gangs by owner, and the gang of each of their pods."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kgwe.cluster.gangs.gang_group import Group
    from kgwe.placement.live.ledger import Seat


class GangTable:
    """What is known of the gangs; read by all, written by `external_gangs` only."""

    def __init__(self) -> None:
        self.groups: dict[str, Group] = {}  # owner -> gang
        self.owners: dict[str, str] = {}  # pod uid -> owner
        #: pods that belong to no gang -> what was read from them when that was found
        self.read_without_gang: dict[str, tuple[object, ...]] = {}

    def seat(self, uid: str) -> Seat | None:
        """(owner, number) of the pod's seat."""
        owner = self.owners.get(uid, "")
        group = self.groups.get(owner)
        number = group.seats.get(uid) if group is not None else None
        return None if number is None else (owner, number)

    def owner_of(self, uid: str) -> str:
        """The gang a pod belongs to; empty: none."""
        return self.owners.get(uid, "")

    def group_of(self, uid: str) -> Group | None:
        """The gang a pod belongs to."""
        return self.groups.get(self.owners.get(uid, ""))

    def is_in_no_gang(self, uid: str) -> bool:
        """Whether the pod was read and belongs to no gang."""
        return uid in self.read_without_gang and uid not in self.owners

    def list_owners(self) -> Iterator[str]:
        return iter(self.groups)

    def dump(self) -> Mapping[str, object]:
        """Every gang in short, for /debug/snapshot."""
        return {
            owner: {"members": len(group.members), "seated": len(group.seats), "problem": group.problem}
            for owner, group in self.groups.items()
        }
