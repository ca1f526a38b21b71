"""From a plan to its pods: which pod has which seat, and how a pod is held to it.

A plan is stored as one line, `node=cards;node=cards`, seat by seat, cards as a hexadecimal mask; MIG slices follow as
`/card@start,card@start`. A pod knows its seat by its completion index, or by the annotation it gets with its place.

Annotations can be edited by whoever may edit the object: what does not read as if we had written it is not believed.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from kgwe.kube.dialects.membership import PLAN_GATE
from kgwe.model import places
from kgwe.model.places import Places
from kgwe.placement.node import MOST_CARDS
from kgwe.placement.planning import Seat

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kgwe.kube.api import core
    from kgwe.placement.live import Holding

#: gate of pods that wait for their seat
GATE: Final = PLAN_GATE
PLAN_ANNOTATION: Final = "kgwe.nvidia.io/plan"
#: what the Job controller numbers the pods of an Indexed Job with
INDEX_ANNOTATION: Final = "batch.kubernetes.io/job-completion-index"
#: owner/number of a pod's seat
SEAT_ANNOTATION: Final = "kgwe.nvidia.io/seat"
#: on pods that had no gate when they got their seat
SEATED_LABEL: Final = "kgwe.nvidia.io/seated"
CARDS_ANNOTATION: Final = places.CARDS_ANNOTATION
SLICES_ANNOTATION: Final = places.SLICES_ANNOTATION
_HEX: Final = 16
# Of any number that we write.
_DIGITS: Final = 9
# Four cards to a digit.
_MASK: Final = f"[0-9a-f]{{1,{-(-MOST_CARDS // 4)}}}"
_SLICE: Final = "[0-9]{1,3}@[0-9]{1,3}"
_PART: Final = re.compile(
    rf"(?P<node>[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?)=(?P<cards>{_MASK})(?:/(?P<slices>{_SLICE}(?:,{_SLICE})*))?"
)


def encode(seats: Iterable[Seat]) -> str:
    return ";".join(f"{seat.node}={seat.cards:x}{_slices_text(seat)}" for seat in seats)


def _slices_text(seat: Seat) -> str:
    return "/" + ",".join(f"{card}@{start}" for card, start in seat.slices) if seat.slices else ""


def decode(text: str) -> tuple[Seat, ...]:
    """Seats of a stored plan; empty when it cannot be read (somebody else wrote there)."""
    parts = [_PART.fullmatch(part) for part in text.split(";")]
    return tuple(_seat(part) for part in parts if part) if all(parts) else ()


def _seat(part: re.Match[str]) -> Seat:
    pairs = [each.split("@") for each in part["slices"].split(",")] if part["slices"] else []
    return Seat(part["node"], int(part["cards"], _HEX), tuple((int(card), int(start)) for card, start in pairs))


def given(place: Holding | Seat) -> dict[str, str]:
    """The annotations that tell a pod's node which cards and slices were planned for it."""
    return places.as_annotations(Places(place.cards, place.slices))


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
    name, _, text = annotations.get(SEAT_ANNOTATION, "").rpartition("/")
    number = count_in(text)
    return (name, number) if name and number >= 0 else None


def count_in(text: str) -> int:
    """A number somebody wrote into an annotation or label; -1 when it is none that we would write."""
    return int(text) if len(text) <= _DIGITS and text.isascii() and text.isdecimal() else -1
