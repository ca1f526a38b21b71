"""The node that comes nearest to holding a pod that fits nowhere, and what the node lacks.

Nodes that could hold the pod when empty come first; among the others, those that pass more rules. Among equals the
node with the smallest shortage wins: the sum, over resources, of the missing part of the requested amount. Ties go to
the first node.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kgwe.placement.pod.fit_status import FitStatus

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kgwe.placement.fleet.node import Request
    from kgwe.placement.fleet.snapshot import Snapshot
    from kgwe.placement.pod.fit import Fitter
    from kgwe.placement.pod.request_tables import Codes


@dataclass(frozen=True, slots=True)
class Shortage:
    """What one node lacks for one pod; 0 where it lacks nothing."""

    node: int
    name: str
    verdict: FitStatus
    gpus: int = 0
    milli: int = 0
    share_mib: int = 0
    slices: int = 0
    cpu_milli: int = 0
    memory_bytes: int = 0
    pods: int = 0


def find_nearest(fitter: Fitter, request: Request, codes: Codes) -> Shortage | None:
    """The node that comes nearest; None when there are no nodes."""
    snapshot = fitter.snapshot
    if not len(snapshot):
        return None
    empty = fitter.check_empty_nodes(request)
    passed = np.where(empty == FitStatus.FITS, len(FitStatus), empty)
    lacks = _count_missing(snapshot, request)
    gap = np.zeros(len(snapshot))
    for name, missing in lacks.items():
        gap += missing / max(_requested_amount(request, name), 1)
    gap[passed < passed.max()] = np.inf
    node = int(gap.argmin())
    counts = {name: int(missing[node]) for name, missing in lacks.items()}
    return Shortage(node, snapshot.nodes[node].name, FitStatus(int(codes[node])), **counts)


def _count_missing(snapshot: Snapshot, request: Request) -> dict[str, NDArray[np.int64]]:
    gpus = request.gpus
    free: dict[str, NDArray[np.integer]] = {
        "cpu_milli": snapshot.cpu_milli,
        "memory_bytes": snapshot.memory_bytes,
        "pods": snapshot.pods,
    }
    if gpus.count:
        free["gpus"] = np.bitwise_count(snapshot.free)
    elif gpus.milli:
        free["milli"] = snapshot.milli.max(axis=1, initial=0)
        free["share_mib"] = snapshot.share_mib.max(axis=1, initial=0)
    elif gpus.slices:
        free["slices"] = snapshot.slices.get(gpus.profile, np.zeros(len(snapshot), np.int32))
    wanted = {name: _requested_amount(request, name) for name in free}
    # A resource that is not requested is never short, even on an overbooked node.
    return {
        name: np.maximum(wanted[name] - left.astype(np.int64), 0) if wanted[name] else np.zeros(len(left), np.int64)
        for name, left in free.items()
    }


def _requested_amount(request: Request, name: str) -> int:
    gpus = request.gpus
    return {
        "gpus": gpus.count,
        "milli": gpus.milli,
        "share_mib": gpus.share_mib,
        "slices": gpus.slices,
        "cpu_milli": request.cpu_milli,
        "memory_bytes": request.memory_bytes,
        "pods": 1,
    }[name]
