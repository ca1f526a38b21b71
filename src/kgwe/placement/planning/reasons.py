"""Refusals of single pods and of strategies: the code, and the message for people.

needs 8 GPUs: 12 of 15 nodes could hold it, none has room now; h7 comes nearest with 5 free; 23 GPUs free
in all (12 GPUsTaken, 3 NodeNotReady)
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from kgwe.placement.fleet.node import GPU_MILLI, share_milli
from kgwe.placement.pod.fit import SHORT_OF_GPUS, FitStatus
from kgwe.placement.pod.shortage import Shortage
from kgwe.placement.refusal import Reason, Refusal

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kgwe.placement.fleet.node import Gpus, Request
    from kgwe.placement.fleet.snapshot import Snapshot
    from kgwe.placement.planning.ask import Ask
    from kgwe.placement.pod.fit import Fitter

_SHORT_OF_GPUS: Final = frozenset(status.reason for status in SHORT_OF_GPUS)


def refuse_pod(fitter: Fitter, ask: Ask, found: Refusal) -> Refusal:
    """The engine's refusal of a single pod, with the cause as its code and a message for people."""
    if not found.possible:
        code = Reason.TOO_LARGE if FitStatus.TOO_FEW_GPUS.reason in found.counts else Reason.NO_MATCHING_NODE
    elif _SHORT_OF_GPUS.isdisjoint(found.counts):
        code = Reason.INSUFFICIENT_RESOURCES
    else:
        code = Reason.INSUFFICIENT_GPU
    message = f"needs {describe_request(ask)}: {_describe_room(fitter, ask.request, found)}"
    return replace(found, code=code, message=message)


def refuse_strategy(ask: Ask, ours: Iterable[str], installed: Iterable[str]) -> Refusal:
    """Refuse a strategy that does not exist, or that is installed and places single pods only."""
    others = set(installed)
    if ask.strategy in others:
        text = f"strategy {ask.strategy!r} places single pods, and these are {ask.pods}"
    else:
        text = f"no strategy named {ask.strategy!r}"
    known = ", ".join(sorted({*ours, *(others if ask.pods == 1 else ())} - {""}))
    return Refusal(Reason.UNKNOWN_STRATEGY, f"{text}; known are {known}", possible=False)


def describe_request(ask: Ask) -> str:
    """`8 GPUs`, `16 pods of 8 GPUs`, `1/2 of a GPU`, `2 slices of 1g.10gb`."""
    each = describe_gpus(ask.request.gpus)
    return each if ask.pods == 1 else f"{ask.pods} pods of {each}"


def describe_gpus(gpus: Gpus) -> str:
    """What one pod asks for."""
    if gpus.milli:
        pieces = GPU_MILLI // gpus.milli
        is_piece = pieces and share_milli(pieces) == gpus.milli
        return f"1/{pieces} of a GPU" if is_piece else f"{gpus.milli} thousandths of a GPU"
    return _count_gpus(gpus, gpus.slices or gpus.count)


def _count_gpus(gpus: Gpus, count: int) -> str:
    plural = "" if count == 1 else "s"
    return f"{count} slice{plural} of {gpus.profile}" if gpus.slices else f"{count} GPU{plural}"


def _describe_room(fitter: Fitter, request: Request, found: Refusal) -> str:
    listed = ", ".join(f"{count} {reason}" for reason, count in found.counts.items())
    could = fitter.check_empty_nodes(request) == FitStatus.FITS
    if not found.possible:
        return (
            f"no node could hold it, even with nothing running{_describe_largest(fitter.snapshot, request)} ({listed})"
        )
    text = f"{int(could.sum())} of {len(could)} nodes could hold it, none has room now"
    if isinstance(found.detail, Shortage):
        text += f"; {_describe_nearest(request.gpus, found.detail)}"
    if request.gpus.count or request.gpus.slices:
        free = _count_free(fitter.snapshot, request.gpus)
        text += f"; {_count_gpus(request.gpus, int(free[could].sum()))} free in all"
    return f"{text} ({listed})"


def _count_free(snapshot: Snapshot, gpus: Gpus) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Node -> free GPUs, or free slices of the profile."""
    if gpus.slices:
        return snapshot.slices.get(gpus.profile, np.zeros(len(snapshot), np.int32)).astype(np.int64)
    return np.bitwise_count(snapshot.free).astype(np.int64)


def _describe_nearest(gpus: Gpus, near: Shortage) -> str:
    lacks = near.gpus or near.slices
    if lacks:
        has = (gpus.slices or gpus.count) - lacks
        return f"{near.name} comes nearest with {has} free"
    if near.verdict is FitStatus.WIRING:
        return f"{near.name} comes nearest, but its free GPUs are not wired as required"
    return near.describe


def _describe_largest(snapshot: Snapshot, request: Request) -> str:
    if not request.gpus.count or not len(snapshot):
        return ""
    best = max(snapshot.nodes, key=lambda node: node.usable.bit_count())
    most = best.usable.bit_count()
    return f"; the largest, {best.name}, has {most} GPU{'' if most == 1 else 's'}" if most < request.gpus.count else ""
