"""All dialects, and the gang of a pod: the first dialect that the pod uses decides.

A new dialect is a module with a `Dialect`, which declares its keys, and a line in `DIALECTS`.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from kgwe.kube.dialects import requests, values
from kgwe.kube.dialects.membership import Key, Membership, Unreadable
from kgwe.kube.dialects.systems import kai, lws, owners, podgroups, volcano
from kgwe.kube.dialects.systems import kgwe as own

if TYPE_CHECKING:
    from kgwe.kube.api import core
    from kgwe.kube.dialects.dialect import Dialect
    from kgwe.kube.dialects.groups import Groups

#: gangs by the kind of the pods' owner
BY_OWNER: Final = (owners.TRAINING, owners.JOB_SET, lws.LEADER_WORKER_SET, owners.JOB)

#: every dialect, in order of precedence: our own, groups that pods name, owners, and pods alone
DIALECTS: Final[tuple[Dialect, ...]] = (
    own.make_dialect(BY_OWNER),
    podgroups.KUBERNETES,
    podgroups.COSCHEDULING,
    volcano.VOLCANO,
    kai.KAI,
    podgroups.KUEUE,
    *BY_OWNER,
    own.NAMELESS,
    own.SINGLE,
)

# Most pods use no dialect, which their keys show at once. Of our own keys, only some are about gangs.
_KEYS: Final = requests.KEYS.union(*(dialect.keys for dialect in DIALECTS))
_IN_SPEC: Final = tuple(dialect.in_spec for dialect in DIALECTS if dialect.in_spec is not None)


def find_membership(pod: core.Pod, groups: Groups) -> Membership | None:
    """The gang the pod belongs to and its place there; None for a pod that belongs to none.

    Ask again when the pod or an object of `groups` in its namespace changes.
    """
    try:
        spoken = _list_domains(pod, groups)
    except Unreadable as exc:
        return Membership(_single_pod_key(pod), own.SINGLE.name, problem=exc.problem)
    if spoken.isdisjoint(_KEYS) and not any(is_used(pod) for is_used in _IN_SPEC):
        return None
    for dialect in DIALECTS:
        try:
            key = dialect.key(pod, groups)
        except Unreadable as exc:
            return Membership(_single_pod_key(pod), dialect.name, problem=exc.problem)
        if key is not None:
            return _read_member(pod, key, groups, dialect, spoken)
    return None


def _single_pod_key(pod: core.Pod) -> Key:
    return Key(pod.metadata.namespace, "Pod", pod.metadata.name)


def _list_domains(pod: core.Pod, groups: Groups) -> set[str]:
    said = [pod.metadata.labels, pod.metadata.annotations]
    said += [owner.metadata.annotations for _, owner in groups.owners(pod)]
    return {key if key in requests.OWN_KEYS else values.domain_of(key) for each in said for key in each}


def _read_member(pod: core.Pod, key: Key, groups: Groups, dialect: Dialect, spoken: set[str]) -> Membership | None:
    wishing = not spoken.isdisjoint(requests.KEYS)
    try:
        member = dialect.member(pod, key, groups)
        wish = requests.read_requests(pod, groups, member.wish, spoken) if member and wishing else None
    except Unreadable as exc:
        return Membership(key, dialect.name, problem=exc.problem)
    if member is None:
        return None
    if wish is not None:
        member = dataclasses.replace(member, wish=wish)
    if member.done is None and pod.metadata.controller is not None:
        member = dataclasses.replace(member, done=owners.count_succeeded(pod, groups))
    return member
