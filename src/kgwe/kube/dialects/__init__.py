"""Gangs of other systems: pods that others made, in the words others use, as one request for the gang planner.

    groups = Groups(Levels(labels, tree_levels), {kind: informer.store for kind, informer in watched.items()})
    member = membership(pod, groups)                    # None: the pod belongs to no gang
    ...
    if not missing(members):                            # all pods of one key, with their memberships
        gang = gang_request(members, request_of)        # Gang, or a Problem in words
        plan = planner.plan(gang.request)
        for pod, seat in gang.seated(plan): ...

Translation is pure: nothing here waits, asks the API server or reads a clock, but for `served`, which finds out what to
watch. Values that cannot be followed never crash and never loosen anything: they become a `Problem`, and the gang
waits.
"""

from __future__ import annotations

from kgwe.kube.dialects.gang import Gang, gang_request
from kgwe.kube.dialects.groups import Groups
from kgwe.kube.dialects.kinds import KINDS, find_readable, find_served
from kgwe.kube.dialects.levels import Levels
from kgwe.kube.dialects.member_presence import count_members, count_missing, is_present
from kgwe.kube.dialects.membership import Followers, Key, Membership, Problem, Size, TopologyRequest
from kgwe.kube.dialects.registry import find_membership

__all__ = [
    "KINDS",
    "Followers",
    "Gang",
    "Groups",
    "Key",
    "Levels",
    "Membership",
    "Problem",
    "Size",
    "TopologyRequest",
    "count_members",
    "count_missing",
    "find_membership",
    "find_readable",
    "find_served",
    "gang_request",
    "is_present",
]
