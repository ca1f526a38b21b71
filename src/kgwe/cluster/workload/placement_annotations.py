"""Annotations of pods: the seat of a pod, its devices, and the node that it is pinned to.

A plan is stored as one line of text (`plan_text`). The seat of a pod follows from its completion index, or from the
annotation that it gets with its place.

Anyone who may edit the object may edit its annotations: a text that KGWE would not write is ignored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kgwe.cluster.workload import plan_text
from kgwe.kube.dialects.membership import PLAN_GATE
from kgwe.model.devices import assignment
from kgwe.model.devices.assignment import DeviceSet

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kgwe.kube.api import core
    from kgwe.placement.live.holding import Holding
    from kgwe.placement.planning.plan import Seat

#: gate of pods that wait for their seat
GATE: Final = PLAN_GATE
PLAN_ANNOTATION: Final = "kgwe.nvidia.io/plan"
#: set by the Job controller: the index of a pod of an Indexed Job
INDEX_ANNOTATION: Final = "batch.kubernetes.io/job-completion-index"
#: owner/number of a pod's seat
SEAT_ANNOTATION: Final = "kgwe.nvidia.io/seat"
#: in the pod template of a Job: one signed line per completion index; the API server copies the line of each pod
#: on the Job itself: the template has them
SEATS_ANNOTATION: Final = "kgwe.nvidia.io/seats"
#: the signed seat of a gang that a pod got while it was created (`signatures`)
OFFER_ANNOTATION: Final = "kgwe.nvidia.io/offer"
#: on pods that had no gate when they got their seat
SEATED_LABEL: Final = "kgwe.nvidia.io/seated"
CARDS_ANNOTATION: Final = assignment.CARDS_ANNOTATION
SLICES_ANNOTATION: Final = assignment.SLICES_ANNOTATION
#: proves that KGWE wrote the decision (`signatures`)
SIGNATURE_ANNOTATION: Final = "kgwe.nvidia.io/signature"
# Digits of the largest number that KGWE writes.
_DIGITS: Final = 9

encode = plan_text.encode
decode = plan_text.decode


def device_annotations(place: Holding | Seat) -> dict[str, str]:
    """The annotations with the GPUs and slices that were planned for a pod."""
    return assignment.format_annotations(DeviceSet(place.gpus, place.slices))


def pin_to_node(spec: dict[str, Any], node: str) -> None:
    """Require `node` in addition to the affinity of the pod: terms are alternatives, so each gets it."""
    affinity = spec["affinity"] = dict(spec.get("affinity") or {})
    node_affinity = affinity["nodeAffinity"] = dict(affinity.get("nodeAffinity") or {})
    required = dict(node_affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {})
    here = {"key": "metadata.name", "operator": "In", "values": [node]}
    terms = required.get("nodeSelectorTerms") or [{}]
    required["nodeSelectorTerms"] = [
        {**term, "matchFields": [*(term.get("matchFields") or ()), here]} for term in terms
    ]
    node_affinity["requiredDuringSchedulingIgnoredDuringExecution"] = required


def pinned_node(spec: core.PodSpec) -> str:
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
    gates = pod.spec.schedulingGates
    return bool(gates) and any(gate.name == GATE for gate in gates)


def seat_of(annotations: Mapping[str, str]) -> tuple[str, int] | None:
    """(owner, number) of the annotation a pod was given with its place."""
    name, _, text = annotations.get(SEAT_ANNOTATION, "").rpartition("/")
    number = count_in(text)
    return (name, number) if name and number >= 0 else None


def count_in(text: str) -> int:
    """The number in an annotation or label; -1 if KGWE would not have written it."""
    return int(text) if len(text) <= _DIGITS and text.isascii() and text.isdecimal() else -1
