"""Refusals of single pods and of strategies: the code, and the message for people.

0/15 nodes available for 8 GPUs: 12 insufficient GPUs, 3 not ready. Best: h7 (5 free).
0/15 nodes available for 16 GPUs: 15 with fewer than 16 whole GPUs. Each pod asks for 16 GPUs; the largest node
has 8. Set gpusPerPod to 8 or less.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from kgwe.model.units.phrasing import format_count, join_words
from kgwe.placement.fleet.node import SOFTER
from kgwe.placement.planning.exclusions import list_exclusions, list_unready
from kgwe.placement.planning.unmet import find_unmet
from kgwe.placement.pod import wording
from kgwe.placement.pod.fit_status import SHORT_OF_GPUS, FitStatus
from kgwe.placement.pod.shortage import Shortage
from kgwe.placement.refusal import Reason, Refusal

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kgwe.placement.fleet.node import Request
    from kgwe.placement.fleet.snapshot import Snapshot
    from kgwe.placement.gang.request import GangRequest
    from kgwe.placement.planning.ask import Ask
    from kgwe.placement.planning.unmet import Unmet
    from kgwe.placement.pod.fit import Fitter

_SHORT_OF_GPUS: Final = frozenset(status.reason for status in SHORT_OF_GPUS)
_NOT_READY: Final = FitStatus.NOT_READY.reason
_EXCLUDED: Final = FitStatus.NOT_ALLOWED.reason


def refuse_pod(fitter: Fitter, ask: Ask, found: Refusal) -> Refusal:
    """The engine's refusal of a single pod, with the cause as its code and a message for people."""
    unmet = find_unmet(fitter, ask.request, ask.fields)
    return replace(found, code=_find_code(found, unmet), message=_describe_pod_refusal(fitter, ask, found, unmet))


def _find_code(found: Refusal, unmet: Unmet | None) -> Reason:
    if unmet is not None:
        return unmet.code
    nearest = found.detail.verdict if isinstance(found.detail, Shortage) else None
    if nearest is FitStatus.WIRING:
        return Reason.TOPOLOGY_NOT_MET
    # The nearest node decides: other nodes may lack GPUs, too, but freeing GPUs there is not what it takes.
    is_short = nearest in SHORT_OF_GPUS if nearest is not None else not _SHORT_OF_GPUS.isdisjoint(found.counts)
    return Reason.INSUFFICIENT_GPU if is_short else Reason.INSUFFICIENT_RESOURCES


def _describe_pod_refusal(fitter: Fitter, ask: Ask, found: Refusal, unmet: Unmet | None) -> str:
    best = ""
    if unmet is None and isinstance(found.detail, Shortage):
        best = wording.describe_nearest(ask.request, found.detail)
    counts = describe_node_counts(fitter.snapshot, ask.request, found.counts)
    text = wording.describe_refusal(len(fitter.snapshot), describe_request(ask), counts, best)
    if unmet is not None:
        return f"{text} {unmet.text}"
    return f"{text} {advice}" if (advice := _advise_connection(fitter, ask, found)) else text


def _advise_connection(fitter: Fitter, ask: Ask, found: Refusal) -> str:
    """The preference with which a pod starts now, if only its own keeps it waiting."""
    if not isinstance(found.detail, Shortage) or found.detail.verdict is not FitStatus.WIRING:
        return ""
    for each in SOFTER.get(ask.request.preference, ()):
        if (fitter.check_nodes(replace(ask.request, preference=each)) == FitStatus.FITS).any():
            return f"Wait, or set {ask.fields.preference} to {each}."
    return ""


def describe_node_counts(snapshot: Snapshot, request: Request, counts: Mapping[str, int]) -> str:
    """Nodes by cause: `12 insufficient GPUs, 2 not ready, 1 cordoned`."""
    causes = {_NOT_READY: lambda: list_unready(snapshot), _EXCLUDED: lambda: list_exclusions(snapshot, request)}
    parts = []
    for reason, count in counts.items():
        if reason in causes:
            parts += [f"{len(cause.nodes)} {cause.text}" for cause in causes[reason]()]
        else:
            parts.append(wording.describe_counts({reason: count}, request.gpus))
    return ", ".join(parts)


def refuse_strategy(ask: Ask, ours: Iterable[str], installed: Iterable[str]) -> Refusal:
    """Refuse a strategy that does not exist, or that is installed and places single pods only."""
    others = set(installed)
    if ask.strategy in others:
        text = (
            f"Strategy {ask.strategy!r} places single pods only, and this workload has {format_count(ask.pods, 'pod')}"
        )
    else:
        text = f"No strategy is named {ask.strategy!r}"
    known = ", ".join(sorted({*ours, *(others if ask.pods == 1 else ())} - {""}))
    return Refusal(Reason.UNKNOWN_STRATEGY, f"{text}. Set schedulingStrategy to one of: {known}.", possible=False)


def describe_request(ask: Ask) -> str:
    """`8 GPUs`, `16 pods of 8 GPUs`, `1/2 GPU`, `2 slices of 1g.10gb`."""
    if ask.gang is not None:
        return describe_gang(ask.gang)
    each = wording.describe_gpus(ask.request.gpus)
    return each if ask.pods == 1 else f"{ask.pods} pods of {each}"


def describe_gang(gang: GangRequest) -> str:
    """`16 pods of 8 GPUs`, `1 head pod of no GPUs and 4 worker pods of 8 GPUs`."""
    several = len(gang.roles) > 1
    return join_words(
        [
            f"{format_count(role.required_replicas, f'{role.name} pod' if several else 'pod')} of"
            f" {wording.describe_gpus(role.request.gpus)}"
            for role in gang.roles
        ]
    )
