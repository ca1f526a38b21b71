"""What a node's driver has to offer, as the resources a device plugin names.

A card that is whole is one device of `<prefix>/gpu`; each slice of a card that is cut one of `<prefix>/mig-<profile>`.
A card that is lost, out of service, or about to be cut is offered as unhealthy: who has it keeps it, nobody else gets
it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kgwe.model import amounts, mig

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from kgwe.model.device import Device, Machine

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


def offers(
    machine: Machine, *, out_of_service: Collection[str] = (), prefix: str = DEFAULT_PREFIX
) -> dict[str, tuple[Offer, ...]]:
    """Resource -> its devices. `out_of_service` are UUIDs of cards or slices; whole cards are always listed, none or
    not, so that the kubelet knows the resource."""
    found: dict[str, list[Offer]] = {renamed(amounts.GPU, prefix): []}
    for device in machine.devices:
        is_fit = not (device.is_lost or device.mig.is_pending or device.uuid in out_of_service)
        for resource, each in _of(device):
            fit = is_fit and each.id not in out_of_service
            offer = Offer(each.id, each.card, fit, each.numa, each.start, each.minor)
            found.setdefault(renamed(resource, prefix), []).append(offer)
    return {
        resource: tuple(sorted(each, key=lambda one: (one.card, one.start or 0))) for resource, each in found.items()
    }


def _of(device: Device) -> Iterable[tuple[str, Offer]]:
    numa, minor = device.slot.numa, device.minor
    if not device.mig.is_enabled:
        yield amounts.GPU, Offer(device.uuid, device.index, is_healthy=True, numa=numa, minor=minor)
        return
    for each in device.mig.instances:
        if each.uuid:  # without a compute instance it cannot be used
            offer = Offer(each.uuid, device.index, is_healthy=True, numa=numa, start=each.start, minor=minor)
            yield mig.resource_of(each.profile), offer


def renamed(resource: str, prefix: str) -> str:
    """The resource under another vendor's name, so that two plugins can run side by side."""
    return f"{prefix}/{resource.partition('/')[2]}"
