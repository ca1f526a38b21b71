"""Machines and readings for tests of telemetry, without a driver."""

from __future__ import annotations

from kgwe.model.gpu import catalog, mig
from kgwe.model.gpu.driver_data import Device, Instance, Link, Machine, MigState, Reading, Remote
from kgwe.model.gpu.topology import Slot

H100 = catalog.CATALOGUE["H100-SXM5-80GB"]
A100 = catalog.CATALOGUE["A100-SXM4-80GB"]


def bus(index: int) -> str:
    return f"00000000:{index + 16:02X}:00.0"


def card(
    index: int, model: catalog.GpuModel = H100, links: tuple[Link, ...] = (), cut: MigState | None = None
) -> Device:
    return Device(
        uuid=f"GPU-{index}",
        index=index,
        product=model.product,
        memory_mib=model.memory_mib,
        slot=Slot(bus(index)),
        links=links,
        mig=cut or MigState(is_capable=model.geometry is not None),
    )


def to_switch(count: int, up: int | None = None) -> tuple[Link, ...]:
    up = count if up is None else up
    return tuple(Link(i, i < up, 4, Remote.SWITCH, "00000000:C0:00.0", 25.0) for i in range(count))


def to_card(peer: int, links: range) -> tuple[Link, ...]:
    # The driver writes the other end's bus in its own way.
    return tuple(Link(i, is_up=True, version=2, remote=Remote.GPU, remote_bus=bus(peer).lower()) for i in links)


def cut_into(*placements: str, index: int = 0, model: catalog.GpuModel = A100) -> MigState:
    geometry = model.geometry
    assert geometry is not None
    instances = []
    for number, text in enumerate(placements):
        placed = mig.parse_placement(geometry, text)
        instances.append(
            Instance(
                uuid=f"MIG-{index}-{number}",
                instance_id=number + 1,
                profile=placed.profile.name,
                start=placed.start,
                size=placed.profile.units,
                memory_mib=placed.profile.memory_mib,
            )
        )
    return MigState(is_capable=True, is_enabled=True, instances=tuple(instances))


def machine(*devices: Device) -> Machine:
    return Machine("570.172.08", "12.8", devices)


def reading(index: int, **values: object) -> Reading:
    return Reading(uuid=f"GPU-{index}", **values)  # type: ignore[arg-type] # checked where the test reads it back
