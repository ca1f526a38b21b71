"""Pods that get the GPUs of their plan by a ResourceClaim (dynamic resource allocation).

The template of such a pod asks for no `nvidia.com/gpu`; its container names the claim `gpus`. The pods of a Job share
one template, so the claim cannot be named in it. It says "from a template" instead, one that does not exist, so nobody
else makes a claim for the pod; and the pod waits behind the gate. With its seat it gets a claim of its own, which names
the devices of that seat by their UUIDs, and is entered in the pod's status where Kubernetes enters claims that it made
from templates. kube-scheduler then allocates these devices or none. The claim belongs to the pod and goes with it: the
next pod of the seat gets one for what the seat is then.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Final

from kgwe import errors
from kgwe.kube.api.resource import DRIVER, GPU_CLASS, MIG_CLASS, POD_CLAIM_ANNOTATION
from kgwe.model import amounts
from kgwe.placement.snapshot import bits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kgwe.kube.api import core
    from kgwe.kube.fleet import Cards
    from kgwe.placement.live import Holding

#: what the claim is called in the pod
CLAIM: Final = "gpus"
#: the template that is not there
NO_TEMPLATE: Final = "claimed-by-kgwe-scheduler"
_NAME_MAX: Final = 253
_DIGEST_CHARS: Final = 8


def convert(spec: dict[str, Any]) -> None:
    """Have the container that asks for GPUs ask for the claim instead; Permanent when that cannot be said."""
    asking = [each for each in spec["containers"] if _take_gpus(each)]
    if len(asking) != 1 or any(_take_gpus(each) for each in spec.get("initContainers") or ()):
        raise errors.Permanent("with deviceMode DRA exactly one container may ask for GPUs, and no init container")
    wants = asking[0]["resources"]
    wants["claims"] = [*(wants.get("claims") or ()), {"name": CLAIM}]
    mine = {"name": CLAIM, "resourceClaimTemplateName": NO_TEMPLATE}
    spec["resourceClaims"] = [*(spec.get("resourceClaims") or ()), mine]


def _take_gpus(container: dict[str, Any]) -> bool:
    """Whether it asked for GPUs; it does so no longer."""
    wants = container.get("resources") or {}
    found = False
    for part in ("requests", "limits"):
        named = wants.get(part) or {}
        kept = {name: amount for name, amount in named.items() if not amounts.is_gpu(name)}
        if len(kept) < len(named):
            found, wants[part] = True, kept
    return found


def is_used(spec: core.PodSpec) -> bool:
    return any(each.name == CLAIM and each.resourceClaimTemplateName == NO_TEMPLATE for each in spec.resourceClaims)


def devices(holding: Holding, cards: Cards) -> list[str]:
    """UUIDs of the cards or slices of a seat; Permanent when they are not known."""
    try:
        whole = [cards.uuids[card] for card in bits(holding.cards)] if not holding.slices else []
        found = whole + [cards.slices[each][1] for each in holding.slices]
    except KeyError as exc:
        raise errors.Permanent(f"{holding.node}: nobody says what its card or slice {exc} is called") from exc
    if not found:
        raise errors.Permanent(f"{holding.node}: the plan names no cards")
    return found


def claim(pod: core.Pod, holding: Holding, uuids: Sequence[str], labels: dict[str, str]) -> dict[str, Any]:
    """The ResourceClaim of a pod. Its name tells its devices: one of that name is the one that is wanted."""
    meta = pod.metadata
    digest = hashlib.sha256(" ".join((meta.uid, *sorted(uuids))).encode()).hexdigest()[:_DIGEST_CHARS]
    listed = ", ".join(f"'{uuid}'" for uuid in uuids)
    mine = f"device.attributes['{DRIVER}']"
    request = {
        "deviceClassName": MIG_CLASS if holding.slices else GPU_CLASS,
        "allocationMode": "ExactCount",
        "count": len(uuids),
        "selectors": [{"cel": {"expression": f"has({mine}.uuid) && {mine}.uuid in [{listed}]"}}],
    }
    return {
        "metadata": {
            "name": f"{meta.name[: _NAME_MAX - _DIGEST_CHARS - 1]}-{digest}",
            "namespace": meta.namespace,
            "labels": labels,
            "annotations": {POD_CLAIM_ANNOTATION: CLAIM},
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "Pod", "name": meta.name, "uid": meta.uid, "controller": True}
            ],
        },
        "spec": {"devices": {"requests": [{"name": CLAIM, "exactly": request}]}},
    }


def entry(pod: core.Pod, name: str) -> dict[str, Any]:
    """The patch of the pod's status that tells which claim is its own."""
    return {
        "metadata": {"uid": pod.metadata.uid},
        "status": {"resourceClaimStatuses": [{"name": CLAIM, "resourceClaimName": name}]},
    }
