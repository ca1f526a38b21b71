"""Resource claims, slices, and the pods and jobs that use them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.support.builders.objects import (
    added,
    job,
    make,
    node,
    pod,
)

from kgwe.cluster.state.cluster_state import ClusterState
from kgwe.cluster.workload.manifests import dra_claims
from kgwe.kube.api import resources
from kgwe.kube.api.core import PodResourceClaim, PodResourceClaimStatus
from kgwe.kube.api.resource import DRIVER

TEMPLATE = "some-template"


def uuid(name: str, card: int) -> str:
    return f"GPU-{name}-{card}"


def resource_slice(name: str, cards: int = 8) -> Any:
    devices = [
        {"name": f"gpu-{card}", "attributes": {"type": {"string": "gpu"}, "uuid": {"string": uuid(name, card)}}}
        for card in range(cards)
    ]
    spec = {"driver": DRIVER, "nodeName": name, "pool": {"name": name, "generation": 1}, "devices": devices}
    return make(resources.RESOURCE_SLICE.type, {"metadata": {"name": f"{name}-gpu"}, "spec": spec})


def claim(name: str, cards: tuple[int, ...], *, of: str = "", on: str = "n1", **result: Any) -> Any:
    """`of`: uid of the pod it was made for."""
    results = [{"driver": DRIVER, "pool": on, "device": f"gpu-{card}", **result} for card in cards]
    meta = {
        "name": name,
        "namespace": "team",
        "uid": f"claim-{name}",
        "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": of, "controller": True}]
        if of
        else [],
    }
    status = {"allocation": {"devices": {"results": results}}} if cards else {}
    return make(resources.RESOURCE_CLAIM.type, {"metadata": meta, "status": status})


def claiming_job(**more: Any) -> Any:
    return _with_claim(job(gpus=0, **more), TEMPLATE)


def _with_claim(obj: Any, template: str) -> Any:
    mine = (PodResourceClaim(dra_claims.CLAIM, template),)
    spec = obj.spec.template.spec
    spec = msgspec.structs.replace(spec, resourceClaims=mine)
    whole = msgspec.structs.replace(obj.spec.template, spec=spec)
    return msgspec.structs.replace(obj, spec=msgspec.structs.replace(obj.spec, template=whole))


def claiming_pod(name: str = "p", template: str = TEMPLATE, entered: str = "", **more: Any) -> Any:
    made = pod(name, gpus=0, **more)
    spec = msgspec.structs.replace(made.spec, resourceClaims=(PodResourceClaim(dra_claims.CLAIM, template),))
    known = (PodResourceClaimStatus(dra_claims.CLAIM, entered),) if entered else ()
    status = msgspec.structs.replace(made.status, resourceClaimStatuses=known)
    return msgspec.structs.replace(made, spec=spec, status=status)


@pytest.fixture
def state() -> ClusterState:
    made = ClusterState()
    for name in ("n1", "n2"):
        made.on_node(added(node(name)))
        made.on_slice(added(resource_slice(name)))
    return made


def mask(state: ClusterState, name: str = "n1") -> int:
    return int(state.fleet.snapshot.free[state.fleet.snapshot.index[name]])
