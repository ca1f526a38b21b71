"""Why work waits: one word that conditions and alerts match on, and a sentence for people.

needs 8 GPUs: 12 of 15 nodes could hold it, none has room now; h7 comes nearest with 5 GPUs free; 23 GPUs are free
in all (12 GPUsTaken, 3 NodeNotReady)
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from kgwe.placement.fleet.node import CARD_MILLI, piece_milli
from kgwe.placement.pod.fit import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kgwe.placement.fleet.node import Gpus, Request
    from kgwe.placement.fleet.snapshot import Snapshot
    from kgwe.placement.planning.diagnosis import GangRefusal
    from kgwe.placement.planning.planner import Ask
    from kgwe.placement.pod import engine as single
    from kgwe.placement.pod.fit import Fitter
    from kgwe.placement.pod.shortage import Shortage


class Reason(enum.StrEnum):
    """Why work waits. The values are condition reasons: users and alerts match on them."""

    NO_GPU_NODES = "NoGPUNodes"
    NO_MATCHING_NODE = "NoMatchingNode"
    TOO_LARGE = "TooLarge"
    INSUFFICIENT_GPU = "InsufficientGPU"
    INSUFFICIENT_RESOURCES = "InsufficientResources"
    TOPOLOGY_NOT_MET = "TopologyNotMet"
    UNKNOWN_LEVEL = "UnknownTopologyLevel"
    UNKNOWN_STRATEGY = "UnknownStrategy"
    STRATEGY_FAILED = "StrategyFailed"
    HELD_FOR_OTHERS = "HeldForOthers"
    TIMED_OUT = "SchedulingTimedOut"
    ATTEMPTS_EXHAUSTED = "SchedulingAttemptsExhausted"
    INVALID = "InvalidRequest"
    NO_PRIORITY_CLASS = "PriorityClassNotFound"
    INTERNAL_ERROR = "InternalError"
    RECOVERING = "Recovering"
    PREEMPTED = "Preempted"


@dataclass(frozen=True)
class Refusal:
    """None of it has a place now."""

    ask: Ask
    reason: Reason
    message: str
    #: whether it could start if nothing ran; False: waiting alone is in vain
    possible: bool = True
    certificate: GangRefusal | None = None
    single: single.Refusal | None = None


_SHORT_OF_GPUS: Final = frozenset({Verdict.CARDS_TAKEN, Verdict.SHARE_TAKEN, Verdict.NO_SLICE, Verdict.WIRING})


def refused(fitter: Fitter, ask: Ask, found: single.Refusal) -> Refusal:
    """A single pod's no."""
    verdicts = set(found.reasons)
    if not found.possible:
        reason = Reason.TOO_LARGE if Verdict.TOO_FEW_CARDS in verdicts else Reason.NO_MATCHING_NODE
    elif verdicts & _SHORT_OF_GPUS:
        reason = Reason.INSUFFICIENT_GPU
    else:
        reason = Reason.INSUFFICIENT_RESOURCES
    message = f"needs {needs(ask)}: {_no_room(fitter, ask.request, found)}"
    return Refusal(ask, reason, message, bool(found.possible), single=found)


def gang_refused(ask: Ask, found: GangRefusal) -> Refusal:
    """A gang's no, with its certificate."""
    if found.is_hopeless:
        reason = Reason.TOO_LARGE
    elif found.reason == "TooLittleRoom":
        short = set(found.verdicts) & _SHORT_OF_GPUS
        reason = Reason.INSUFFICIENT_GPU if short else Reason.INSUFFICIENT_RESOURCES
    else:
        reason = Reason.TOPOLOGY_NOT_MET
    message = f"needs {needs(ask)}: {found.summary()}"
    return Refusal(ask, reason, message, not found.is_hopeless, certificate=found)


def unknown_strategy(ask: Ask, ours: Iterable[str], installed: Iterable[str]) -> Refusal:
    """No strategy of that name, or none that places as many pods: those that other packages bring place single ones."""
    others = set(installed)
    if ask.strategy in others:
        text = f"strategy {ask.strategy!r} places single pods, and these are {ask.pods}"
    else:
        text = f"no strategy named {ask.strategy!r}"
    known = ", ".join(sorted({*ours, *(others if ask.pods == 1 else ())} - {""}))
    return Refusal(ask, Reason.UNKNOWN_STRATEGY, f"{text}; known are {known}", possible=False)


def needs(ask: Ask) -> str:
    """`8 GPUs`, `16 pods of 8 GPUs`, `1/2 of a GPU`, `2 slices of 1g.10gb`."""
    each = of_pod(ask.request.gpus)
    return each if ask.pods == 1 else f"{ask.pods} pods of {each}"


def of_pod(gpus: Gpus) -> str:
    """What one pod asks for."""
    if gpus.milli:
        pieces = CARD_MILLI // gpus.milli
        is_piece = pieces and piece_milli(pieces) == gpus.milli
        return f"1/{pieces} of a GPU" if is_piece else f"{gpus.milli} thousandths of a GPU"
    return _amount(gpus, gpus.slices or gpus.count)


def _amount(gpus: Gpus, count: int) -> str:
    plural = "" if count == 1 else "s"
    return f"{count} slice{plural} of {gpus.profile}" if gpus.slices else f"{count} GPU{plural}"


def _no_room(fitter: Fitter, request: Request, found: single.Refusal) -> str:
    listed = ", ".join(f"{count} {verdict.reason}" for verdict, count in found.reasons.items())
    nodes = sum(found.counts)
    if not found.possible:
        return f"no node could hold it, even with nothing running{_largest(fitter.snapshot, request)} ({listed})"
    text = f"{found.possible} of {nodes} nodes could hold it, none has room now"
    if found.nearest is not None:
        text += f"; {_nearest(request.gpus, found.nearest)}"
    if request.gpus.count or request.gpus.slices:
        could = fitter.when_empty(request) == Verdict.FITS
        free = _free(fitter.snapshot, request.gpus)
        text += f"; {_amount(request.gpus, int(free[could].sum()))} free in all"
    return f"{text} ({listed})"


def _free(snapshot: Snapshot, gpus: Gpus) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Node -> free cards, or free slices of the profile."""
    if gpus.slices:
        return snapshot.slices.get(gpus.profile, np.zeros(len(snapshot), np.int32)).astype(np.int64)
    return np.bitwise_count(snapshot.free).astype(np.int64)


def _nearest(gpus: Gpus, near: Shortage) -> str:
    lacks = near.cards or near.slices
    if lacks:
        has = (gpus.slices or gpus.count) - lacks
        return f"{near.name} comes nearest with {has} free"
    if near.verdict is Verdict.WIRING:
        return f"{near.name} comes nearest, but its free GPUs are not wired as required"
    return near.detail


def _largest(snapshot: Snapshot, request: Request) -> str:
    if not request.gpus.count or not len(snapshot):
        return ""
    best = max(snapshot.nodes, key=lambda node: node.usable.bit_count())
    most = best.usable.bit_count()
    return f"; the largest, {best.name}, has {most} GPU{'' if most == 1 else 's'}" if most < request.gpus.count else ""
