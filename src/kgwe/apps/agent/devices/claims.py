"""Devices that pods may hold, for kubelets that do not list them: all devices of a requested kind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kgwe.model.gpu import mig
from kgwe.model.units import amounts

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kgwe.hardware.driver import GpuDriver
    from kgwe.kube.api import core
    from kgwe.kube.client.informer import Informer
    from kgwe.model.gpu.driver_data import Machine

_ENDED: Final = ("Succeeded", "Failed")


def find_claimed_devices(machine: Machine, pods: Iterable[core.Pod]) -> frozenset[str]:
    """Return the UUIDs of GPUs and slices that pods may hold: all of a requested kind, because the pod of each is
    unknown.
    """
    alive = [pod for pod in pods if pod.status.phase not in _ENDED]
    if any(pod.spec.resourceClaims for pod in alive):
        # A ResourceClaim may be for any GPU or slice.
        return frozenset(
            uuid for card in machine.devices for uuid in (card.uuid, *(i.uuid for i in card.mig.instances))
        )
    kinds = {
        name
        for pod in alive
        for container in (*pod.spec.initContainers, *pod.spec.containers)
        for name in (*container.resources.limits, *container.resources.requests)
    }
    is_asked = bool({amounts.GPU, amounts.SHARED} & kinds)
    found = {card.uuid for card in machine.devices if is_asked and not card.mig.is_enabled}
    for card in machine.devices:
        found |= {each.uuid for each in card.mig.instances if mig.resource_of(each.profile) in kinds}
    return frozenset(found)


class ClaimedDevices:
    """`DeviceUsers` from the pods that the API server shows on this node."""

    def __init__(self, driver: GpuDriver, pods: Informer[core.Pod]) -> None:
        self._driver = driver
        self._pods = pods

    async def __call__(self) -> frozenset[str] | None:
        if not self._pods.has_synced:
            return None
        return find_claimed_devices(await self._driver.machine(), self._pods.store.values())
