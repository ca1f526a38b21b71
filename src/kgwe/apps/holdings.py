"""Which pod holds which device, as agents report it in GPUNodes.

Agents do not name pods in the metrics of MIG slices, nor pods that hold a GPU without running a process on it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kgwe.metrics.holdings import Holding
from kgwe.model.devices import assignment
from kgwe.model.usage.window import PodKey

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kgwe.kube.api.kgwe.gpunode import GPUNode


def list_holdings(nodes: Iterable[GPUNode]) -> Iterator[Holding]:
    """Return each device that a pod holds. Devices that the node does not have are left out."""
    for node in nodes:
        gpus = {gpu.index: gpu for gpu in node.status.gpus}
        for held in node.status.held:
            namespace, _, name = held.pod.partition("/")
            pod = PodKey(namespace, name)
            places = assignment.DeviceSet(assignment.parse_mask(held.cards), assignment.parse_slices(held.slices))
            for number in places.numbers:
                if (gpu := gpus.get(number)) is not None:
                    yield Holding(node.metadata.name, gpu.uuid, "", pod)
            for number, start in places.slices:
                if (gpu := gpus.get(number)) is not None:
                    for each in gpu.mig.instances:
                        if each.start == start:
                            yield Holding(node.metadata.name, gpu.uuid, str(each.instanceID), pod)
