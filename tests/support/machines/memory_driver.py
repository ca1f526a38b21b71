"""A driver in memory, made from a fleet model, for tests of what lies above the driver."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
from typing import TYPE_CHECKING

from kgwe import errors
from kgwe.local.fleet import models
from kgwe.model.gpu import catalog, driver_data
from kgwe.model.gpu.topology import Relation
from kgwe.model.simfleet import inventory

if TYPE_CHECKING:
    from collections.abc import Sequence

ALL_MODELS = ("dgx-h100", "gb200-nvl72", "hgx-a100", "l40s", "mixed", "v100-cube")


def fleet_nodes(count: int = 16) -> list[inventory.FleetNode]:
    """One node of every kind there is in the models."""
    found: dict[tuple[str, str], inventory.FleetNode] = {}
    for name in ALL_MODELS:
        for node in inventory.expand_fleet(models.load(name), count):
            found.setdefault((name, node.pool.name), node)
    return list(found.values())


@functools.lru_cache
def node(pool: str = "h100", model: str = "mixed") -> inventory.FleetNode:
    return next(each for each in inventory.expand_fleet(models.load(model), 32) if each.pool.name == pool)


def machine(of: inventory.FleetNode) -> driver_data.Machine:
    """What a driver on the node would say."""
    wires = of.machine.wiring
    devices = tuple(_device(of, card) for card in of.gpus)
    unknown = tuple(tuple(Relation.UNKNOWN for _ in devices) for _ in devices)
    return driver_data.Machine(of.machine.driver, of.machine.cuda, devices, wires.nics, seen=unknown)


def _device(of: inventory.FleetNode, card: inventory.FleetGpu) -> driver_data.Device:
    cluster, _, clique = of.place.clique.rpartition(".")
    return driver_data.Device(
        uuid=card.uuid,
        index=card.index,
        product=of.model.product,
        memory_mib=of.model.memory_mib,
        slot=card.slot,
        minor=card.index,
        architecture=of.model.architecture,
        compute_capability=of.model.compute_capability,
        links=_links(of, card.index),
        mig=driver_data.MigState(
            is_capable=of.model.geometry is not None,
            is_enabled=card.is_cut,
            instances=tuple(_instance(each) for each in card.instances),
        ),
        fabric=driver_data.Fabric(cluster, int(clique)) if clique else None,
    )


def _instance(of: inventory.MigInstance) -> driver_data.Instance:
    profile = of.placement.profile
    return driver_data.Instance(
        of.uuid, of.instance_id, profile.name, of.placement.start, profile.units, profile.memory_mib
    )


def _links(of: inventory.FleetNode, card: int) -> tuple[driver_data.Link, ...]:
    wires = of.machine.wiring
    if not wires.nvlink_version:
        return ()
    rate = float(catalog.NVLINK_GB_PER_S[wires.nvlink_version])
    if wires.switch_links:
        ends = [(driver_data.Remote.SWITCH, "00000000:05:00.0")] * wires.switch_links
    else:
        ends = [
            (driver_data.Remote.GPU, of.gpus[peer].slot.bus)
            for peer, links in wires.peers(card).items()
            for _ in range(links)
        ]
    return tuple(
        driver_data.Link(index, is_up=True, version=wires.nvlink_version, remote=kind, remote_bus=bus, gb_per_s=rate)
        for index, (kind, bus) in enumerate(ends)
    )


def link_down(of: driver_data.Machine, card: int, link: int) -> driver_data.Machine:
    """As drivers show it: a link that is down no longer says where it leads."""
    devices = list(of.devices)
    links = list(devices[card].links)
    links[link] = driver_data.Link(link, is_up=False)
    devices[card] = dataclasses.replace(devices[card], links=tuple(links))
    return dataclasses.replace(of, devices=tuple(devices))


class MemoryDriver:
    """Answers from memory; can be made to fail."""

    def __init__(self, of: driver_data.Machine) -> None:
        self.now = of
        self.failure: errors.KgweError | None = None
        self.machine_calls = 0
        self.reading_calls = 0
        self.closed = False
        self.happened: asyncio.Queue[driver_data.Event] = asyncio.Queue()

    async def machine(self) -> driver_data.Machine:
        self.machine_calls += 1
        self._fail()
        return self.now

    async def readings(self) -> Sequence[driver_data.Reading]:
        self.reading_calls += 1
        self._fail()
        return [driver_data.Reading(each.uuid, util=0.5, power_w=100.0) for each in self.now.devices]

    async def events(self, timeout_s: float) -> Sequence[driver_data.Event]:
        try:
            return [await asyncio.wait_for(self.happened.get(), timeout_s)]
        except TimeoutError:
            return []

    def _fail(self) -> None:
        if self.failure is not None:
            raise self.failure

    async def set_mig_mode(self, uuid: str, *, enabled: bool) -> bool:
        raise errors.Permanent(f"{uuid} {enabled}")

    async def reset(self, uuid: str) -> None:
        raise errors.Permanent(uuid)

    async def create_instance(self, uuid: str, profile: str, start: int) -> driver_data.Instance:
        raise errors.Permanent(f"{uuid} {profile} {start}")

    async def destroy_instance(self, uuid: str, instance_id: int) -> None:
        raise errors.Permanent(f"{uuid} {instance_id}")

    async def close(self) -> None:
        self.closed = True
