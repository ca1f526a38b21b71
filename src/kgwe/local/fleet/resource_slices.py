"""ResourceSlices of a simulated node as NVIDIA's DRA driver publishes them, and their DeviceClasses."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import msgspec

from kgwe import errors
from kgwe.kube.api import resources
from kgwe.kube.api.resource import DRIVER
from kgwe.kube.translate import device_manifests
from kgwe.model.health import health
from kgwe.model.simfleet import inventory

if TYPE_CHECKING:
    from kgwe.kube.api.kgwe.gpunode import GPUNode
    from kgwe.kube.api.resource import ResourceSlice
    from kgwe.kube.client.client import KubeClient


async def apply_device_classes(client: KubeClient) -> None:
    """Create the DeviceClasses of the driver; existing ones stay unchanged."""
    for body in device_manifests.list_classes():
        with contextlib.suppress(errors.AlreadyExists):
            await client.create(resources.DEVICE_CLASS, body)


async def apply_slices(client: KubeClient, gpu_node: GPUNode | None, old: ResourceSlice | None) -> bool:
    """Update or (None) delete the node's ResourceSlice; return whether it was written."""
    if gpu_node is None:
        if old is not None:
            with contextlib.suppress(errors.NotFound):
                await client.delete(resources.RESOURCE_SLICE, old.metadata.name)
        return old is not None
    generation = old.spec.pool.generation if old is not None else 1
    body = build_manifest(gpu_node, generation)
    if old is None:
        with contextlib.suppress(errors.AlreadyExists):
            await client.create(resources.RESOURCE_SLICE, body)
        return True
    if msgspec.convert(body, resources.RESOURCE_SLICE.type).spec == old.spec:
        return False
    body = build_manifest(gpu_node, generation + 1)
    await client.patch(resources.RESOURCE_SLICE, old.metadata.name, {"spec": body["spec"]})
    return True


async def refresh(client: KubeClient, gpu_node: GPUNode) -> None:
    """Update the node's ResourceSlice if it has one."""
    with contextlib.suppress(errors.NotFound):
        there = await client.get(resources.RESOURCE_SLICE, _format_name(gpu_node))
        await apply_slices(client, gpu_node, there)


def _format_name(gpu_node: GPUNode) -> str:
    return f"{gpu_node.metadata.name}-gpu"


def build_manifest(gpu_node: GPUNode, generation: int = 1) -> dict[str, Any]:
    """Return one ResourceSlice with all GPUs of a node: it holds 128 devices, more than a node has.

    Like the driver, it leaves out GPUs that are out of service.
    """
    name = gpu_node.metadata.name
    cards = [card for card in gpu_node.status.gpus if health.is_in_service(card.health.state)]
    return {
        "metadata": {
            "name": _format_name(gpu_node),
            "labels": {inventory.FLEET_LABEL: gpu_node.metadata.labels.get(inventory.FLEET_LABEL, "")},
            "ownerReferences": [
                {"apiVersion": each.apiVersion, "kind": each.kind, "name": each.name, "uid": each.uid}
                for each in gpu_node.metadata.ownerReferences
            ],
        },
        "spec": {
            "driver": DRIVER,
            "nodeName": name,
            "pool": {"name": name, "generation": generation, "resourceSliceCount": 1},
            "devices": device_manifests.list_devices(gpu_node.status, cards),
        },
    }
