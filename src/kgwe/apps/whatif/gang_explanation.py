"""Explanations of the members of externally created gangs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kgwe.apps.whatif.explanation import Explanation, Gang, Placed, Seat
from kgwe.apps.whatif.parts import find_seat_problems, replace_fields
from kgwe.apps.whatif.pod_explanation import explain_bound
from kgwe.apps.whatif.waiting_explanation import explain_waiting
from kgwe.cluster.workload import placement_annotations
from kgwe.kube import dialects
from kgwe.placement.fleet.snapshot import list_gpus

if TYPE_CHECKING:
    from kgwe.cluster.offline import View
    from kgwe.kube.api import core

_UNSEATED: Final = 8


def explain_member(view: View, pod: core.Pod, owner: str, base: Explanation) -> Explanation:
    base = replace_fields(base, gang=gang_of(view, owner))
    group = view.gangs.group(owner)
    number = group.seats.get(pod.metadata.uid) if group is not None else None
    if pod.spec.nodeName:
        return explain_bound(view, pod, base)
    if number is not None:
        place = view.state.ledger.reserved_seat(owner, number)
        node = place.node if place is not None else "its node"
        seats = (Seat(node, tuple(list_gpus(place.gpus)) if place else (), pod=pod.metadata.name),)
        gated = (
            "its scheduling gate is being removed"
            if placement_annotations.is_gated(pod)
            else "kube-scheduler binds it next"
        )
        problems = (*base.problems, *find_seat_problems(view, seats))
        return replace_fields(
            base,
            state="Placed",
            summary=f"seat {number} on {node}; {gated}",
            placed=Placed(seats),
            problems=problems,
        )
    return explain_waiting(view, owner, replace_fields(base, state="Waiting"))


def gang_of(view: View, owner: str) -> Gang | None:
    """The gang of that owner; None if there is none."""
    group = view.gangs.group(owner)
    if group is None:
        return None
    members = list(group.members.values())
    incomplete = dialects.describe_incomplete(group.key.title, members)
    waits = [pod.metadata.name for pod in group.unseated]
    return Gang(
        name=group.key.title,
        dialect=members[0][1].dialect if members else "",
        members=len(members),
        seated=len(members) - len(waits),
        missing=dialects.count_missing(members) if members else 0,
        problem=incomplete or group.problem,
        waits_for=tuple(waits[:_UNSEATED]),
    )
