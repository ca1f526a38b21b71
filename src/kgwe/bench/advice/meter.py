"""A meter that shares no code with the optimizer: the devices that pods hold on nodes, read from the API every few
seconds, at the price of each node.

A node's price is divided by its GPUs, a GPU by what the node makes of it: slices by their memory, shares by their
number.
"""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kgwe.kube.api import resources
from kgwe.model.devices import assignment

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from kgwe.kube.api.core import Node
    from kgwe.kube.api.kgwe.gpunode import GPUDevice, GPUNode, HeldDevices
    from kgwe.kube.client.client import KubeClient

_STEP_S: Final = 2.0
_HOUR_S: Final = 3600.0
_TYPE_LABEL: Final = "node.kubernetes.io/instance-type"
_REPLICAS_LABEL: Final = "nvidia.com/gpu.replicas"


@dataclass(frozen=True, slots=True)
class Bill:
    """The metered cost of all pods of a namespace."""

    dollars_per_hour: float
    pods: int
    """Pods that held devices at the end."""
    unmetered: int
    """Running pods that held no device, or one on a node without a price, at some time."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What the pods of a namespace held at one moment."""

    dollars_per_hour: float
    pods: frozenset[str]
    unpriced: frozenset[str]


@dataclass(frozen=True, slots=True)
class AllocationMeter:
    """Meters a namespace. `prices`: instance type -> dollars per hour of a node."""

    client: KubeClient
    namespace: str
    prices: Mapping[str, float]

    async def meter(self, length_s: float) -> Bill:
        """Read for so long; return what the pods cost per hour meanwhile."""
        started = last = time.monotonic()
        dollars, pods, unmetered = 0.0, frozenset[str](), set[str]()
        while last - started < length_s:
            await asyncio.sleep(_STEP_S)
            reading, running = await self._read()
            now = time.monotonic()
            dollars += reading.dollars_per_hour * (now - last) / _HOUR_S
            last = now
            pods = reading.pods
            unmetered |= reading.unpriced | (running - reading.pods)
        return Bill(dollars * _HOUR_S / (last - started), len(pods), len(unmetered))

    async def _read(self) -> tuple[Reading, frozenset[str]]:
        nodes = await self.client.list(resources.NODE)
        gpu_nodes = await self.client.list(resources.GPU_NODE)
        pods = await self.client.list(resources.POD, self.namespace)
        running = (each.metadata for each in pods if each.status.phase == "Running")
        reading = read_allocations(nodes, gpu_nodes, self.namespace, self.prices)
        return reading, frozenset(each.key for each in running if each.deletionTimestamp is None)


def read_allocations(
    nodes: Iterable[Node], gpu_nodes: Iterable[GPUNode], namespace: str, prices: Mapping[str, float]
) -> Reading:
    """Return what the pods of a namespace hold and cost per hour."""
    labels = {each.metadata.name: each.metadata.labels for each in nodes}
    costs: list[float] = []
    seen, unpriced = set[str](), set[str]()
    for each in gpu_nodes:
        mine = labels.get(each.metadata.name, {})
        price = prices.get(mine.get(_TYPE_LABEL, ""))
        for held in each.status.held:
            if not held.pod.startswith(f"{namespace}/"):
                continue
            seen.add(held.pod)
            parts = list(_list_parts(each, held, int(mine.get(_REPLICAS_LABEL, "1"))))
            if price is None or not parts:
                unpriced.add(held.pod)
            else:
                costs.append(price * math.fsum(parts) / len(each.status.gpus))
    return Reading(math.fsum(costs), frozenset(seen), frozenset(unpriced))


def _list_parts(node: GPUNode, held: HeldDevices, replicas: int) -> Iterator[float]:
    """Return the part of a GPU that each device of a pod is."""
    gpus = {gpu.index: gpu for gpu in node.status.gpus}
    if held.replicas:
        yield held.replicas / replicas
    else:
        yield from (1.0 for number in assignment.DeviceSet(assignment.parse_mask(held.cards)).numbers if number in gpus)
    for number, start in assignment.parse_slices(held.slices):
        if (gpu := gpus.get(number)) is not None:
            yield from _list_slices(gpu, start)


def _list_slices(gpu: GPUDevice, start: int) -> Iterator[float]:
    whole = sum(each.memoryMiB for each in gpu.mig.instances)
    yield from (each.memoryMiB / whole for each in gpu.mig.instances if each.start == start and whole)
