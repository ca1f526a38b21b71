"""The MIG part of agent, device plugin and kubelet of a simulated node: layouts, advertised devices and holders.

The agent's own code changes the layouts, on GPUs that exist only in the GPUNode's status. Nodes with their own agent
(`spec.source` Agent) are partitioned by it; here only the devices of their Node are updated.
"""

from __future__ import annotations

import uuid as uuids
from typing import TYPE_CHECKING, Final

import msgspec

from kgwe import errors
from kgwe.apps.agent.mig.reconfigurer import MigReconfigurer
from kgwe.kube.api.kgwe import gpunode
from kgwe.kube.translate import mig_layouts, podspec
from kgwe.model.devices import shares as share
from kgwe.model.gpu import catalog, driver_data, mig
from kgwe.model.gpu.topology import Slot
from kgwe.model.health import health
from kgwe.model.units import amounts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kgwe.kube.api import core

# More steps than any layout change needs, on all GPUs of a node.
_MOST_ROUNDS: Final = 200


# --- advertised devices ---------------------------------------------------------------------------------


def is_withheld(
    card: gpunode.GPUDevice, instance: gpunode.MIGInstance | None, layout: gpunode.MIGLayout | None
) -> bool:
    """Return whether the device plugin withholds the GPU because its layout is about to change."""
    if instance is not None:
        return not mig_layouts.is_offered(card, instance, layout)
    return mig_layouts.is_held_back(card, layout, {}, ())


def count_shares(node: core.Node) -> int:
    """Return the number of shares per whole GPU of the node; 0 if GPUs are not shared."""
    said = podspec.int_label(node.metadata.labels, podspec.GPU_REPLICAS_LABEL) or 0
    return said if said >= share.FEWEST else 0


def count_devices(obj: gpunode.GPUNode, shares: int = 0) -> tuple[dict[str, int], dict[str, int]]:
    """Return extended resource -> number of devices and of allocatable devices; strategy mixed.

    `shares` is the number of shares per whole GPU; 0 means none.
    """
    layouts = mig_layouts.read_layouts(obj)
    there: dict[str, int] = {amounts.GPU: 0}
    open_: dict[str, int] = {amounts.GPU: 0}
    for card in obj.status.gpus:
        layout = layouts.get(card.uuid)
        parts: list[tuple[str, gpunode.MIGInstance | None]] = [
            (mig.resource_of(each.profile), each) for each in card.mig.instances
        ]
        if not card.mig.enabled:
            parts = [(amounts.SHARED, None)] * shares or [(amounts.GPU, None)]
        for name, instance in parts:
            is_open = health.is_in_service(card.health.state) and not is_withheld(card, instance, layout)
            there[name] = there.get(name, 0) + 1
            open_[name] = open_.get(name, 0) + is_open
    return there, open_


def compute_resources(node: core.Node, obj: gpunode.GPUNode) -> tuple[dict[str, str], dict[str, str]] | None:
    """Return the correct (capacity, allocatable); None if they are already set, or if slices are advertised as plain
    GPUs.
    """
    if node.metadata.labels.get(mig_layouts.STRATEGY_LABEL) == "single":
        return None
    status = node.status
    there, open_ = count_devices(obj, count_shares(node))
    # A resource that was advertised once stays, with zero devices.
    gone = {name: "0" for name in status.capacity if amounts.is_gpu(name) and name not in there}
    capacity = {**status.capacity, **gone, **{name: str(count) for name, count in there.items()}}
    allocatable = {**status.allocatable, **gone, **{name: str(count) for name, count in open_.items()}}
    return None if (capacity, allocatable) == (status.capacity, status.allocatable) else (capacity, allocatable)


# --- layouts --------------------------------------------------------------------------------------------


async def apply_layout(obj: gpunode.GPUNode, taken: frozenset[str]) -> gpunode.GPUNodeStatus:
    """Return the status after all changes that are possible now."""
    driver = _Cards(obj.status)

    async def users() -> frozenset[str]:
        return taken

    cutter = MigReconfigurer(driver, users=users)
    cutter.set_layouts(mig_layouts.read_layouts(obj))
    for _ in range(_MOST_ROUNDS):
        if not await cutter.step():
            break
    plain = tuple(
        msgspec.structs.replace(card, mig=msgspec.structs.replace(driver.states[card.uuid], phase="", message=""))
        for card in obj.status.gpus
    )
    return cutter.amend_status(msgspec.structs.replace(obj.status, gpus=plain))


class _Cards:
    """A GpuDriver over the status of a GPUNode, with the MIG rules of the GPU model."""

    def __init__(self, status: gpunode.GPUNodeStatus) -> None:
        self._status = status
        self.states = {card.uuid: card.mig for card in status.gpus}

    async def machine(self) -> driver_data.Machine:
        return driver_data.Machine("", "", tuple(self._device(card) for card in self._status.gpus))

    def _device(self, card: gpunode.GPUDevice) -> driver_data.Device:
        state = self.states[card.uuid]
        instances = tuple(
            driver_data.Instance(each.uuid, each.instanceID, each.profile, each.start, each.size, each.memoryMiB)
            for each in state.instances
        )
        cut_so = driver_data.MigState(is_capable=state.capable, is_enabled=state.enabled, instances=instances)
        return driver_data.Device(card.uuid, card.index, card.model, card.memoryMiB, Slot(bus=""), mig=cut_so)

    async def readings(self) -> Sequence[driver_data.Reading]:
        return ()

    async def events(self, timeout_s: float) -> Sequence[driver_data.Event]:
        del timeout_s
        return ()

    async def set_mig_mode(self, uuid: str, *, enabled: bool) -> bool:
        if self.states[uuid].instances:
            raise errors.Conflict(f"{uuid} has MIG slices")
        self.states[uuid] = msgspec.structs.replace(self.states[uuid], enabled=enabled)
        return True

    async def reset(self, uuid: str) -> None:
        del uuid

    async def create_instance(self, uuid: str, profile: str, start: int) -> driver_data.Instance:
        state = self.states[uuid]
        geometry = self._geometry(uuid)
        place = mig.parse_placement(geometry, f"{profile}@{start}")
        others = [mig.parse_placement(geometry, f"{each.profile}@{each.start}") for each in state.instances]
        if wrong := mig.find_problems(geometry, [*others, place]):
            raise errors.Conflict("; ".join(wrong))
        made = gpunode.MIGInstance(
            uuid=f"MIG-{uuids.uuid4()}",
            profile=profile,
            instanceID=place.instance_id(geometry),
            start=start,
            size=place.profile.units,
            memoryMiB=place.profile.memory_mib,
        )
        instances = tuple(sorted((*state.instances, made), key=lambda each: each.start))
        self.states[uuid] = msgspec.structs.replace(state, instances=instances)
        return driver_data.Instance(made.uuid, made.instanceID, profile, start, made.size, made.memoryMiB)

    async def destroy_instance(self, uuid: str, instance_id: int) -> None:
        state = self.states[uuid]
        left = tuple(each for each in state.instances if each.instanceID != instance_id)
        if len(left) == len(state.instances):
            raise errors.NotFound(f"{uuid} has no MIG slice {instance_id}")
        self.states[uuid] = msgspec.structs.replace(state, instances=left)

    async def close(self) -> None:
        pass

    def _geometry(self, uuid: str) -> mig.Geometry:
        product = next(card.model for card in self._status.gpus if card.uuid == uuid)
        geometry = catalog.find_model(product).geometry
        if geometry is None:
            raise errors.Permanent(f"a {product} does not support MIG")
        return geometry
