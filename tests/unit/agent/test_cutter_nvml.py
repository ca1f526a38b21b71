"""The cutter on the simulated driver library: every layout, and kill -9 at every call that changes a card."""

from __future__ import annotations

import multiprocessing
import random
import signal
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.builders import gpus
from tests.support.machines import cut_actor
from tests.support.patience import PATIENCE_S

from kgwe.kube.api.kgwe.gpunode import MIGLayout
from kgwe.model.gpu import mig
from kgwe.sharing.mig import layout_graph
from kgwe.sharing.mig.lifecycle import format_placement

if TYPE_CHECKING:
    from pathlib import Path

    from kgwe.local.nvml.hardware import Hardware

A100 = mig.GEOMETRIES["A100-80GB"]
CALLS = (
    "nvmlComputeInstanceDestroy",
    "nvmlGpuInstanceDestroy",
    "nvmlDeviceCreateGpuInstanceWithPlacement",
    "nvmlGpuInstanceCreateComputeInstance",
)


def names(machine: Hardware, card: int = 0) -> list[str]:
    """The instances that can be used."""
    return [f"{cut.profile}@{cut.start}" for cut in machine.list_instances(card) if cut.uuids]


def check(machine: Hardware, card: int = 0) -> None:
    placed = [mig.parse_placement(A100, f"{cut.profile}@{cut.start}") for cut in machine.list_instances(card)]
    assert mig.find_problems(A100, placed) == []


async def made(machine: Hardware, *layout: str, held: tuple[str, ...] = ()) -> str:
    """Cut card 0 so; returns its UUID."""
    driver = gpus.driver(machine)
    uuid = (await gpus.card(driver)).uuid
    await driver.close()
    await cut_actor.go(machine, {uuid: MIGLayout(enabled=True, instances=layout)}, held)
    assert sorted(names(machine)) == sorted(layout)
    return uuid


def forkserver() -> Any:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.support.machines.cut_actor"])
    return context


def cut_elsewhere(machine: Hardware, uuid: str, layout: tuple[str, ...], held: tuple[str, ...]) -> int:
    """In a process of its own; how it ended."""
    process = forkserver().Process(target=cut_actor.cut, args=(str(machine.folder), uuid, layout, held))
    process.start()
    process.join(PATIENCE_S)
    code: int = process.exitcode
    process.close()
    return code


async def set_layouts(tmp_path: Path, count: int) -> None:
    """From one layout to another at random, whatever lies between."""
    machine = gpus.hardware(tmp_path, gpus.box("A100-SXM4-80GB"))
    atlas = layout_graph.get_layout_graph(A100)
    everything = [atlas.layout(state) for state in range(len(atlas))]
    chosen = random.Random(4).sample(everything, min(count, len(everything)))
    driver = gpus.driver(machine)
    uuid = (await gpus.card(driver)).uuid
    await driver.close()
    for layout in chosen:
        wanted = [format_placement(place) for place in layout]
        await cut_actor.go(machine, {uuid: MIGLayout(enabled=True, instances=tuple(wanted))})
        assert names(machine) == wanted
        check(machine)


async def test_any_layout_can_be_had_from_any_other(tmp_path: Path) -> None:
    await set_layouts(tmp_path, 12)


@pytest.mark.slow
async def test_every_layout_can_be_had(tmp_path: Path) -> None:
    await set_layouts(tmp_path, 10_000)


@pytest.mark.parametrize("gpu", ["A100-SXM4-80GB", "H100-SXM5-80GB"])
async def test_a_whole_card_is_cut_and_made_whole_again(tmp_path: Path, gpu: str) -> None:
    """Where the mode needs a reset the card is reset."""
    machine = gpus.hardware(tmp_path, gpus.box(gpu))
    uuid = await made(machine, "3g.40gb@0", "3g.40gb@4")
    cutter = await cut_actor.go(machine, {uuid: MIGLayout(enabled=False)})
    assert cutter.progress[uuid].phase == ""
    driver = gpus.driver(machine)
    assert not (await gpus.card(driver)).mig.is_enabled
    await driver.close()


async def test_a_card_with_a_process_on_it_waits(tmp_path: Path) -> None:
    machine = gpus.hardware(tmp_path, gpus.box("H100-SXM5-80GB"))
    driver = gpus.driver(machine)
    uuid = (await gpus.card(driver)).uuid
    await driver.close()
    machine.start_process(0, 4711, memory_mib=100)
    wish = {uuid: MIGLayout(enabled=True, instances=("7g.80gb@0",))}
    assert (await cut_actor.go(machine, wish)).progress[uuid].phase == "Waiting"
    machine.stop_process(0, 4711)
    assert (await cut_actor.go(machine, wish)).progress[uuid].phase == ""
    assert names(machine) == ["7g.80gb@0"]


@pytest.mark.parametrize("skips", [1, pytest.param(2, marks=pytest.mark.slow)])
async def test_kill_9_at_every_call_of_a_recut(tmp_path: Path, skips: int) -> None:
    """The neighbour keeps its slice, the card stays legal, and whoever comes next finishes."""
    machine = gpus.hardware(tmp_path, gpus.box("A100-SXM4-80GB"))
    before, after = ("3g.40gb@0", "2g.20gb@4", "1g.10gb@6"), ("3g.40gb@0", "1g.10gb@4", "1g.10gb@5")
    uuid = await made(machine, *before)
    neighbour = machine.list_instances(0)[0]
    machine.start_process(0, 4711, memory_mib=100, instance_id=neighbour.instance_id)
    deaths = 0
    for call in CALLS:
        for is_after in (False, True):
            for skip in range(skips):
                await made(machine, *before, held=neighbour.uuids)
                machine.kill(call, after=is_after, skip=skip)
                code = cut_elsewhere(machine, uuid, after, neighbour.uuids)
                assert code == -signal.SIGKILL, (call, is_after, skip)
                deaths += 1
                check(machine)
                assert machine.list_instances(0)[0] == neighbour
                assert cut_elsewhere(machine, uuid, after, neighbour.uuids) == 0
                assert sorted(names(machine)) == sorted(after)
                assert machine.list_instances(0)[0] == neighbour
    assert deaths == 8 * skips


async def test_kill_9_while_the_mode_is_changed(tmp_path: Path) -> None:
    for number, is_after in enumerate((False, True)):
        machine = gpus.hardware(tmp_path / str(number), gpus.box("A100-SXM4-80GB"))
        driver = gpus.driver(machine)
        uuid = (await gpus.card(driver)).uuid
        await driver.close()
        machine.kill("nvmlDeviceSetMigMode", after=is_after)
        assert cut_elsewhere(machine, uuid, ("7g.80gb@0",), ()) == -signal.SIGKILL
        assert cut_elsewhere(machine, uuid, ("7g.80gb@0",), ()) == 0
        assert names(machine) == ["7g.80gb@0"]


async def test_a_driver_that_refuses_makes_it_go_back(tmp_path: Path) -> None:
    from kgwe.local.nvml.hardware import Code  # noqa: PLC0415 - beside its only use

    machine = gpus.hardware(tmp_path, gpus.box("A100-SXM4-80GB"))
    uuid = await made(machine, "3g.40gb@0", "2g.20gb@4", "1g.10gb@6")
    neighbour = machine.list_instances(0)[0]
    machine.start_process(0, 4711, memory_mib=100, instance_id=neighbour.instance_id)
    machine.fail("nvmlDeviceCreateGpuInstanceWithPlacement", Code.NO_PERMISSION, times=1)
    wish = {uuid: MIGLayout(enabled=True, instances=("3g.40gb@0", "3g.40gb@4"))}
    cutter = await cut_actor.go(machine, wish, neighbour.uuids)
    assert cutter.progress[uuid].phase == "RolledBack"
    assert "create 3g.40gb@4" in cutter.progress[uuid].message
    assert names(machine) == ["3g.40gb@0", "2g.20gb@4", "1g.10gb@6"]
    assert machine.list_instances(0)[0] == neighbour
