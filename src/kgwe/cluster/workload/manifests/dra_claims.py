"""Pods that get the GPUs of their plan by a ResourceClaim (dynamic resource allocation).

The template of such a pod asks for no `nvidia.com/gpu`; its container names a claim, which Kubernetes makes for each
pod from a ResourceClaimTemplate. There is one for each plan, it lists the UUIDs of all devices of the plan, and a pod
is held to its node: so kube-scheduler allocates the planned devices of that node or none. That is exact for a pod that
shares its node with no other of the plan. Where pods do share one, or the plan was changed since, the pod waits behind
its gate until Kubernetes has entered the claim in its status, and the entry is changed to a claim of ours that lists
the devices of its seat alone. Both claims belong to the pod and go with it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from kgwe import errors
from kgwe.kube.api.resource import DRIVER, GPU_CLASS, MIG_CLASS, POD_CLAIM_ANNOTATION
from kgwe.model.units import amounts
from kgwe.placement.fleet.snapshot import list_gpus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kgwe.kube.api import core
    from kgwe.kube.translate.nodes import Cards
    from kgwe.placement.live.holding import Holding
    from kgwe.placement.planning.plan import Seat

#: name of the claim within the pod
CLAIM: Final = "kgwe-gpus"
_NAME_MAX: Final = 253
_DIGEST_CHARS: Final = 8
# An expression has room for 10 KiB, and a UUID of a slice takes 44 characters.
_MOST_LISTED: Final = 200

Naming = Callable[[str], "Cards"]
"""Node -> names of its GPUs and slices."""


def convert_to_claims(spec: dict[str, Any], template: str) -> None:
    """Replace the GPUs that a container requests by the claim; Permanent if several containers request GPUs."""
    asking = [each for each in spec["containers"] if _take_gpus(each)]
    if len(asking) != 1 or any(_take_gpus(each) for each in spec.get("initContainers") or ()):
        raise errors.Permanent("with deviceMode DRA exactly one container may ask for GPUs, and no init container")
    wants = asking[0]["resources"]
    wants["claims"] = [*(wants.get("claims") or ()), {"name": CLAIM}]
    mine = {"name": CLAIM, "resourceClaimTemplateName": template}
    spec["resourceClaims"] = [*(spec.get("resourceClaims") or ()), mine]


def _take_gpus(container: dict[str, Any]) -> bool:
    """Remove the GPUs from its requests; returns whether there were any."""
    wants = container.get("resources") or {}
    found = False
    for part in ("requests", "limits"):
        named = wants.get(part) or {}
        kept = {name: amount for name, amount in named.items() if not amounts.is_gpu(name)}
        if len(kept) < len(named):
            found, wants[part] = True, kept
    return found


def _template_of(spec: core.PodSpec) -> str:
    return next((each.resourceClaimTemplateName for each in spec.resourceClaims if each.name == CLAIM), "")


def is_used(spec: core.PodSpec) -> bool:
    return bool(_template_of(spec))


def claim_name_of(pod: core.Pod) -> str:
    """Name of the claim that is the pod's own; empty when none is yet."""
    return next((each.resourceClaimName for each in pod.status.resourceClaimStatuses if each.name == CLAIM), "")


def device_uuids(place: Holding | Seat, names: Naming) -> tuple[str, ...]:
    """UUIDs of the cards or slices of a seat; Permanent when they are not known."""
    cards = names(place.node)
    try:
        whole = [cards.uuids[card] for card in list_gpus(place.gpus)] if not place.slices else []
        found = whole + [cards.slices[each][1] for each in place.slices]
    except KeyError as exc:
        raise errors.Permanent(f"{place.node}: no device name is known for its GPU or slice {exc}") from exc
    if not found:
        raise errors.Permanent(f"{place.node}: the plan names no GPUs")
    return tuple(found)


def template_name(job: str, seats: Sequence[Seat], names: Naming) -> str:
    """The name of the template. It depends on the devices: the template of another plan has another name."""
    return _name_with_digest(job, *(uuid for seat in seats for uuid in device_uuids(seat, names)))


def build_template(job: str, seats: Sequence[Seat], names: Naming) -> dict[str, Any]:
    """The ResourceClaimTemplate of a plan, without its owner."""
    listed = [uuid for seat in seats for uuid in device_uuids(seat, names)]
    each = len(listed) // len(seats)
    request = _device_request(listed, each, is_slices=bool(seats[0].slices))
    return {"metadata": {"name": template_name(job, seats, names)}, "spec": {"spec": _claim_spec(request)}}


def is_exact(pod: core.Pod, job: str, seats: Sequence[Seat], place: Holding, names: Naming) -> bool:
    """Whether a claim made from the pod's template can be given nothing but the devices of its place.

    `seats`: the plan as it is now.
    """
    if len(seats) * len(device_uuids(place, names)) > _MOST_LISTED:
        return False
    here = [seat for seat in seats if seat.node == place.node]
    return (
        len(here) == 1
        and set(device_uuids(here[0], names)) == set(device_uuids(place, names))
        and _template_of(pod.spec) == template_name(job, seats, names)
    )


def build_claim(pod: core.Pod, place: Holding, names: Naming, labels: dict[str, str]) -> dict[str, Any]:
    """A claim for one pod. Its name depends on its devices, so an existing claim of that name can be used."""
    meta = pod.metadata
    uuids = device_uuids(place, names)
    return {
        "metadata": {
            "name": _name_with_digest(meta.name, meta.uid, *uuids),
            "namespace": meta.namespace,
            "labels": labels,
            "annotations": {POD_CLAIM_ANNOTATION: CLAIM},
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "Pod", "name": meta.name, "uid": meta.uid, "controller": True}
            ],
        },
        "spec": _claim_spec(_device_request(uuids, len(uuids), is_slices=bool(place.slices))),
    }


def pod_claim_entry(pod: core.Pod, name: str) -> dict[str, Any]:
    """The patch of the pod's status that names its claim."""
    return {
        "metadata": {"uid": pod.metadata.uid},
        "status": {"resourceClaimStatuses": [{"name": CLAIM, "resourceClaimName": name}]},
    }


def _name_with_digest(first: str, *facts: str) -> str:
    digest = hashlib.sha256(" ".join(facts).encode()).hexdigest()[:_DIGEST_CHARS]
    return f"{first[: _NAME_MAX - _DIGEST_CHARS - 1]}-{digest}"


def _device_request(uuids: Sequence[str], count: int, *, is_slices: bool) -> dict[str, Any]:
    attributes = f"device.attributes['{DRIVER}']"
    listed = ", ".join(f"'{uuid}'" for uuid in uuids)
    # A longer list does not fit: then each pod gets a claim of its own before this one is allocated.
    expression = f"has({attributes}.uuid) && {attributes}.uuid in [{listed}]" if len(uuids) <= _MOST_LISTED else "false"
    return {
        "deviceClassName": MIG_CLASS if is_slices else GPU_CLASS,
        "allocationMode": "ExactCount",
        "count": count,
        "selectors": [{"cel": {"expression": expression}}],
    }


def _claim_spec(request: dict[str, Any]) -> dict[str, Any]:
    return {"devices": {"requests": [{"name": "gpus", "exactly": request}]}}
