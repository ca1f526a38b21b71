"""Which pods of a gang exist, have nodes or are done, and how many are missing."""

from __future__ import annotations

import collections
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kgwe.kube.dialects.membership import PLAN_GATE
from kgwe.kube.translate import podspec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kgwe.kube.api import core
    from kgwe.kube.dialects.membership import Membership, Size

    Members = Sequence[tuple[core.Pod, Membership]]


@dataclass(frozen=True)
class Presence:
    """The pods of a gang that count: not failed, not being deleted, and without a foreign scheduling gate."""

    waiting: list[tuple[core.Pod, Membership]]
    placed: list[tuple[core.Pod, Membership]]
    done: collections.Counter[str]
    """Role -> pods that have succeeded."""

    @property
    def speaking(self) -> list[tuple[core.Pod, Membership]]:
        """The members whose annotations count: those of bound pods may be outdated."""
        return self.waiting or self.placed

    @property
    def started(self) -> collections.Counter[str]:
        """Role -> number of pods that need no place any more."""
        return collections.Counter(member.role for _, member in self.placed) + self.done

    @property
    def all(self) -> collections.Counter[str]:
        """Role -> number of pods, with those that are created only after others have nodes."""
        counts = self.started
        for _, member in self.waiting:
            counts[member.role] += 1
            if member.followers is not None:
                counts[member.followers.role or member.role] += member.followers.count
        return counts


def count_members(members: Members) -> Presence:
    waiting: list[tuple[core.Pod, Membership]] = []
    placed: list[tuple[core.Pod, Membership]] = []
    ended: list[tuple[core.Pod, Membership]] = []
    for each in members:
        pod = each[0]
        if is_present(pod):
            (ended if podspec.is_terminal(pod) else placed if pod.spec.nodeName else waiting).append(each)
    return Presence(waiting, placed, _count_done([*placed, *waiting], ended))


def count_missing(members: Members, found: Presence | None = None) -> int:
    """How many pods are missing before the gang may be placed; until then it reserves nothing."""
    found = count_members(members) if found is None else found
    counts, speaking = found.all, found.speaking or members
    least = max((member.size.least for _, member in speaking if member.size is not None), default=0)
    of_roles = sum(max(fewest - counts[role], 0) for role, fewest in read_roles(speaking).items())
    lacking = max(least - counts.total(), of_roles, 0)
    unknown = not counts or any(member.size is None for _, member in speaking)
    return max(lacking, 1) if unknown else lacking


def plain_size(members: Members) -> Size | None:
    """The size that all pods declare, if each further pod reduces the missing by one; None: otherwise."""
    size = members[0][1].size
    plain = all(says_size_only(member) and member.size == size for _, member in members)
    return size if plain else None


def says_size_only(member: Membership) -> bool:
    """Whether its gang is complete by the number of its pods alone."""
    unsaid = member.problem is None and member.followers is None and member.done is None
    return unsaid and not member.roles and member.size is not None


def read_roles(members: Members) -> dict[str, int]:
    """Every known role -> the fewest pods of it, in the order of ranks."""
    found: dict[str, int] = {}
    for _, member in members:
        for role, least in member.roles:
            found[role] = max(least, found.get(role, 0))
    return found


def is_present(pod: core.Pod) -> bool:
    """Whether the pod counts: not failed, not being deleted, and without a foreign scheduling gate."""
    if pod.metadata.deletionTimestamp is not None or pod.status.phase == "Failed":
        return False
    # Our own gate holds a pod back until its gang has a plan.
    return all(gate.name == PLAN_GATE for gate in pod.spec.schedulingGates)


def _count_done(alive: Members, succeeded: Members) -> collections.Counter[str]:
    """Role -> number of pods that are done, from owners and pods.

    Pods of a Job that are done may be out of sight; the Job counts them. Those of an owner that has no other pods are
    of an earlier run.
    """
    told = {_owner_uid(pod): member for pod, member in alive}
    done: collections.Counter[str] = collections.Counter()
    for member in told.values():
        done[member.role] += member.done or 0
    for pod, member in succeeded:
        if (other := told.get(_owner_uid(pod))) is not None and other.done is None:
            done[member.role] += 1
    return +done


def _owner_uid(pod: core.Pod) -> str:
    if not pod.metadata.ownerReferences:
        return ""
    controller = pod.metadata.controller
    return controller.uid if controller is not None else ""
