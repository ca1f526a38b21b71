"""The devices that a node advertises, as the resources of a device plugin.

A whole GPU is one device of `<prefix>/gpu` or, where GPUs are shared, several shares of `<prefix>/gpu.shared`, never
both: a whole GPU belongs to one pod. Each slice of a partitioned GPU is one device of `<prefix>/mig-<profile>`. A GPU
that is lost, out of service or about to be cut is advertised as unhealthy with all its shares: pods keep it, but no new
pod gets it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from kgwe.model.devices import holdings
from kgwe.model.gpu import mig
from kgwe.model.units import amounts

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from kgwe.model.gpu.driver_data import Device, Machine

DEFAULT_PREFIX: Final = "nvidia.com"


@dataclass(frozen=True, slots=True)
class OfferedDevice:
    """One device."""

    id: str
    gpu: int
    is_healthy: bool
    numa: int | None = None
    start: int | None = None
    """Start of the slice; None: the whole GPU."""
    minor: int | None = None
    """Of the GPU's device node."""
    piece: int | None = None
    """Number of the share of a shared GPU; None: the device is not shared."""

    @property
    def place(self) -> int | None:
        """Its part of the GPU: start of the slice, or number of the share; None: the whole GPU."""
        return self.start if self.start is not None else self.piece

    @property
    def uuid(self) -> str:
        return holdings.device_uuid(self.id)


def list_advertised(
    machine: Machine, *, out_of_service: Collection[str] = (), prefix: str = DEFAULT_PREFIX, pieces: int = 0
) -> dict[str, tuple[OfferedDevice, ...]]:
    """Resource -> its devices.

    `out_of_service`: UUIDs of GPUs or slices; `pieces`: shares of each whole GPU, 0: not shared. The resources of whole
    GPUs and of shares are listed even when empty, so that the kubelet knows them and forgets GPUs that are shared now.
    """
    found: dict[str, list[OfferedDevice]] = {with_prefix(amounts.GPU, prefix): []}
    if pieces:
        found[with_prefix(amounts.SHARED, prefix)] = []
    for device in machine.devices:
        is_fit = not (device.is_lost or device.mig.is_pending or device.uuid in out_of_service)
        for resource, each in _list_devices(device, pieces):
            fit = is_fit and each.id not in out_of_service
            found.setdefault(with_prefix(resource, prefix), []).append(replace(each, is_healthy=fit))
    return {
        resource: tuple(sorted(each, key=lambda one: (one.gpu, one.place or 0))) for resource, each in found.items()
    }


def _list_devices(device: Device, pieces: int) -> Iterable[tuple[str, OfferedDevice]]:
    numa, minor = device.slot.numa, device.minor
    if not device.mig.is_enabled:
        whole = OfferedDevice(device.uuid, device.index, is_healthy=True, numa=numa, minor=minor)
        if not pieces:
            yield amounts.GPU, whole
        for piece in range(pieces):
            yield amounts.SHARED, replace(whole, id=f"{device.uuid}{holdings.SHARE_SEPARATOR}{piece}", piece=piece)
        return
    for each in device.mig.instances:
        if each.uuid:  # without a compute instance it cannot be used
            offer = OfferedDevice(each.uuid, device.index, is_healthy=True, numa=numa, start=each.start, minor=minor)
            yield mig.resource_of(each.profile), offer


def with_prefix(resource: str, prefix: str) -> str:
    """The resource under another vendor's name, so that two plugins can run side by side."""
    return f"{prefix}/{resource.partition('/')[2]}"
