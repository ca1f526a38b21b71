"""Uids of the replicas of a workload: each replica is planned, counted and followed like a workload of its own.

Replica 0 has the uid of the object, the others `<uid>_<number>`. No uid of Kubernetes has an underscore.
"""

from __future__ import annotations

from typing import Final

from kgwe.cluster.workload import placement_annotations

_MARK: Final = "_"


def make_uid(uid: str, number: int) -> str:
    """The uid of a replica of the object with this uid."""
    return f"{uid}{_MARK}{number}" if number else uid


def object_uid(uid: str) -> str:
    """The uid of the object that a replica belongs to; any other uid is returned as it is."""
    return uid.partition(_MARK)[0]


def number_of(uid: str) -> int:
    """The number of a replica; -1 if KGWE would not have written this uid."""
    _, mark, number = uid.partition(_MARK)
    if not mark:
        return 0
    found = placement_annotations.count_in(number)
    return found if found > 0 and str(found) == number else -1
