"""Workloads that hold the GPUs a waiting workload comes nearest to, and when they are expected to end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kgwe.apps.whatif.explanation import Holder
from kgwe.cluster.workload.owner import owner_of_holder
from kgwe.kube.api import timestamp
from kgwe.model.units import amounts
from kgwe.model.units.phrasing import format_bytes, format_cores
from kgwe.placement.disruption.running import grant_milli
from kgwe.placement.fleet.node import GPU_MILLI
from kgwe.placement.pod.fit_status import FitStatus

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kgwe.cluster.offline import View
    from kgwe.placement.fleet.node import Request

_RESOURCES: Final = {FitStatus.CPU: amounts.CPU, FitStatus.MEMORY: amounts.MEMORY}
#: holders that are named
_NAMED: Final = 5


def list_holders(view: View, nodes: Iterable[str], short_of: FitStatus | None = None) -> tuple[Holder, ...]:
    """Holders of GPUs on these nodes, the largest first; `short_of`: what the nearest node lacks."""
    milli: dict[str, int] = {}
    others: dict[str, int] = {}
    resource = _RESOURCES.get(short_of, "") if short_of is not None else ""
    for node in nodes:
        for key in view.fleet.holders(node):
            owner = _owner_of(view, key)
            held = sum(grant_milli(grant, view.fleet.snapshot) for grant in view.fleet.grants(key))
            if held:
                milli[owner] = milli.get(owner, 0) + held
            holding = view.fleet.holding(key) if resource else None
            if holding is not None:
                others[owner] = others.get(owner, 0) + holding.amounts.get(resource, 0)
    largest = sorted(milli, key=lambda owner: (-others.get(owner, 0), -milli[owner], owner))[:_NAMED]
    return tuple(
        Holder(
            view.state.owners.title(owner),
            milli[owner] / GPU_MILLI,
            expected_end(view, owner),
            _describe(resource, others.get(owner, 0)),
        )
        for owner in largest
    )


def estimate_room(view: View, nodes: Iterable[str], request: Request, needed: int) -> str:
    """When so many of these nodes, which can run a pod of the request, are expected to be empty; "": not known."""
    codes = view.fleet.fitter.check_empty_nodes(request)
    suitable = {
        node.name for node, code in zip(view.fleet.snapshot.nodes, codes, strict=True) if code == FitStatus.FITS
    }
    ends = []
    for node in suitable.intersection(nodes):
        each = [expected_end(view, _owner_of(view, key)) for key in view.fleet.holders(node)]
        if each and all(each):
            ends.append(max(each))
    return sorted(ends)[needed - 1] if 0 < needed <= len(ends) else ""


def _describe(resource: str, amount: int) -> str:
    if not amount:
        return ""
    return format_cores(amount) if resource == amounts.CPU else f"{format_bytes(amount)} of memory"


def expected_end(view: View, owner: str) -> str:
    """When the owner ends if it runs as long as it declared; empty if that is not known or has passed."""
    workload, run = view.state.find_workload(owner), view.state.runs.get(owner)
    if workload is None or run is None or not workload.expected_s:
        return ""
    started = workload.status.start_time or run.start_time or run.meta.creationTimestamp
    if not started:
        return ""
    end_s = timestamp.epoch_seconds(started) + workload.expected_s
    return timestamp.format_time(end_s) if end_s > view.now_s else ""


def _owner_of(view: View, key: str) -> str:
    """The workload or gang of a holder; a pod that belongs to neither is its own owner."""
    pod = view.state.pods.get(key)
    if pod is None:
        return owner_of_holder(key)
    seat = view.state.seat_of(pod)
    return (seat[0] if seat is not None else "") or view.gangs.owner_of(pod.metadata.uid) or pod.metadata.uid
