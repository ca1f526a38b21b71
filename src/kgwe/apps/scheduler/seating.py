"""From a plan to its pods: which pod has which seat, and how a pod is held to it.

A plan is stored as one line, `node=cards;node=cards`, seat by seat, cards as a hexadecimal mask. A pod knows its seat
by its completion index, or by the annotation it gets with its place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kgwe.kube.dialects.membership import PLAN_GATE
from kgwe.placement.planning import Seat

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kgwe.kube.api import core

#: gate of pods that wait for their seat
GATE: Final = PLAN_GATE
PLAN_ANNOTATION: Final = "kgwe.nvidia.io/plan"
#: owner/number of a pod's seat
SEAT_ANNOTATION: Final = "kgwe.nvidia.io/seat"
#: on pods that had no gate when they got their seat
SEATED_LABEL: Final = "kgwe.nvidia.io/seated"
#: cards planned for a pod, as a hexadecimal mask
CARDS_ANNOTATION: Final = "kgwe.nvidia.io/cards"
_HEX: Final = 16


def encode(seats: Iterable[Seat]) -> str:
    return ";".join(f"{seat.node}={seat.cards:x}" for seat in seats)


def decode(text: str) -> tuple[Seat, ...]:
    """Seats of a stored plan; empty when it cannot be read (somebody else wrote there)."""
    try:
        return tuple(
            Seat(node, int(cards or "0", _HEX))
            for node, _, cards in (part.partition("=") for part in text.split(";") if part)
        )
    except ValueError:
        return ()


def pin(spec: dict[str, Any], node: str) -> None:
    """Require `node` besides whatever affinity the pod has: terms are alternatives, so each gets it."""
    affinity = spec["affinity"] = dict(spec.get("affinity") or {})
    node_affinity = affinity["nodeAffinity"] = dict(affinity.get("nodeAffinity") or {})
    required = dict(node_affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {})
    here = {"key": "metadata.name", "operator": "In", "values": [node]}
    terms = required.get("nodeSelectorTerms") or [{}]
    required["nodeSelectorTerms"] = [
        {**term, "matchFields": [*(term.get("matchFields") or ()), here]} for term in terms
    ]
    node_affinity["requiredDuringSchedulingIgnoredDuringExecution"] = required


def pinned_to(spec: core.PodSpec) -> str:
    """The only node its affinity allows; empty when there is none or more."""
    required = spec.affinity.nodeAffinity.required
    if required is None:
        return ""
    names = {
        line.values[0]
        for term in required.nodeSelectorTerms
        for line in term.matchFields
        if line.operator == "In" and len(line.values) == 1
    }
    return names.pop() if len(names) == 1 else ""


def is_gated(pod: core.Pod) -> bool:
    return any(gate.name == GATE for gate in pod.spec.schedulingGates)


def seat_of(annotations: Mapping[str, str]) -> tuple[str, int] | None:
    """(owner, number) of the annotation a pod was given with its place."""
    name, _, number = annotations.get(SEAT_ANNOTATION, "").rpartition("/")
    return (name, int(number)) if name and number.isascii() and number.isdigit() else None
