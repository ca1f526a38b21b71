"""A meter that shares no code with the optimizer: which pods hold which devices, read every few seconds, at the price
of each node.

A node's price is divided by its GPUs, a GPU by what the node makes of it: slices by their memory, shares by their
number.
"""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from prometheus_client import parser

from kgwe.kube.api import resources

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import httpx2

    from kgwe.kube.api.core import Node
    from kgwe.kube.api.kgwe.gpunode import GPUDevice, GPUNode
    from kgwe.kube.client.client import KubeClient

_STEP_S: Final = 2.0
_HOUR_S: Final = 3600.0
_TYPE_LABEL: Final = "node.kubernetes.io/instance-type"
_REPLICAS_LABEL: Final = "nvidia.com/gpu.replicas"
# A family that exporters have for every GPU, slice and share.
_FAMILY: Final = "DCGM_FI_DEV_FB_USED"


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
class Held:
    """A device that a pod holds."""

    pod: str
    """Its namespace and name."""
    node: str
    uuid: str
    instance: str = ""
    """GPU instance id of a slice; empty for a whole or shared GPU."""


@dataclass(frozen=True, slots=True)
class AllocationMeter:
    """Meters a namespace. `url` has the metrics of all GPUs; `prices`: instance type -> dollars per hour of a node."""

    client: KubeClient
    web: httpx2.AsyncClient
    url: str
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
        # Pods first: one that starts meanwhile is not missing.
        pods = await self.client.list(resources.POD, self.namespace)
        running = (each.metadata for each in pods if each.status.phase == "Running")
        keys = frozenset(each.key for each in running if each.deletionTimestamp is None)
        nodes = await self.client.list(resources.NODE)
        gpu_nodes = await self.client.list(resources.GPU_NODE)
        response = await self.web.get(self.url)
        response.raise_for_status()
        return price_holdings(nodes, gpu_nodes, read_holdings(response.text, self.namespace), self.prices), keys


def read_holdings(text: str, namespace: str) -> set[Held]:
    """Return the devices of a namespace's pods that the metrics name."""
    return {
        Held(f"{namespace}/{labels['pod']}", labels["Hostname"], labels["UUID"], labels.get("GPU_I_ID", ""))
        for family in parser.text_string_to_metric_families(text)
        if family.name == _FAMILY
        for labels in (sample.labels for sample in family.samples)
        if labels.get("namespace") == namespace and labels.get("pod")
    }


def price_holdings(
    nodes: Iterable[Node], gpu_nodes: Iterable[GPUNode], holdings: Iterable[Held], prices: Mapping[str, float]
) -> Reading:
    """Return what the devices cost per hour."""
    labels = {each.metadata.name: each.metadata.labels for each in nodes}
    gpus = {each.metadata.name: {gpu.uuid: gpu for gpu in each.status.gpus} for each in gpu_nodes}
    costs: list[float] = []
    seen, unpriced = set[str](), set[str]()
    for held in holdings:
        seen.add(held.pod)
        mine, here = labels.get(held.node, {}), gpus.get(held.node, {})
        price = prices.get(mine.get(_TYPE_LABEL, ""))
        gpu = here.get(held.uuid)
        part = _find_part(gpu, held.instance, int(mine.get(_REPLICAS_LABEL, "1"))) if gpu is not None else None
        if price is None or part is None:
            unpriced.add(held.pod)
        else:
            costs.append(price * part / len(here))
    return Reading(math.fsum(costs), frozenset(seen), frozenset(unpriced))


def _find_part(gpu: GPUDevice, instance: str, replicas: int) -> float | None:
    """Return the part of a GPU that a device is; None for a slice that the GPU does not have."""
    if not instance:
        return 1.0 / replicas
    whole = sum(each.memoryMiB for each in gpu.mig.instances)
    return next((each.memoryMiB / whole for each in gpu.mig.instances if str(each.instanceID) == instance), None)
