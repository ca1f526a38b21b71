"""Which devices pods hold, where the cluster says so: the agents' GPUNodes, and allocated ResourceClaims."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kgwe.costing.metering.division import GpuClaim
from kgwe.costing.segments import Part
from kgwe.kube.translate.resource_slices import DeviceSlices
from kgwe.model.devices import assignment

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from kgwe.kube.api.kgwe.gpunode import GPUNode
    from kgwe.kube.api.resource import ResourceClaim, ResourceSlice


class KnownDevices:
    """Devices of pods by node and pod key (namespace/name)."""

    def __init__(self) -> None:
        self._slices = DeviceSlices()
        self._held: dict[str, dict[str, tuple[GpuClaim, ...]]] = {}
        self._places: dict[str, GpuClaim] = {}
        self._starts: dict[tuple[str, str], int] = {}
        """(UUID of the GPU, id of the GPU instance) -> first memory unit of the slice."""

    def set_gpu_node(self, name: str, gpu_node: GPUNode | None) -> None:
        """Read what an agent reports; None: its GPUNode is gone."""
        if gpu_node is None:
            self._held.pop(name, None)
            return
        self._places.update(list_places(gpu_node))
        self._held[name] = dict(_list_held(gpu_node))
        for gpu in gpu_node.status.gpus:
            self._starts.update({(gpu.uuid, str(each.instanceID)): each.start for each in gpu.mig.instances})

    def find_slice(self, gpu: str, instance: str) -> int | None:
        """Return the first memory unit of a slice; -1 for a whole GPU, None for a slice that is not known."""
        return self._starts.get((gpu, instance)) if instance else -1

    def set_slice(self, name: str, new: ResourceSlice | None) -> frozenset[str]:
        """Read a ResourceSlice; return the nodes whose devices may have changed."""
        changed = self._slices.set_slice(name, new)
        for node in changed:
            if (described := self.describe(node)) is not None:
                self._places.update(list_places(described))
        return changed

    def describe(self, node: str) -> GPUNode | None:
        """Return the GPUs of a node as its ResourceSlices describe them; None if it has none."""
        found = self._slices.devices_on(node)
        return None if found is None else found.described

    def find(self, node: str, pod: str, claims: Iterable[ResourceClaim], *, shared: bool) -> tuple[GpuClaim, ...]:
        """Return what a pod holds; empty if nothing says so. `shared`: its GPUs are shares."""
        found = [*self._held.get(node, {}).get(pod, ())]
        for claim in claims:
            for device in claim.gpus:
                where = self._slices.find_device(device.pool, device.device)
                place = self._places.get(where[1], GpuClaim(where[1])) if where else None
                if place is not None and place not in found:
                    found.append(place)
        if shared:
            found = [each._replace(part=Part.SHARE) if each.part is Part.GPU else each for each in found]
        return tuple(found)


def list_places(gpu_node: GPUNode) -> Iterator[tuple[str, GpuClaim]]:
    """Yield the UUIDs of GPUs and slices with what a pod holds that has them."""
    for gpu in gpu_node.status.gpus:
        yield gpu.uuid, GpuClaim(gpu.uuid)
        for each in gpu.mig.instances:
            yield each.uuid, GpuClaim(gpu.uuid, Part.SLICE, each.start)


def _list_held(gpu_node: GPUNode) -> Iterator[tuple[str, tuple[GpuClaim, ...]]]:
    uuids: Mapping[int, str] = {gpu.index: gpu.uuid for gpu in gpu_node.status.gpus}
    for held in gpu_node.status.held:
        cards = assignment.DeviceSet(assignment.parse_mask(held.cards)).numbers
        whole = [GpuClaim(uuids[number]) for number in cards if number in uuids]
        slices = [
            GpuClaim(uuids[number], Part.SLICE, start)
            for number, start in assignment.parse_slices(held.slices)
            if number in uuids
        ]
        if whole or slices:
            yield held.pod, (*whole, *slices)
