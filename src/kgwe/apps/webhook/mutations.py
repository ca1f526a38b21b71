"""What is changed in a pod while it is created, as JSON patches. Pure functions of the pod and of what KGWE decided.

Both do what the policies kgwe-rightsizing and kgwe-seats do on Kubernetes 1.36 and later. A pod that was changed
before, by a policy or by an earlier call, is not changed again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kgwe.cluster.workload import creation_patch, metadata_keys, placement_annotations
from kgwe.cluster.workload.creation_patch import add, annotate, escape, read_map
from kgwe.cluster.workload.effective_request import ORIGINAL_ANNOTATION
from kgwe.kube.api.kgwe.rightsizingdecision import Mode
from kgwe.kube.translate import podrequest
from kgwe.model.devices import preferences
from kgwe.model.units import amounts

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from kgwe.kube.api.kgwe.rightsizingdecision import RightsizingDecisionSpec, Smaller
    from kgwe.kube.translate.admission_wire import Patch

WOULD_BE: Final = "kgwe.nvidia.io/would-be-gpu-request"
_TOKEN: Final = "kube-api-access-"  # noqa: S105 - the name of a volume
_JOB_CONTROLLERS: Final = frozenset(
    {"system:serviceaccount:kube-system:job-controller", "system:kube-controller-manager"}
)
_JOB_UID: Final = "batch.kubernetes.io/controller-uid"
_SEAT_PARTS: Final = 3
_MANAGED_LABELS: Final = ("scheduling.x-k8s.io/pod-group", "pod-group.scheduling.sigs.k8s.io")


# --- smaller requests -----------------------------------------------------------------------------------


def shrink_request(pod: Mapping[str, Any], spec: RightsizingDecisionSpec | None) -> Patch:
    """Return the changes to a pod that asks for whole GPUs; empty: none."""
    if spec is None or spec.problem or spec.mode not in (Mode.SHADOW, Mode.CANARY, Mode.ENFORCE):
        return []
    meta, body = read_map(pod, "metadata"), read_map(pod, "spec")
    labels, notes = read_map(meta, "labels"), read_map(meta, "annotations")
    if body.get("nodeName") or metadata_keys.UID_LABEL in labels or ORIGINAL_ANNOTATION in notes or WOULD_BE in notes:
        return []
    if not spec.includeManaged and _is_managed(body, labels, notes):
        return []
    at = _find_gpu_container(body)
    if at is None:
        return []
    container = body["containers"][at]
    gpus = str(container["resources"]["limits"][amounts.GPU])
    found = spec.decisions.get(f"{_name_owner(meta, labels)} {container.get('image') or ''} {gpus}")
    if found is None or found.resource not in spec.offered:
        return []
    if preferences.read_preferences(notes).find_objection(found.profile):
        return []
    start = creation_patch.begin_annotations(meta)
    if spec.mode == Mode.ENFORCE or (spec.mode == Mode.CANARY and _is_in_canary(meta, body, spec)):
        return start + _replace_request(container, at, gpus, found)
    return [*start, annotate(WOULD_BE, f"1×{found.profile}" if found.profile else found.share)]


def _find_gpu_container(body: Mapping[str, Any]) -> int | None:
    """Return the number of the only container with whole GPUs; None if there is not exactly one, or other GPUs."""
    places: list[int] = []
    for part in ("containers", "initContainers"):
        for number, container in enumerate(body.get(part) or ()):
            limits = read_map(read_map(container, "resources"), "limits")
            if any(amounts.is_gpu(name) and name != amounts.GPU for name in limits):
                return None
            if amounts.GPU in limits:
                places.append(number if part == "containers" else -1)
    return places[0] if len(places) == 1 and places[0] >= 0 else None


def _name_owner(meta: Mapping[str, Any], labels: Mapping[str, Any]) -> str:
    owner = next((each for each in meta.get("ownerReferences") or () if each.get("controller")), None)
    if owner is None:
        return f"Pod/{meta.get('name') or ''}"
    kind, name, template = owner.get("kind", ""), owner.get("name", ""), labels.get("pod-template-hash", "")
    if kind == "ReplicaSet" and template and name.endswith(f"-{template}"):
        return f"Deployment/{name.removesuffix(f'-{template}')}"
    return f"{kind}/{name}"


def _is_managed(body: Mapping[str, Any], labels: Mapping[str, Any], notes: Mapping[str, Any]) -> bool:
    if body.get("schedulerName") == "volcano" or any(name in labels for name in _MANAGED_LABELS):
        return True
    if "scheduling.k8s.io/group-name" in notes or any(name.startswith("kueue.x-k8s.io/") for name in (*labels, *notes)):
        return True
    return any(part.get("kgwe.nvidia.io/gang", "false") != "false" for part in (labels, notes))


def _is_in_canary(meta: Mapping[str, Any], body: Mapping[str, Any], spec: RightsizingDecisionSpec) -> bool:
    tokens = [each["name"] for each in body.get("volumes") or () if str(each.get("name", "")).startswith(_TOKEN)]
    if tokens:
        return tokens[0][-1] in spec.canaryLetters
    owner: Mapping[str, Any] = next((each for each in meta.get("ownerReferences") or () if each.get("controller")), {})
    return bool(owner.get("uid")) and owner["uid"][0] in spec.canaryDigits


def _replace_request(container: Mapping[str, Any], at: int, gpus: str, found: Smaller) -> Patch:
    changes = [
        annotate(ORIGINAL_ANNOTATION, gpus),
        annotate("kgwe.nvidia.io/optimized", "true"),
        annotate("kgwe.nvidia.io/optimization-strategy", "mig" if found.profile else "share"),
    ]
    for part in ("limits", "requests"):
        if amounts.GPU in read_map(container["resources"], part):
            path = f"/spec/containers/{at}/resources/{part}/"
            changes += [
                {"op": "remove", "path": path + escape(amounts.GPU)},
                add(path + escape(found.resource), "1"),
            ]
    return changes + ([annotate(podrequest.SHARE, found.share)] if found.share else [])


# --- seats ----------------------------------------------------------------------------------------------


def give_seat(pod: Mapping[str, Any], user: str, revoked: Collection[str]) -> Patch:
    """Return the changes that pin a pod of a GPUWorkload's Job to the seat in its template; empty: it keeps its gate.

    `revoked`: UIDs of Jobs whose plan was changed after their creation.
    """
    meta, body = read_map(pod, "metadata"), read_map(pod, "spec")
    labels, notes = read_map(meta, "labels"), read_map(meta, "annotations")
    lines, index = notes.get(placement_annotations.SEATS_ANNOTATION), notes.get(placement_annotations.INDEX_ANNOTATION)
    gates = creation_patch.list_gates(body)
    if not lines or index is None or user not in _JOB_CONTROLLERS or placement_annotations.GATE not in gates:
        return []
    if metadata_keys.UID_LABEL not in labels or labels.get(_JOB_UID, "") in revoked:
        return []
    seats, number = lines.split("\n"), placement_annotations.count_in(index)
    seat = seats[number].split(" ") if 0 <= number < len(seats) else []
    node = "".join(seat[0].split(".", 2)[2:]) if len(seat) == _SEAT_PARTS else ""
    if not node:
        return []
    changes: Patch = [
        {"op": "remove", "path": f"/metadata/annotations/{escape(placement_annotations.SEATS_ANNOTATION)}"},
        annotate(placement_annotations.SEAT_ANNOTATION, f"{labels[metadata_keys.UID_LABEL]}/{index}"),
        annotate(placement_annotations.SIGNATURE_ANNOTATION, seat[0]),
    ]
    if seat[1]:
        changes.append(annotate(placement_annotations.CARDS_ANNOTATION, seat[1]))
    if seat[2]:
        changes.append(annotate(placement_annotations.SLICES_ANNOTATION, seat[2]))
    return changes + creation_patch.remove_gate(body) + creation_patch.pin_to_node(body, node)
