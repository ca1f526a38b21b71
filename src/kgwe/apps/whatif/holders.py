"""Workloads that hold the GPUs a waiting workload comes nearest to, and when they are expected to end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kgwe.apps.whatif.explanation import Holder
from kgwe.cluster.workload.owner import owner_of_holder
from kgwe.kube.api import timestamp
from kgwe.placement.disruption.running import grant_milli
from kgwe.placement.fleet.node import GPU_MILLI

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kgwe.cluster.offline import View

#: holders that are named
_NAMED: Final = 5


def list_holders(view: View, nodes: Iterable[str]) -> tuple[Holder, ...]:
    """Holders of GPUs on these nodes, the largest first."""
    milli: dict[str, int] = {}
    for node in nodes:
        for key in view.fleet.holders(node):
            owner = _owner_of(view, key)
            held = sum(grant_milli(grant, view.fleet.snapshot) for grant in view.fleet.grants(key))
            if held:
                milli[owner] = milli.get(owner, 0) + held
    largest = sorted(milli, key=lambda owner: (-milli[owner], owner))[:_NAMED]
    return tuple(
        Holder(view.state.owners.title(owner), milli[owner] / GPU_MILLI, expected_end(view, owner)) for owner in largest
    )


def expected_end(view: View, owner: str) -> str:
    """When the owner ends if it runs as long as it declared; empty if that is not known or has passed."""
    workload, run = view.state.find_workload(owner), view.state.runs.get(owner)
    if workload is None or run is None or not workload.expected_s:
        return ""
    started = workload.status.start_time or run.start_time or run.meta.creationTimestamp
    if not started:
        return ""
    end_s = timestamp.epoch_seconds(started) + workload.expected_s
    return timestamp.of(end_s) if end_s > view.now_s else ""


def _owner_of(view: View, key: str) -> str:
    """The workload or gang of a holder; a pod that belongs to neither is its own owner."""
    pod = view.state.pods.get(key)
    if pod is None:
        return owner_of_holder(key)
    seat = view.state.seat_of(pod)
    return (seat[0] if seat is not None else "") or view.gangs.owner_of(pod.metadata.uid) or pod.metadata.uid
