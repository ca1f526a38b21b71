"""From a pod to its gang: the first dialect it speaks decides the group, and every one may add wishes."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from kgwe.kube.dialects import kai, own, podgroups, volcano, wishes
from kgwe.kube.dialects.membership import Key, Membership, Unreadable

if TYPE_CHECKING:
    from kgwe.kube.api import core
    from kgwe.kube.dialects.groups import Groups

#: in the order in which they are believed: our own, groups that pods name, owners, and pods alone
DIALECTS: Final = (
    own.OWN,
    podgroups.KUBERNETES,
    podgroups.COSCHEDULING,
    volcano.VOLCANO,
    kai.KAI,
    podgroups.KUEUE,
    *own.BY_OWNER,
    own.NAMELESS,
    own.SINGLE,
)


def membership(pod: core.Pod, groups: Groups) -> Membership | None:
    """The gang the pod belongs to and its place there; None for a pod that belongs to none.

    Ask again when the pod or an object of `groups` in its namespace changes.
    """
    for dialect in DIALECTS:
        key = Key(pod.metadata.namespace, "Pod", pod.metadata.name)
        try:
            found = dialect.key(pod, groups)
            if found is None:
                continue
            key = found
            member = dialect.member(pod, key, groups)
            if member is None:
                return None
            return dataclasses.replace(member, wish=wishes.read(pod, groups, member.wish))
        except Unreadable as exc:
            return Membership(key, dialect.name, problem=exc.problem)
    return None
