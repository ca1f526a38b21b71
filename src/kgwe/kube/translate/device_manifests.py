"""Devices of a node as a driver for dynamic resource allocation publishes them, from the status of its GPUNode.

Names and attributes of whole GPUs and MIG slices are those of NVIDIA's driver, so that the same claims work with both.
A GPU that is shared is one device of another type, which several claims may have: each consumes a part of its capacity.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kgwe.kube.api import resources
from kgwe.kube.api.resource import DRIVER, GPU_CLASS, MIG_CLASS, SHARED_CLASS
from kgwe.model.units import quantity

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from kgwe.kube.api.kgwe.gpunode import GPUDevice, GPUNodeStatus, MIGInstance

#: device class -> the attribute `type` of its devices
_TYPES: Final = {GPU_CLASS: "gpu", MIG_CLASS: "mig", SHARED_CLASS: "shared"}
#: capacity of a shared GPU
SHARES: Final = "shares"


def list_classes() -> Iterator[dict[str, Any]]:
    """Yield the DeviceClasses of the driver."""
    for name, kind in _TYPES.items():
        expression = f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].type == '{kind}'"
        yield {
            "apiVersion": resources.DEVICE_CLASS.api_version,
            "kind": resources.DEVICE_CLASS.kind,
            "metadata": {"name": name},
            "spec": {"selectors": [{"cel": {"expression": expression}}]},
        }


def list_devices(status: GPUNodeStatus, gpus: Iterable[GPUDevice], *, pieces: int = 0) -> list[dict[str, Any]]:
    """Return the devices of these GPUs; `pieces`: shares of each unpartitioned GPU, 0: not shared."""
    return [device for gpu in gpus for device in _list_devices_of(gpu, _common_attributes(status, gpu), pieces)]


def name_gpu(gpu: GPUDevice) -> str:
    return f"gpu-{gpu.index}"


def name_shared(gpu: GPUDevice) -> str:
    return f"gpu-{gpu.index}-shared"


def name_slice(gpu: GPUDevice, instance: MIGInstance) -> str:
    return f"gpu-{gpu.index}-mig-{instance.instanceID}-{instance.start}-{instance.size}"


def _list_devices_of(gpu: GPUDevice, common: Mapping[str, Any], pieces: int) -> list[dict[str, Any]]:
    if gpu.mig.enabled:
        return [_build_slice(gpu, each, common) for each in gpu.mig.instances]
    if pieces:
        return [_build_shared(gpu, common, pieces)]
    attributes = {"type": {"string": "gpu"}, "uuid": {"string": gpu.uuid}, **common}
    return [_build_device(name_gpu(gpu), attributes, {"memory": _format_memory(gpu.memoryMiB)})]


def _build_slice(gpu: GPUDevice, instance: MIGInstance, common: Mapping[str, Any]) -> dict[str, Any]:
    attributes = {
        "type": {"string": "mig"},
        "uuid": {"string": instance.uuid},
        "parentUUID": {"string": gpu.uuid},
        "profile": {"string": instance.profile},
        **common,
    }
    places = {f"memorySlice{number}": "1" for number in range(instance.start, instance.start + instance.size)}
    return _build_device(
        name_slice(gpu, instance), attributes, {"memory": _format_memory(instance.memoryMiB), **places}
    )


def _build_shared(gpu: GPUDevice, common: Mapping[str, Any], pieces: int) -> dict[str, Any]:
    """Build a GPU that several claims may have. A claim consumes one share and its part of the memory by default."""
    # Not `uuid`: readers take a device with that attribute for a whole GPU.
    attributes = {"type": {"string": "shared"}, "gpuUUID": {"string": gpu.uuid}, **common}
    part = _format_memory(gpu.memoryMiB // pieces)
    return {
        "name": name_shared(gpu),
        "attributes": attributes,
        "allowMultipleAllocations": True,
        "capacity": {
            SHARES: {"value": str(pieces), "requestPolicy": {"default": "1", "validRange": {"min": "1", "step": "1"}}},
            "memory": {
                "value": _format_memory(gpu.memoryMiB),
                "requestPolicy": {"default": part, "validRange": {"min": "1Mi", "step": "1Mi"}},
            },
        },
    }


def _common_attributes(status: GPUNodeStatus, gpu: GPUDevice) -> dict[str, Any]:
    common: dict[str, Any] = {
        "productName": {"string": gpu.model},
        "brand": {"string": "Nvidia"},
        "architecture": {"string": gpu.architecture},
        "cudaComputeCapability": {"version": _format_version(gpu.computeCapability)},
        "driverVersion": {"version": _format_version(status.driverVersion)},
        "cudaDriverVersion": {"version": _format_version(status.cudaVersion)},
    }
    if gpu.pcie is not None and gpu.pcie.busID:
        common["pcieBusID"] = {"string": gpu.pcie.busID}
    return common


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
