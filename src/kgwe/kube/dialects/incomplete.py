"""Describes an incomplete gang: how many of its pods exist, where its size is set, and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kgwe.kube.dialects import member_presence as presence
from kgwe.kube.dialects import requests

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kgwe.kube.api import core
    from kgwe.kube.dialects.membership import Membership

    Members = Sequence[tuple[core.Pod, Membership]]

_OWN_SIZES: Final = (requests.OWN + "gang-min-size", requests.OWN + "gang-size")
# Dialect -> where the size of its gangs is set.
_SIZES: Final = {
    "coscheduling": "minMember of the PodGroup",
    "kai": "minMember of the PodGroup",
    "volcano": "minMember of the PodGroup",
    "kubernetes": "minCount of the pod group",
    "kueue": "kueue.x-k8s.io/pod-group-total-count",
}


def describe_incomplete(title: str, members: Members) -> str:
    """`Gang team/g is incomplete: 2 of 4 pods exist (kgwe.nvidia.io/gang-size: 4). Create the 2 missing pods, or …`.

    Empty if no pod is missing, or if the size of the gang is not known.
    """
    if not members or any(member.problem is not None or member.size is None for _, member in members):
        return ""
    found = presence.count_members(members)
    missing, there = presence.count_missing(members, found), found.all.total()
    if not missing:
        return ""
    source = _find_size_source(*members[0])
    text = f"Gang {title} is incomplete: {there} of {there + missing} pods exist"
    lacking = "the missing pod" if missing == 1 else f"the {missing} missing pods"
    if source:
        return f"{text} ({source}: {there + missing}). Create {lacking}, or lower {source}."
    owner = members[0][0].metadata.controller
    if owner is None:
        return f"{text}. Create {lacking}."
    kind = f"{owner.kind.lower()} {owner.name} -n {members[0][0].metadata.namespace}"
    return f"{text}. {owner.kind} {owner.name} creates them; `kubectl describe {kind}` shows what prevents it."


def _find_size_source(pod: core.Pod, member: Membership) -> str:
    own = next((key for key in _OWN_SIZES if key in pod.metadata.annotations), "")
    return own if member.dialect == "kgwe" else _SIZES.get(member.dialect, "")
