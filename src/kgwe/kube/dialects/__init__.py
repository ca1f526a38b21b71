"""Externally created gangs: pods of other controllers, in the dialects of other systems, as one gang request.

    groups = Groups(Levels(labels, tree_levels), {kind: informer.store for kind, informer in watched.items()})
    member = find_membership(pod, groups)               # None: the pod belongs to no gang
    ...
    if not count_missing(members):                      # all pods of one key, with their memberships
        gang = gang_request(members, request_of)        # Gang, or a Problem with its message
        plan = planner.plan(gang.request)
        for pod, seat in gang.assign_pods(plan): ...

Translation is pure, except for `find_served`, which asks the API server which kinds to watch. Invalid values never
raise and never loosen a constraint: they become a `Problem`, and the gang waits. `cluster` and the apps import it.
"""

from __future__ import annotations

from kgwe.kube.dialects.gang import Gang, gang_request
from kgwe.kube.dialects.groups import Groups
from kgwe.kube.dialects.incomplete import describe_incomplete
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
    "describe_incomplete",
    "find_membership",
    "find_readable",
    "find_served",
    "gang_request",
    "is_present",
]
