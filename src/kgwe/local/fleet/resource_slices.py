"""ResourceSlices of a simulated node as NVIDIA's DRA driver publishes them, and their DeviceClasses."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

import msgspec

from kgwe import errors
from kgwe.kube.api import resources
from kgwe.kube.api.resource import DRIVER, GPU_CLASS, MIG_CLASS
from kgwe.model.health import health
from kgwe.model.simfleet import inventory
from kgwe.model.units import quantity

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kgwe.kube.api.kgwe.gpunode import GPUDevice, GPUNode
    from kgwe.kube.api.resource import ResourceSlice
    from kgwe.kube.client.client import KubeClient

_CLASSES: Final = {GPU_CLASS: "gpu", MIG_CLASS: "mig"}


async def apply_device_classes(client: KubeClient) -> None:
    """Create the DeviceClasses of the driver; existing ones stay unchanged."""
    for name, kind in _CLASSES.items():
        expression = f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].type == '{kind}'"
        body = {"metadata": {"name": name}, "spec": {"selectors": [{"cel": {"expression": expression}}]}}
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
            "devices": [device for card in cards for device in _list_devices(card, gpu_node)],
        },
    }


def _list_devices(card: GPUDevice, gpu_node: GPUNode) -> list[dict[str, Any]]:
    driver = _format_version(gpu_node.status.driverVersion)
    common = {
        "productName": {"string": card.model},
        "brand": {"string": "Nvidia"},
        "architecture": {"string": card.architecture},
        "cudaComputeCapability": {"version": _format_version(card.computeCapability)},
        "driverVersion": {"version": driver},
        "cudaDriverVersion": {"version": _format_version(gpu_node.status.cudaVersion)},
    }
    if card.pcie is not None and card.pcie.busID:
        common["pcieBusID"] = {"string": card.pcie.busID}
    if not card.mig.enabled:
        attributes = {"type": {"string": "gpu"}, "uuid": {"string": card.uuid}, **common}
        return [_build_device(f"gpu-{card.index}", attributes, {"memory": _format_memory(card.memoryMiB)})]
    found = []
    for each in card.mig.instances:
        attributes = {
            "type": {"string": "mig"},
            "uuid": {"string": each.uuid},
            "parentUUID": {"string": card.uuid},
            "profile": {"string": each.profile},
            **common,
        }
        places = {f"memorySlice{number}": "1" for number in range(each.start, each.start + each.size)}
        name = f"gpu-{card.index}-mig-{each.instanceID}-{each.start}-{each.size}"
        found.append(_build_device(name, attributes, {"memory": _format_memory(each.memoryMiB), **places}))
    return found


def _build_device(name: str, attributes: Mapping[str, Any], capacity: Mapping[str, str]) -> dict[str, Any]:
    return {
        "name": name,
        "attributes": dict(attributes),
        "capacity": {key: {"value": value} for key, value in capacity.items()},
    }


def _format_memory(mib: int) -> str:
    """Return the amount as the API server formats it."""
    return quantity.format_bytes(mib << 20)


def _format_version(text: str) -> str:
    """Return a semantic version: three numbers without leading zeros."""
    numbers = [str(int(part)) for part in text.split(".") if part.isdecimal()][:3]
    return ".".join([*numbers, *("0" for _ in range(3 - len(numbers)))])
