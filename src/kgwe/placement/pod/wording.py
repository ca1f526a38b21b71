"""Wording of refusals: what a pod asks for, why nodes do not take it, and which node comes nearest.

All refusals have kube-scheduler's form:

    0/15 nodes available for 8 GPUs: 12 insufficient GPUs, 3 not ready. Best: h7 (5 free).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kgwe.model.units.phrasing import format_bytes, format_cores, format_count, format_mib, format_number
from kgwe.placement.fleet.node import GPU_MILLI, share_milli
from kgwe.placement.pod.fit_status import FitStatus

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kgwe.placement.fleet.node import Gpus, Request
    from kgwe.placement.pod.shortage import Shortage

_STATUSES: Final = {status.reason: status for status in FitStatus}
_PHRASES: Final = {
    FitStatus.FITS: "available",
    FitStatus.NOT_READY: "not ready",
    FitStatus.NOT_ALLOWED: "excluded by nodeSelector, affinity, taints or spotPolicy",
    FitStatus.WRONG_MODEL: "with another GPU model",
    FitStatus.WRONG_ARCHITECTURE: "with another GPU architecture",
    FitStatus.GPU_MEMORY: "insufficient GPU memory",
    FitStatus.GPUS_TAKEN: "insufficient GPUs",
    FitStatus.WIRING: "without free GPUs connected as required",
    FitStatus.SHARE_TAKEN: "insufficient GPU shares",
    FitStatus.CPU: "insufficient CPU",
    FitStatus.MEMORY: "insufficient memory",
    FitStatus.PODS: "too many pods",
}


def describe_refusal(nodes: int, wanted: str, counts: str, best: str = "") -> str:
    """The sentence that every refusal begins with."""
    text = f"0/{nodes} nodes available for {wanted}" + (f": {counts}." if counts else ".")
    return f"{text} Best: {best}." if best else text


def describe_gpus(gpus: Gpus) -> str:
    """What one pod asks for: `8 GPUs`, `1/2 GPU`, `2 slices of 1g.10gb`."""
    if gpus.milli:
        return describe_share(gpus.milli)
    if gpus.slices:
        return f"{format_count(gpus.slices, 'slice')} of {gpus.profile}"
    return format_count(gpus.count, "GPU") if gpus.count else "no GPUs"


def describe_share(milli: int) -> str:
    """`1/2 GPU`; a share that is not one of equal parts as a number: `0.3 GPU`."""
    shares = GPU_MILLI // milli
    return f"1/{shares} GPU" if share_milli(shares) == milli else f"{format_number(milli / GPU_MILLI)} GPU"


def describe_status(status: FitStatus, gpus: Gpus) -> str:
    """Why a node does not take a pod that asks for these GPUs."""
    if status is FitStatus.NO_SLICE:
        return f"insufficient {gpus.profile} slices"
    if status is not FitStatus.TOO_FEW_GPUS:
        return _PHRASES[status]
    if gpus.milli:
        return f"without shares of {describe_share(gpus.milli)}"
    if gpus.slices:
        return f"without {gpus.profile} slices" if gpus.slices == 1 else f"without {describe_gpus(gpus)}"
    return f"with fewer than {gpus.count} whole GPUs" if gpus.count > 1 else "without a whole GPU"


def describe_counts(counts: Mapping[str, int], gpus: Gpus) -> str:
    """Nodes by reason: `12 insufficient GPUs, 3 not ready`."""
    return ", ".join(f"{count} {describe_status(_STATUSES[reason], gpus)}" for reason, count in counts.items())


def describe_nearest(request: Request, near: Shortage) -> str:
    """The nearest node and what it has: `h7 (5 free)`, `h7 (4 cores free, 64 cores requested)`."""
    facts = list(_list_shortages(request, near))
    if not facts and near.verdict is FitStatus.WIRING:
        facts = ["its free GPUs are not connected as required"]
    elif not facts:
        facts = [describe_status(near.verdict, request.gpus)]
    return f"{near.name} ({'; '.join(facts)})"


def _list_shortages(request: Request, near: Shortage) -> list[str]:
    gpus = request.gpus
    facts = []
    if near.gpus or near.slices:
        facts.append(f"{(gpus.slices or gpus.count) - (near.slices or near.gpus)} free")
    if near.milli:
        facts.append(f"largest free share {format_number((gpus.milli - near.milli) / GPU_MILLI)} GPU")
    if near.share_mib:
        facts.append(f"{format_mib(gpus.share_mib - near.share_mib)} of GPU memory free on one GPU")
    if near.cpu_milli:
        free = format_cores(max(request.cpu_milli - near.cpu_milli, 0))
        facts.append(f"{free} free, {format_cores(request.cpu_milli)} requested")
    if near.memory_bytes:
        free = format_bytes(max(request.memory_bytes - near.memory_bytes, 0))
        facts.append(f"{free} of memory free, {format_bytes(request.memory_bytes)} requested")
    if near.pods:
        facts.append("no free pod slot")
    return facts
