"""kill -9 of the process that cuts, at any moment: the card is always whole, legal and usable by the next."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import random
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.builders import gpus
from tests.support.machines import gpu_actor
from tests.support.patience import PATIENCE_S

from kgwe import errors
from kgwe.model.gpu import mig

if TYPE_CHECKING:
    from pathlib import Path

    from kgwe.local.nvml.hardware import Hardware

GEOMETRY = "A100-80GB"


def check(machine: Hardware) -> int:
    """What is on the card can lie there, and everything has a name of its own; how many have no compute instance."""
    shape = mig.GEOMETRIES[GEOMETRY]
    cuts = machine.list_instances(0)
    layout = [mig.parse_placement(shape, f"{cut.profile}@{cut.start}") for cut in cuts]
    assert mig.find_problems(shape, layout) == []
    assert [cut.instance_id for cut in cuts] == [placement.instance_id(shape) for placement in layout]
    assert all(len(cut.uuids) <= 1 for cut in cuts)
    names = [uuid for cut in cuts for uuid in cut.uuids]
    assert len(set(names)) == len(names)
    return len(cuts) - len(names)


def run_until_killed(context: Any, machine: Hardware, dice: random.Random, steps: Any) -> None:
    """One actor, killed in the middle of some step."""
    target = steps.value + dice.randint(2, 40)
    actor = context.Process(target=gpu_actor.act, args=(str(machine.folder), GEOMETRY, dice.randrange(2**32), steps))
    actor.start()
    end = time.monotonic() + PATIENCE_S
    while steps.value < target and time.monotonic() < end and actor.is_alive():
        time.sleep(0.0005)
    time.sleep(dice.random() * 0.003)
    assert actor.is_alive(), "it ends only by being killed"
    actor.kill()
    actor.join(PATIENCE_S)
    actor.close()
    assert steps.value >= target


def forkserver() -> Any:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.support.machines.gpu_actor"])
    return context


async def survive(tmp_path: Path, at_least: int) -> None:
    context = forkserver()
    machine = gpus.hardware(tmp_path, gpus.box("A100-SXM4-80GB"))
    driver = gpus.driver(machine)
    card = await gpus.card(driver)
    await driver.set_mig_mode(card.uuid, enabled=True)
    dice, half_made, sizes = random.Random(6), 0, set()
    steps = context.RawValue(ctypes.c_uint64, 0)
    while steps.value < at_least:
        run_until_killed(context, machine, dice, steps)
        half_made += check(machine)
        sizes.add(len(machine.list_instances(0)))
    assert len(sizes) > 3, "both ends were visited"
    # Whoever comes next finds its way from whatever was left, and can use the whole card.
    for instance in (await gpus.card(driver)).mig.instances:
        await driver.destroy_instance(card.uuid, instance.instance_id)
    assert machine.list_instances(0) == ()
    whole = await driver.create_instance(card.uuid, "7g.80gb", 0)
    assert (whole.uuid.startswith("MIG-"), whole.is_busy) == (True, False)
    await driver.close()


async def test_500_random_steps_with_kills(tmp_path: Path) -> None:
    await survive(tmp_path, 500)


@pytest.mark.slow
async def test_10000_random_steps_with_kills(tmp_path: Path) -> None:
    await survive(tmp_path, 10_000)


# --- at a certain step ----------------------------------------------------------------------------------

CREATING = ("nvmlDeviceCreateGpuInstanceWithPlacement", "nvmlGpuInstanceCreateComputeInstance")
DESTROYING = ("nvmlComputeInstanceDestroy", "nvmlGpuInstanceDestroy")


def run_and_die(work: Any, *arguments: Any) -> None:
    process = forkserver().Process(target=work, args=arguments)
    process.start()
    process.join(PATIENCE_S)
    assert process.exitcode == -signal.SIGKILL
    process.close()


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("function", CREATING)
async def test_a_process_killed_at_a_step_of_creating(tmp_path: Path, function: str, *, after: bool) -> None:
    """With `after` it dies with the lock of the hardware in its hands."""
    machine = gpus.hardware(tmp_path, gpus.box("A100-SXM4-80GB"))
    driver = gpus.driver(machine)
    uuid = (await gpus.card(driver)).uuid
    await driver.set_mig_mode(uuid, enabled=True)
    machine.kill(function, after=after)
    run_and_die(gpu_actor.create, str(machine.folder), uuid, "3g.40gb", 4)
    done = CREATING.index(function) + after
    assert len(machine.list_instances(0)) == min(done, 1)
    assert check(machine) == (done == 1)
    made = await driver.create_instance(uuid, "3g.40gb", 4)
    assert [cut.uuids for cut in machine.list_instances(0)] == [(made.uuid,)]
    await driver.close()


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("function", DESTROYING)
async def test_a_process_killed_at_a_step_of_destroying(tmp_path: Path, function: str, *, after: bool) -> None:
    machine = gpus.hardware(tmp_path, gpus.box("A100-SXM4-80GB"))
    driver = gpus.driver(machine)
    uuid = (await gpus.card(driver)).uuid
    await driver.set_mig_mode(uuid, enabled=True)
    made = await driver.create_instance(uuid, "3g.40gb", 4)
    machine.kill(function, after=after)
    run_and_die(gpu_actor.destroy, str(machine.folder), uuid, made.instance_id)
    done = DESTROYING.index(function) + after
    assert len(machine.list_instances(0)) == (done < 2)
    assert check(machine) == (done == 1)
    with contextlib.suppress(errors.NotFound):
        await driver.destroy_instance(uuid, made.instance_id)
    assert machine.list_instances(0) == ()
    await driver.close()
