"""A process that cuts and uncuts one card at random until it is killed. Started by tests, several times a second."""

from __future__ import annotations

import asyncio
import contextlib
import random
from pathlib import Path
from typing import TYPE_CHECKING

from tests import gpus

from kgwe import errors
from kgwe.local.nvml.hardware import Hardware
from kgwe.model import mig

if TYPE_CHECKING:
    import ctypes


def act(folder: str, geometry: str, seed: int, steps: ctypes.c_uint64) -> None:
    """Count every step that was begun in `steps`."""
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
