"""Simulated machines for tests: a folder with a driver library in C and the hardware behind it."""

from __future__ import annotations

import functools
import itertools
from typing import TYPE_CHECKING

from kgwe.hardware.nvml.driver import Deadlines, NvmlDriver
from kgwe.local.fleet import models
from kgwe.local.nvml.build import Generation
from kgwe.local.nvml.hardware import Hardware
from kgwe.model.simfleet import inventory, model_file

if TYPE_CHECKING:
    from pathlib import Path

    from kgwe.model.gpu.driver_data import Device
    from kgwe.model.simfleet.inventory import FleetNode

_numbers = itertools.count()

_ONE_GPU = """
name: one
description: a machine with few cards
region: r
zones: [z]
machines:
  box:
    machine: box
    gpu: {gpu}
    cpu: "8"
    memory: 64Gi
    storage: 1Ti
    driver: 570.172.08
    cuda: "12.8"
    cpus: ["0-7"]
    gpus: [{slots}]
pools:
  - {{name: box, machine: box, instanceType: box}}
"""


@functools.cache
def node_of(model: str, pool: str = "") -> FleetNode:
    """The first node of a pool of a fleet model, of the first pool when none is named."""
    loaded = models.load(model)
    wanted = pool or loaded.pools[0].name
    return next(node for node in inventory.expand_fleet(loaded, 64) if node.pool.name == wanted)


@functools.cache
def box(gpu: str, cards: int = 1) -> FleetNode:
    """A machine with few cards of a model and nothing between them: quick to read."""
    slots = ", ".join(f'{{bus: "00000000:0{i + 1}:00.0", numa: 0, pcie: [rc{i}]}}' for i in range(cards))
    parsed = model_file.parse(_ONE_GPU.format(gpu=gpu, slots=slots), where="test", include=str)
    return inventory.expand_fleet(parsed, 1)[0]


def hardware(folder: Path, node: FleetNode, generation: Generation = Generation.NEW) -> Hardware:
    """A machine of its own below the folder."""
    return Hardware.create(folder / f"{node.name}-{next(_numbers)}", node, generation=generation)


def driver(machine: Hardware, *, read_s: float = 60.0, cut_s: float = 60.0) -> NvmlDriver:
    """A driver on the machine; generous, because tests share the processor. Short is what shall be overrun."""
    deadlines = Deadlines(read=read_s, cut=cut_s, mode=60.0, reset=60.0)
    return NvmlDriver(library=machine.library, smi=machine.smi, sysfs=machine.sysfs, deadlines=deadlines)


async def card(gpu_driver: NvmlDriver, index: int = 0) -> Device:
    return (await gpu_driver.machine()).devices[index]
