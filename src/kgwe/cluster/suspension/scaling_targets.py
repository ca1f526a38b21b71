"""HorizontalPodAutoscalers that set the replicas of an owner: KGWE does not scale against them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kgwe.kube.api.owners import HorizontalPodAutoscaler
from kgwe.kube.api.resources import Resource

if TYPE_CHECKING:
    from kgwe.cluster.suspension.owner_search import Owner
    from kgwe.kube.client.client import KubeClient


HORIZONTAL_POD_AUTOSCALER: Final = Resource(
    "autoscaling",
    "v2",
    "horizontalpodautoscalers",
    "HorizontalPodAutoscaler",
    namespaced=True,
    type=HorizontalPodAutoscaler,
)


async def find_autoscaler(client: KubeClient, owner: Owner) -> str:
    """The name of an autoscaler of the owner, or of an owner between it and the pod; empty: there is none."""
    targets = {(owner.kind.resource.kind, owner.meta.name)}
    targets |= {(kind.resource.kind, name) for kind, name in owner.between}
    for each in await client.list(HORIZONTAL_POD_AUTOSCALER, owner.meta.namespace):
        target = each.spec.scaleTargetRef
        if (target.kind, target.name) in targets:
            return each.metadata.name
    return ""
