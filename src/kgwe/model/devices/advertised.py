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
class Offer:
    """One device."""

    id: str
    card: int
    is_healthy: bool
    numa: int | None = None
    start: int | None = None
    """Where a slice starts; None: the whole card."""
    minor: int | None = None
    """Of the card's device node."""
    piece: int | None = None
    """Number of the piece of a shared card; None: nobody else has this device."""

    @property
    def place(self) -> int | None:
        """Which part of its card it is; None: all of it."""
        return self.start if self.start is not None else self.piece

    @property
    def uuid(self) -> str:
        return holdings.uuid_of(self.id)


def offers(
    machine: Machine, *, out_of_service: Collection[str] = (), prefix: str = DEFAULT_PREFIX, pieces: int = 0
) -> dict[str, tuple[Offer, ...]]:
    """Resource -> its devices. `out_of_service` are UUIDs of cards or slices; `pieces` is how many each whole card is
    shared as, 0: not at all. Whole cards and, where they are shared, pieces are always listed, none or not: so the
    kubelet knows the resource, and forgets whole cards it heard of before they were shared."""
    found: dict[str, list[Offer]] = {renamed(amounts.GPU, prefix): []}
    if pieces:
        found[renamed(amounts.SHARED, prefix)] = []
    for device in machine.devices:
        is_fit = not (device.is_lost or device.mig.is_pending or device.uuid in out_of_service)
        for resource, each in _list_devices(device, pieces):
            fit = is_fit and each.id not in out_of_service
            found.setdefault(renamed(resource, prefix), []).append(replace(each, is_healthy=fit))
    return {
        resource: tuple(sorted(each, key=lambda one: (one.card, one.place or 0))) for resource, each in found.items()
    }


def _list_devices(device: Device, pieces: int) -> Iterable[tuple[str, Offer]]:
    numa, minor = device.slot.numa, device.minor
    if not device.mig.is_enabled:
        whole = Offer(device.uuid, device.index, is_healthy=True, numa=numa, minor=minor)
        if not pieces:
            yield amounts.GPU, whole
        for piece in range(pieces):
            yield amounts.SHARED, replace(whole, id=f"{device.uuid}{holdings.REPLICA}{piece}", piece=piece)
        return
    for each in device.mig.instances:
        if each.uuid:  # without a compute instance it cannot be used
            offer = Offer(each.uuid, device.index, is_healthy=True, numa=numa, start=each.start, minor=minor)
            yield mig.resource_of(each.profile), offer


def renamed(resource: str, prefix: str) -> str:
    """The resource under another vendor's name, so that two plugins can run side by side."""
    return f"{prefix}/{resource.partition('/')[2]}"
