"""Processes that cut and uncut a card, for tests that kill them."""

from __future__ import annotations

import asyncio
import contextlib
import random
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.builders import gpus

from kgwe import errors
from kgwe.local.nvml.hardware import Hardware
from kgwe.model.gpu import mig

if TYPE_CHECKING:
    import ctypes


def create(folder: str, uuid: str, profile: str, start: int) -> None:
    """Cut one instance."""
    asyncio.run(gpus.driver(Hardware(Path(folder))).create_instance(uuid, profile, start))


def destroy(folder: str, uuid: str, instance_id: int) -> None:
    """Remove one instance."""
    asyncio.run(gpus.driver(Hardware(Path(folder))).destroy_instance(uuid, instance_id))


def act(folder: str, geometry: str, seed: int, steps: ctypes.c_uint64) -> None:
    """At random, until killed; every step that was begun is counted in `steps`."""
    asyncio.run(_act(Path(folder), mig.GEOMETRIES[geometry], random.Random(seed), steps))


async def _act(folder: Path, shape: mig.Geometry, dice: random.Random, steps: ctypes.c_uint64) -> None:
    driver = gpus.driver(Hardware(folder))
    card = await gpus.card(driver)
    places = [(profile.name, start) for profile in shape.profiles.values() for start in profile.starts]
    while True:
        steps.value += 1
        instances = (await gpus.card(driver)).mig.instances
        # More is created than destroyed until little fits: both ends are visited.
        if instances and dice.random() < 0.4 + 0.1 * len(instances) / shape.compute:
            with contextlib.suppress(errors.NotFound):
                await driver.destroy_instance(card.uuid, dice.choice(instances).instance_id)
        else:
            with contextlib.suppress(errors.Conflict):
                await driver.create_instance(card.uuid, *dice.choice(places))
