"""Fills what the driver cannot tell of a machine's wiring from a description of the machine."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from kgwe import errors
from kgwe.model.gpu.driver_data import Link, Remote
from kgwe.model.gpu.pcie_tree import pcie_paths
from kgwe.model.gpu.topology import Slot
from kgwe.model.units.phrasing import format_count

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kgwe.model.gpu.driver_data import Device, Machine
    from kgwe.model.gpu.topology import PciePath, Wiring


def complete_wiring(machine: Machine, described: Wiring) -> Machine:
    """The machine with NUMA node, CPUs, PCIe place and NVLinks where the driver says nothing of them.

    What the driver says is never changed. GPUs are matched by bus id where the description has them, else by index.
    Permanent when the description is of another machine.
    """
    slots = _match_slots(machine, described)
    buses = {slots[device.index]: device.slot.bus for device in machine.devices}
    paths, nic_paths = pcie_paths(described)
    devices = tuple(
        _complete_device(device, described.slots[number], paths[number], _links(number, described, buses))
        for device in machine.devices
        for number in (slots[device.index],)
    )
    nics = machine.nics or tuple(
        dataclasses.replace(nic, pcie=path) for nic, path in zip(described.nics, nic_paths, strict=True)
    )
    return dataclasses.replace(machine, devices=devices, nics=nics)


def _match_slots(machine: Machine, described: Wiring) -> dict[int, int]:
    """Index of a device -> its slot in the description."""
    if len(machine.devices) != len(described.slots):
        raise errors.Permanent(
            f"it describes {format_count(len(described.slots), 'GPU')}, the driver sees {len(machine.devices)}"
        )
    buses = {slot.bus: number for number, slot in enumerate(described.slots) if slot.bus}
    if not buses:
        return {device.index: number for number, device in enumerate(machine.devices)}
    missing = [device.slot.bus for device in machine.devices if device.slot.bus not in buses]
    if missing:
        raise errors.Permanent(f"it describes no GPU at {missing[0]}")
    return {device.index: buses[device.slot.bus] for device in machine.devices}


def _complete_device(device: Device, told: Slot, path: PciePath, links: tuple[Link, ...]) -> Device:
    own = device.slot
    slot = Slot(own.bus, told.numa if own.numa is None else own.numa, own.cpus or told.cpus, own.pcie or path)
    return dataclasses.replace(device, slot=slot, links=device.links or links)


def _links(number: int, described: Wiring, buses: Mapping[int, str]) -> tuple[Link, ...]:
    """The NVLinks of a GPU as the driver would report them. Without a generation they cannot be used."""
    version, rate = described.nvlink_version, described.link_gb_per_s or None
    if not version:
        return ()
    if described.switch_links:
        up = described.links_up(number)
        return tuple(
            Link(index, index < up, version, Remote.SWITCH, gb_per_s=rate) for index in range(described.switch_links)
        )
    ends = [buses[peer] for peer, links in described.peers(number).items() for _ in range(links)]
    if not all(ends):
        return ()
    return tuple(
        Link(index, is_up=True, version=version, remote=Remote.GPU, remote_bus=bus, gb_per_s=rate)
        for index, bus in enumerate(ends)
    )
