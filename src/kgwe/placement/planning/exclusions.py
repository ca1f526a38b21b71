"""Causes that keep a pod off nodes, with their nodes: the same words in conditions and in `kgwe explain`."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from kgwe.model.units.phrasing import list_names
from kgwe.placement.fleet.constraints import Constraints
from kgwe.placement.fleet.node import SpotPolicy
from kgwe.placement.pod import wording
from kgwe.placement.pod.fit_status import FitStatus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kgwe.placement.fleet.node import Node, Request
    from kgwe.placement.fleet.snapshot import Snapshot


class Cause(NamedTuple):
    """Nodes that do not take a pod, and why."""

    text: str
    """`cordoned`, `with untolerated taint dedicated:NoSchedule`."""
    nodes: list[int]
    """Their numbers in the snapshot."""


def list_causes(snapshot: Snapshot, request: Request, status: FitStatus, nodes: Sequence[int]) -> list[Cause]:
    """The causes of a status that these nodes have for the request."""
    if status is FitStatus.NOT_READY:
        return list_unready(snapshot)
    if status is FitStatus.NOT_ALLOWED:
        return list_exclusions(snapshot, request)
    return [Cause(wording.describe_status(status, request.gpus), list(nodes))]


def list_unready(snapshot: Snapshot) -> list[Cause]:
    """Nodes that are not ready, and those that are only cordoned."""
    nodes = np.flatnonzero(~snapshot.ready).tolist()
    cordoned = [number for number in nodes if snapshot.nodes[number].cordoned]
    broken = [number for number in nodes if not snapshot.nodes[number].cordoned]
    return [cause for cause in (Cause("not ready", broken), Cause("cordoned", cordoned)) if cause.nodes]


def list_exclusions(snapshot: Snapshot, request: Request) -> list[Cause]:
    """Causes of `NOT_ALLOWED`, each with the nodes that no earlier cause excludes."""
    bound, labels = request.constraints, snapshot.labels
    left = snapshot.ready.copy()
    found = []
    causes = {
        "not spot": snapshot.spot | (request.spot is not SpotPolicy.REQUIRE),
        "without the labels of nodeSelector": labels.match_selectors(Constraints(selector=bound.selector)),
        "outside the required node affinity": labels.match_selectors(Constraints(affinity=bound.affinity)),
        "excluded after rejecting its pods": labels.match_selectors(Constraints(avoid=bound.avoid)),
    }
    for cause, allowed in causes.items():
        found.append(Cause(cause, np.flatnonzero(left & ~allowed).tolist()))
        left &= allowed
    tainted = np.flatnonzero(left & ~labels.match_taints(bound.tolerations)).tolist()
    if tainted:
        taints = list_untolerated([snapshot.nodes[number] for number in tainted], request)
        found.append(Cause(f"with untolerated {name_taints(taints)}", tainted))
    return [cause for cause in found if cause.nodes]


def list_untolerated(nodes: Sequence[Node], request: Request) -> list[str]:
    """Taints that keep the pod off these nodes, as `key=value:effect`."""
    tolerations = request.constraints.tolerations
    found = {
        taint
        for node in nodes
        for taint in node.taints
        if taint.effect != "PreferNoSchedule" and not any(each.tolerates(taint) for each in tolerations)
    }
    return sorted(f"{taint.key}{'=' * bool(taint.value)}{taint.value}:{taint.effect}" for taint in found)


def name_taints(taints: Sequence[str]) -> str:
    return f"taint{'s' * (len(taints) > 1)} {list_names(taints, 2)}"
