"""What the driver finds through the C library is what the model says was built."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.support.builders import gpus

from kgwe.hardware.nvml import values
from kgwe.hardware.nvml.driver import NvmlDriver
from kgwe.local.fleet import models
from kgwe.local.nvml.build import Generation
from kgwe.model.gpu.catalog import Architecture
from kgwe.model.gpu.driver_data import Device, Machine, Remote
from kgwe.model.gpu.topology import Relation, Wiring
from kgwe.model.simfleet import inventory

if TYPE_CHECKING:
    from kgwe.model.simfleet.inventory import FleetNode

NOWHERE = Path("/nonexistent")


def pools() -> list[tuple[str, str]]:
    return [(name, pool.name) for name in models.list_names() for pool in models.load(name).pools]


# Reading a machine takes a while and changes nothing: tests that only look share what was read.
_read: dict[tuple[str, str], tuple[FleetNode, Machine]] = {}


async def read_once(tmp_path: Path, model: str, pool: str) -> tuple[FleetNode, Machine]:
    """A node of the pool, and what the driver finds on it."""
    if (model, pool) not in _read:
        node = gpus.node_of(model, pool)
        _read[model, pool] = node, await discover(tmp_path, node)
    return _read[model, pool]


async def discover(tmp_path: Path, node: FleetNode, generation: Generation = Generation.NEW) -> Machine:
    driver = gpus.driver(gpus.hardware(tmp_path, node, generation))
    found = await driver.machine()
    await driver.close()
    return found


def wiring_of(machine: Machine, *, seen: bool = False) -> Wiring:
    return Wiring(
        tuple(device.slot for device in machine.devices), nics=machine.nics, seen=machine.seen if seen else ()
    )


def relations(wires: Wiring) -> list[list[Relation]]:
    cards = range(len(wires.slots))
    return [[wires.pcie_relation(a, b) for b in cards] for a in cards]


def nic_relations(wires: Wiring) -> list[list[Relation]]:
    return [[wires.nic_relation(nic, card) for card in range(len(wires.slots))] for nic in range(len(wires.nics))]


def peers(device: Device, machine: Machine) -> dict[int, int]:
    """card -> links, as the far ends of the links tell."""
    index = {other.slot.bus: other.index for other in machine.devices}
    ends = [index[link.remote_bus] for link in device.links if link.remote is Remote.GPU]
    return {end: ends.count(end) for end in sorted(set(ends))}


@pytest.mark.parametrize(("model", "pool"), pools())
async def test_a_machine_is_found_as_its_model_says(tmp_path: Path, model: str, pool: str) -> None:
    node, found = await read_once(tmp_path, model, pool)
    assert found.driver_version == node.machine.driver
    assert found.cuda_version == node.machine.cuda
    assert len(found.devices) == len(node.gpus)
    for device, card in zip(found.devices, node.gpus, strict=True):
        assert (device.uuid, device.index, device.minor) == (card.uuid, card.index, card.index)
        assert device.product == node.model.product
        assert device.memory_mib == node.model.memory_mib
        assert device.architecture == node.model.architecture
        assert device.compute_capability == node.model.compute_capability
        assert (device.slot.bus, device.slot.numa, device.slot.cpus) == (card.slot.bus, card.slot.numa, card.slot.cpus)
        assert not device.is_lost


@pytest.mark.parametrize(("model", "pool"), pools())
async def test_its_wiring_is_found(tmp_path: Path, model: str, pool: str) -> None:
    node, found = await read_once(tmp_path, model, pool)
    wires = node.machine.wiring
    for device in found.devices:
        to_switch = [link for link in device.links if link.remote is Remote.SWITCH]
        assert len(to_switch) == wires.switch_links
        assert peers(device, found) == wires.peers(device.index)
        assert {link.version for link in device.links} <= {wires.nvlink_version}
        assert all(
            link.is_up and link.gb_per_s == node.model.nvlink_gb_per_s / node.model.nvlink_links
            for link in device.links
        )
    assert relations(wiring_of(found)) == relations(wires)
    assert relations(wiring_of(found, seen=True)) == relations(wires)
    assert nic_relations(wiring_of(found)) == nic_relations(wires)
    assert [(nic.name, nic.gbit_per_s, nic.numa) for nic in found.nics] == [
        (nic.name, nic.gbit_per_s, nic.numa) for nic in wires.nics
    ]


@pytest.mark.parametrize(("model", "pool"), pools())
async def test_its_cut_and_its_nvlink_domain_are_found(tmp_path: Path, model: str, pool: str) -> None:
    node, found = await read_once(tmp_path, model, pool)
    for device, card in zip(found.devices, node.gpus, strict=True):
        assert device.mig.is_capable == (node.model.geometry is not None)
        assert device.mig.is_enabled == card.is_cut
        assert [(i.uuid, i.instance_id, i.profile, i.start, i.size, i.memory_mib) for i in device.mig.instances] == [
            (
                instance.uuid,
                instance.instance_id,
                instance.placement.profile.name,
                instance.placement.start,
                instance.placement.profile.units,
                instance.placement.profile.memory_mib,
            )
            for instance in card.instances
        ]
        clique = f"{device.fabric.cluster_uuid}.{device.fabric.clique_id}" if device.fabric else ""
        assert clique == node.place.clique


async def test_nodes_of_one_domain_report_the_same_fabric(tmp_path: Path) -> None:
    first, *_, other = inventory.expand_fleet(models.load("gb200-nvl72"), 19)
    fabrics = [(await discover(tmp_path, node)).devices[0].fabric for node in (first, other)]
    assert None not in fabrics
    assert fabrics[0] != fabrics[1], "the nineteenth tray is in the second rack"


async def test_without_sysfs_the_drivers_own_tables_tell_the_paths(tmp_path: Path) -> None:
    node = gpus.node_of("hgx-a100")
    machine = gpus.hardware(tmp_path, node)
    driver = NvmlDriver(library=machine.library, sysfs=NOWHERE)
    found = await driver.machine()
    await driver.close()
    assert all(device.slot.pcie == () for device in found.devices)
    assert found.nics == ()
    assert relations(wiring_of(found, seen=True)) == relations(node.machine.wiring)
    assert [device.slot.numa for device in found.devices] == [slot.numa for slot in node.machine.wiring.slots]
    assert [device.slot.cpus for device in found.devices] == [slot.cpus for slot in node.machine.wiring.slots]


async def test_where_the_driver_knows_no_affinity_sysfs_tells_it(tmp_path: Path) -> None:
    node = gpus.node_of("l40s")
    machine = gpus.hardware(tmp_path, node)
    machine.forget("nvmlDeviceGetCpuAffinity", "nvmlDeviceGetMemoryAffinity")
    driver = gpus.driver(machine)
    found = await driver.machine()
    await driver.close()
    assert [(device.slot.numa, device.slot.cpus) for device in found.devices] == [
        (slot.numa, slot.cpus) for slot in node.machine.wiring.slots
    ]


@pytest.mark.parametrize("model", ["dgx-h100", "v100-cube", "hgx-a100"])
async def test_an_old_driver_tells_nearly_as_much(tmp_path: Path, model: str) -> None:
    node = gpus.node_of(model, "a100-mig" if model == "hgx-a100" else "")
    old, new = await discover(tmp_path, node, Generation.OLD), await discover(tmp_path, node)
    # Links, places, cuts and names all come the old way too; only the fabric had no function then.
    assert old == new


async def test_an_old_driver_knows_no_fabric(tmp_path: Path) -> None:
    found = await discover(tmp_path, gpus.node_of("gb200-nvl72"), Generation.OLD)
    assert {device.fabric for device in found.devices} == {None}


async def test_cards_that_cannot_reach_each_other_say_so(tmp_path: Path) -> None:
    node = gpus.node_of("v100-cube")
    found = await discover(tmp_path, node)
    for a in range(8):
        for b in range(8):
            direct = a == b or node.machine.wiring.nvlinks(a, b) > 0
            same_socket = node.machine.wiring.slots[a].numa == node.machine.wiring.slots[b].numa
            assert found.peer_access[a][b] is (direct or same_socket)


async def test_a_link_that_goes_down_is_remembered_by_its_far_end(tmp_path: Path) -> None:
    machine = gpus.hardware(tmp_path, gpus.node_of("v100-cube"))
    driver = gpus.driver(machine)
    before = (await gpus.card(driver)).links[2]
    machine.set_link(0, 2, up=0)
    after = (await gpus.card(driver)).links[2]
    await driver.close()
    assert (before.is_up, after.is_up) == (True, False)
    assert (after.remote, after.remote_bus) == (before.remote, before.remote_bus)


@pytest.mark.parametrize(
    ("number", "architecture", "expected"),
    [
        (2, Architecture.VOLTA, 2),
        (3, Architecture.TURING, 2),
        (4, Architecture.AMPERE, 3),
        (6, Architecture.HOPPER, 4),
        (7, Architecture.BLACKWELL, 5),
        (3, Architecture.AMPERE, 3),
        (4, Architecture.HOPPER, 4),
        (5, Architecture.BLACKWELL, 5),
        (6, None, 4),
        (0, Architecture.HOPPER, None),
        (99, Architecture.HOPPER, None),
        (None, Architecture.HOPPER, None),
    ],
)
def test_the_generation_of_a_link(number: int | None, architecture: Architecture | None, expected: int | None) -> None:
    assert values.nvlink_generation(number, architecture) == expected


@pytest.mark.parametrize(
    ("mbps", "generation", "expected"),
    [(25_781, 3, 25.0), (26_562, 4, 25.0), (53_125, 5, 50.0), (12_500, 4, 12.5), (40_000, 4, 40.0), (None, 4, None)],
)
def test_the_speed_of_a_link_is_that_of_its_data(mbps: int | None, generation: int, expected: float | None) -> None:
    assert values.link_gb_per_s(mbps, generation) == expected
