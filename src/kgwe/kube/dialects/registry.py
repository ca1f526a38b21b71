"""From a pod to its gang: the first dialect it speaks decides the group, and every one may add wishes."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from kgwe.kube.dialects import kai, owners, podgroups, requests, volcano
from kgwe.kube.dialects import kgwe as own
from kgwe.kube.dialects.membership import Key, Membership, Unreadable

if TYPE_CHECKING:
    from kgwe.kube.api import core
    from kgwe.kube.dialects.dialect import Dialect
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

# What keys of labels and annotations begin with, up to the slash. Most pods speak no dialect, which is seen at once.
# Ours count one by one, as most of them are not about gangs.
_WISHING: Final = requests.OWN_KEYS | requests.DOMAINS
_DOMAINS: Final = _WISHING | {
    "scheduling.x-k8s.io",
    "pod-group.scheduling.sigs.k8s.io",
    "scheduling.k8s.io",
    "scheduling.volcano.sh",
    "pod-group-name",
    "jobset.sigs.k8s.io",
    "leaderworkerset.sigs.k8s.io",
    "training.kubeflow.org",
}


def membership(pod: core.Pod, groups: Groups) -> Membership | None:
    """The gang the pod belongs to and its place there; None for a pod that belongs to none.

    Ask again when the pod or an object of `groups` in its namespace changes.
    """
    alone = Key(pod.metadata.namespace, "Pod", pod.metadata.name)
    try:
        spoken = _spoken(pod, groups)
    except Unreadable as exc:
        return Membership(alone, own.SINGLE.name, problem=exc.problem)
    if spoken.isdisjoint(_DOMAINS) and pod.spec.schedulingGroup is None and pod.spec.workloadRef is None:
        return None
    for dialect in DIALECTS:
        try:
            key = dialect.key(pod, groups)
        except Unreadable as exc:
            return Membership(alone, dialect.name, problem=exc.problem)
        if key is not None:
            return _member(pod, key, groups, dialect, spoken)
    return None


def _spoken(pod: core.Pod, groups: Groups) -> set[str]:
    said = [pod.metadata.labels, pod.metadata.annotations]
    said += [owner.metadata.annotations for _, owner in groups.owners(pod)]
    return {key if key in requests.OWN_KEYS else key.partition("/")[0] for each in said for key in each}


def _member(pod: core.Pod, key: Key, groups: Groups, dialect: Dialect, spoken: set[str]) -> Membership | None:
    wishing = not spoken.isdisjoint(_WISHING)
    try:
        member = dialect.member(pod, key, groups)
        wish = requests.read(pod, groups, member.wish, spoken) if member and wishing else None
    except Unreadable as exc:
        return Membership(key, dialect.name, problem=exc.problem)
    if member is None:
        return None
    if wish is not None:
        member = dataclasses.replace(member, wish=wish)
    if member.done is None and pod.metadata.controller is not None:
        member = dataclasses.replace(member, done=owners.done(pod, groups))
    return member
