"""GPUs as ResourceSlices describe them: which exist, their properties, and the names by which they can be claimed.

NVIDIA's driver publishes a device for each whole GPU and for each existing MIG slice; a GPU that is cut is known by its
slices. ResourceSlices do not describe wiring, NUMA and health, so these are unknown here. A slice without a UUID would
have to be cut first, and is left out.
"""

from __future__ import annotations

import collections
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kgwe import errors
from kgwe.kube.api.kgwe.gpunode import GPUDevice, GPUHealth, GPUNode, GPUNodeStatus, HealthState, MIGInstance, MIGState
from kgwe.kube.api.meta import ObjectMeta
from kgwe.kube.api.resource import DRIVER
from kgwe.model.gpu import catalog
from kgwe.model.units import quantity

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from kgwe.kube.api.resource import Device, ResourceSlice

_MINOR: Final = re.compile(r"gpu-(\d{1,3})(?:-.*)?")
_MEMORY_SLICE: Final = re.compile(r"memorySlice(\d{1,2})")
_MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Claimable:
    """The devices of one node that can be claimed."""

    #: UUID of a GPU or slice -> whether it can be claimed now
    uuids: Mapping[str, bool]
    #: the node as its devices describe it
    described: GPUNode


class DeviceSlices:
    """The ResourceSlices of NVIDIA's driver."""

    def __init__(self) -> None:
        self._slices: dict[str, ResourceSlice] = {}
        self._on: dict[str, dict[str, None]] = collections.defaultdict(dict)  # node -> its slices
        self._nodes: dict[str, Claimable] = {}
        # (pool, device) -> (node, UUID). Names stay known: a device that is no longer offered may still be in use.
        self._names: dict[tuple[str, str], tuple[str, str]] = {}

    def set_slice(self, name: str, new: ResourceSlice | None) -> frozenset[str]:
        """Set a ResourceSlice; returns the nodes whose devices may have changed."""
        before = self._slices.pop(name, None)
        if before is not None:
            self._on[before.spec.nodeName].pop(name)
        if new is not None and new.spec.driver == DRIVER and new.spec.nodeName:
            self._slices[name] = new
            self._on[new.spec.nodeName][name] = None
        if before is not None and new is not None and before.spec == new.spec:
            return frozenset()
        nodes = frozenset(each.spec.nodeName for each in (before, self._slices.get(name)) if each is not None)
        for node in nodes:
            self._read_node(node)
        return nodes

    def devices_on(self, node: str) -> Claimable | None:
        """The devices of the node that can be claimed; None: no driver publishes any."""
        return self._nodes.get(node)

    def find_device(self, pool: str, device: str) -> tuple[str, str] | None:
        """(node, UUID) of a device as a claim names it."""
        return self._names.get((pool, device))

    def _read_node(self, node: str) -> None:
        pools: dict[str, list[ResourceSlice]] = collections.defaultdict(list)
        for name in self._on[node]:
            pools[self._slices[name].spec.pool.name].append(self._slices[name])
        devices: list[Device] = []
        for pool, slices in pools.items():
            # While a driver replaces the slices of a pool, those of the previous generation do not count.
            newest = max(each.spec.pool.generation for each in slices)
            mine = [device for each in slices if each.spec.pool.generation == newest for device in each.spec.devices]
            self._names |= {(pool, device.name): (node, uuid) for device in mine if (uuid := device.text("uuid"))}
            devices += mine
        if devices:
            uuids = {uuid: device.is_open for device in devices if (uuid := device.text("uuid"))}
            self._nodes[node] = Claimable(uuids, describe_node(node, devices))
        else:
            self._nodes.pop(node, None)


def describe_node(node: str, devices: Iterable[Device]) -> GPUNode:
    """The node as its devices describe it."""
    whole: dict[str, Device] = {}
    slices: dict[str, list[Device]] = collections.defaultdict(list)
    for device in devices:
        uuid, kind = device.text("uuid"), device.text("type")
        if kind == "gpu" and uuid:
            whole[uuid] = device
        elif kind == "mig" and uuid and device.text("parentUUID"):
            slices[device.text("parentUUID")].append(device)
    found = [*((uuid, device) for uuid, device in whole.items()), *_list_cut(whole, slices)]
    gpus = tuple(_build_gpu(uuid, index, device, slices.get(uuid, ())) for index, (uuid, device) in _number_gpus(found))
    model = gpus[0].model if gpus else ""
    return GPUNode(metadata=ObjectMeta(name=node), status=GPUNodeStatus(gpus=gpus, gpuCount=len(gpus), model=model))


def _list_cut(whole: Mapping[str, Device], slices: Mapping[str, list[Device]]) -> Iterator[tuple[str, Device]]:
    for parent, parts in slices.items():
        if parent not in whole:
            yield parent, parts[0]


def _number_gpus(found: list[tuple[str, Device]]) -> list[tuple[int, tuple[str, Device]]]:
    """Number the GPUs by the minor numbers in their names if these are unique, else in the order of UUIDs."""
    numbers = [int(match[1]) if (match := _MINOR.fullmatch(device.name)) else -1 for _, device in found]
    if -1 in numbers or len(set(numbers)) < len(numbers):
        return list(enumerate(sorted(found, key=lambda each: each[0])))
    return sorted(zip(numbers, found, strict=True), key=lambda each: each[0])


def _build_gpu(uuid: str, index: int, device: Device, slices: Iterable[Device]) -> GPUDevice:
    """`device`: the GPU itself, or one of its slices."""
    model = device.text("productName")
    is_whole = device.text("type") == "gpu"
    # The memory of a slice is not that of its GPU: use that of the model, if it is known.
    known = _find_model(model)
    memory = _read_memory_mib(device) if is_whole else known.memory_mib if known else 0
    architecture = device.text("architecture")
    is_cut = not is_whole
    state = HealthState.UNKNOWN if device.is_open or is_cut else HealthState.UNHEALTHY
    instances = tuple(each for part in slices if part.is_open and (each := _read_slice(part)) is not None)
    return GPUDevice(
        uuid=uuid,
        index=index,
        model=model,
        memoryMiB=memory,
        health=GPUHealth(state=state, reason="" if state == HealthState.UNKNOWN else "DeviceTainted"),
        architecture=architecture if architecture in set(catalog.Architecture) else "",
        computeCapability=".".join(device.text("cudaComputeCapability").split(".")[:2]),
        mig=MIGState(capable=is_cut or bool(known and known.geometry), enabled=is_cut, instances=instances),
    )


def _read_slice(device: Device) -> MIGInstance | None:
    """A slice; None: its position on the GPU is unknown."""
    starts = sorted(int(match[1]) for name in device.capacity if (match := _MEMORY_SLICE.fullmatch(name)))
    profile = device.text("profile")
    if not starts or not profile:
        return None
    return MIGInstance(
        uuid=device.text("uuid"),
        profile=profile,
        instanceID=0,
        start=starts[0],
        size=len(starts),
        memoryMiB=_read_memory_mib(device),
    )


def _read_memory_mib(device: Device) -> int:
    try:
        return quantity.parse_bytes(device.capacity["memory"].value) // _MIB if "memory" in device.capacity else 0
    except errors.Permanent:
        return 0


def _find_model(name: str) -> catalog.GpuModel | None:
    try:
        return catalog.find_model(name)
    except errors.Permanent:
        return None
