"""A process that cuts one card as asked and ends, unless it is killed on the way. Started by tests."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.support.builders import gpus

from kgwe.apps.agent.mig.reconfigurer import MigReconfigurer
from kgwe.kube.api.kgwe.gpunode import MIGLayout
from kgwe.local.nvml.hardware import Hardware


def cut(folder: str, uuid: str, layout: tuple[str, ...], held: tuple[str, ...]) -> None:
    """`held`: UUIDs that pods have."""
    asyncio.run(go(Hardware(Path(folder)), {uuid: MIGLayout(enabled=True, instances=layout)}, held))


async def go(machine: Hardware, layouts: dict[str, MIGLayout], held: tuple[str, ...] = ()) -> MigReconfigurer:
    driver = gpus.driver(machine)

    async def users() -> frozenset[str]:
        return frozenset(held)

    cutter = MigReconfigurer(driver, users=users)
    cutter.set_layouts(layouts)
    try:
        for _ in range(60):
            if not await cutter.step():
                return cutter
    finally:
        await driver.close()
    raise AssertionError("no end")
