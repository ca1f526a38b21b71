"""Cutting cards through the C library, which enforces the rules of the hardware."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pynvml  # type: ignore[import-untyped] # it has no stubs
import pytest
from tests.support.builders import gpus

from kgwe import errors
from kgwe.hardware.nvml import mig as nvml_mig
from kgwe.hardware.nvml.library import Library
from kgwe.local.nvml import blueprint, state
from kgwe.local.nvml.build import Generation
from kgwe.local.nvml.hardware import Code
from kgwe.model.gpu import catalog, mig
from kgwe.sharing.mig import layout_graph

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from kgwe.hardware.nvml.driver import NvmlDriver
    from kgwe.local.nvml.hardware import Hardware
    from kgwe.sharing.mig.layout_graph import LayoutGraph

A100, H100 = "A100-SXM4-80GB", "H100-SXM5-80GB"


class Bench:
    """One card with MIG on, and a driver for it."""

    def __init__(self, machine: Hardware, driver: NvmlDriver, uuid: str) -> None:
        self.machine, self.driver, self.uuid = machine, driver, uuid

    async def create(self, place: str) -> str:
        profile, _, start = place.partition("@")
        return (await self.driver.create_instance(self.uuid, profile, int(start))).uuid

    async def remove(self, place: str) -> None:
        found = next(
            each for each in (await gpus.card(self.driver)).mig.instances if f"{each.profile}@{each.start}" == place
        )
        await self.driver.destroy_instance(self.uuid, found.instance_id)

    async def places(self) -> list[str]:
        """As the driver reads them; it must be what the hardware has."""
        read = (await gpus.card(self.driver)).mig.instances
        assert [(i.instance_id, i.profile, i.start, (i.uuid,)) for i in read] == [
            (cut.instance_id, cut.profile, cut.start, cut.uuids) for cut in self.machine.list_instances(0)
        ]
        return [f"{each.profile}@{each.start}" for each in read]


async def bench(tmp_path: Path, gpu: str, generation: Generation = Generation.NEW) -> Bench:
    machine = gpus.hardware(tmp_path, gpus.box(gpu), generation)
    driver = gpus.driver(machine)
    uuid = (await gpus.card(driver)).uuid
    assert await driver.set_mig_mode(uuid, enabled=True)
    return Bench(machine, driver, uuid)


@pytest.fixture(params=[A100, H100])
async def cut(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bench]:
    made = await bench(tmp_path, request.param)
    yield made
    await made.driver.close()


def walk(atlas: LayoutGraph) -> Iterator[tuple[str, bool, frozenset[str]]]:
    """Every layout, each one step from the last: (place, created or removed, the layout then)."""
    names = [f"{place.profile.name}@{place.start}" for place in atlas.places]

    def below(mask: int) -> Iterator[tuple[str, bool, frozenset[str]]]:
        # Upwards only: each layout is entered once.
        for place in range(mask.bit_length(), len(names)):
            wider = mask | 1 << place
            if atlas.is_layout(wider):
                yield names[place], True, _named(names, wider)
                yield from below(wider)
                yield names[place], False, _named(names, mask)

    return below(0)


def _named(names: list[str], mask: int) -> frozenset[str]:
    return frozenset(name for place, name in enumerate(names) if mask >> place & 1)


@pytest.mark.parametrize(
    ("gpu", "geometry"),
    [
        ("A30", "A30-24GB"),
        pytest.param(A100, "A100-80GB", marks=pytest.mark.slow),
        pytest.param(H100, "H100-80GB", marks=pytest.mark.slow),
    ],
)
async def test_every_layout_is_set_and_read_back(tmp_path: Path, gpu: str, geometry: str) -> None:
    atlas = layout_graph.get_layout_graph(mig.GEOMETRIES[geometry])
    made = await bench(tmp_path, gpu)
    seen = {frozenset[str]()}
    for place, is_created, layout in walk(atlas):
        await (made.create(place) if is_created else made.remove(place))
        if is_created:
            assert set(await made.places()) == layout
            seen.add(layout)
    assert await made.places() == []
    assert len(seen) == len(atlas)
    await made.driver.close()


async def refuse_what_does_not_fit(made: Bench, shape: mig.Geometry, layout: frozenset[str]) -> None:
    held = [mig.parse_placement(shape, name) for name in layout]
    for profile in shape.profiles.values():
        for start in range(shape.units):
            wanted = mig.Placement(profile, start)
            if wanted in held or not mig.find_problems(shape, [*held, wanted]):
                continue
            kind = errors.Conflict if start in profile.starts else errors.Permanent
            with pytest.raises(kind, match=r"no room for|may only start at") as refusal:
                await made.create(f"{profile.name}@{start}")
            assert f"{profile.name}@{start}" in str(refusal.value)
    assert set(await made.places()) == layout


@pytest.mark.parametrize(("gpu", "geometry"), [(A100, "A100-80GB"), (H100, "H100-80GB")])
async def test_beside_every_instance_whatever_does_not_fit_is_refused(tmp_path: Path, gpu: str, geometry: str) -> None:
    """The hardware refuses what the geometry forbids, and stays as it was."""
    shape = mig.GEOMETRIES[geometry]
    made = await bench(tmp_path, gpu)
    await refuse_what_does_not_fit(made, shape, frozenset())
    for profile in shape.profiles.values():
        for start in profile.starts:
            place = f"{profile.name}@{start}"
            await made.create(place)
            await refuse_what_does_not_fit(made, shape, frozenset({place}))
            await made.remove(place)
    await made.driver.close()


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("gpu", "geometry"), [(A100, "A100-80GB"), (H100, "H100-80GB")])
async def test_in_every_layout_whatever_does_not_fit_is_refused(tmp_path: Path, gpu: str, geometry: str) -> None:
    shape = mig.GEOMETRIES[geometry]
    made = await bench(tmp_path, gpu)
    for place, is_created, layout in walk(layout_graph.get_layout_graph(shape)):
        await (made.create(place) if is_created else made.remove(place))
        if is_created:
            await refuse_what_does_not_fit(made, shape, layout)
    await made.driver.close()


async def test_the_refusal_names_what_is_in_the_way(cut: Bench) -> None:
    await cut.create("2g.20gb@4")
    with pytest.raises(errors.Conflict, match=r"no room for 3g\.40gb@4: the GPU has 2g\.20gb@4"):
        await cut.create("3g.40gb@4")


async def test_an_old_driver_without_a_list_of_places_still_refuses(tmp_path: Path) -> None:
    made = await bench(tmp_path, A100, Generation.OLD)
    await made.create("3g.40gb@4")
    for place in ("3g.40gb@2", "4g.40gb@4", "1g.10gb@7", "2g.20gb@5"):
        with pytest.raises(errors.Conflict, match="no room for"):
            await made.create(place)
    assert await made.places() == ["3g.40gb@4"]
    await made.driver.close()


async def test_a_profile_of_another_card_is_refused_with_those_it_has(cut: Bench) -> None:
    with pytest.raises(errors.Permanent, match=r"no MIG profile '1g\.5gb'; it offers 1g\.10gb, "):
        await cut.create("1g.5gb@0")


async def test_a_card_without_mig_cannot_be_cut(tmp_path: Path) -> None:
    driver = gpus.driver(gpus.hardware(tmp_path, gpus.box("L40S")))
    uuid = (await gpus.card(driver)).uuid
    with pytest.raises(errors.Permanent, match="Not Supported"):
        await driver.set_mig_mode(uuid, enabled=True)
    with pytest.raises(errors.Permanent, match="no MIG profile"):
        await driver.create_instance(uuid, "1g.10gb", 0)
    await driver.close()


# --- making and unmaking --------------------------------------------------------------------------------


async def test_creating_twice_is_creating_once(cut: Bench) -> None:
    first = await cut.create("3g.40gb@4")
    assert await cut.create("3g.40gb@4") == first
    assert await cut.places() == ["3g.40gb@4"]


async def test_an_instance_made_anew_has_a_new_name(cut: Bench) -> None:
    names = set()
    for _ in range(3):
        names.add(await cut.create("1g.10gb@3"))
        await cut.remove("1g.10gb@3")
    assert len(names) == 3


async def test_an_instance_without_compute_instance_is_shown_and_completed(cut: Bench) -> None:
    """As a process that is killed between the two steps leaves it."""
    await cut.create("2g.20gb@2")
    with cut.machine.lock_state() as now:
        now.gpus[0].instances[0].compute[0].used = 0
    (half,) = (await gpus.card(cut.driver)).mig.instances
    assert (half.uuid, half.profile, half.start) == ("", "2g.20gb", 2)
    assert (await cut.create("2g.20gb@2")).startswith("MIG-")
    assert len(cut.machine.list_instances(0)) == 1


async def test_an_instance_without_compute_instance_can_be_removed(cut: Bench) -> None:
    await cut.create("2g.20gb@2")
    with cut.machine.lock_state() as now:
        now.gpus[0].instances[0].compute[0].used = 0
    await cut.remove("2g.20gb@2")
    assert cut.machine.list_instances(0) == ()


async def test_where_the_second_step_fails_the_first_is_undone(cut: Bench) -> None:
    cut.machine.fail("nvmlGpuInstanceCreateComputeInstance", Code.UNKNOWN)
    with pytest.raises(errors.Transient):
        await cut.create("2g.20gb@2")
    assert cut.machine.list_instances(0) == ()


async def test_an_instance_in_use_is_not_removed(cut: Bench) -> None:
    await cut.create("1g.10gb@0")
    (instance,) = (await gpus.card(cut.driver)).mig.instances
    cut.machine.start_process(0, 4711, memory_mib=100, instance_id=instance.instance_id)
    assert (await gpus.card(cut.driver)).mig.instances[0].is_busy
    with pytest.raises(errors.Conflict, match="in use"):
        await cut.driver.destroy_instance(cut.uuid, instance.instance_id)
    assert await cut.places() == ["1g.10gb@0"]
    cut.machine.stop_process(0, 4711)
    await cut.driver.destroy_instance(cut.uuid, instance.instance_id)
    assert await cut.places() == []


async def test_the_hardware_refuses_too_when_the_process_came_after_the_look(cut: Bench) -> None:
    """The list of processes is a look, not a lock."""
    await cut.create("1g.10gb@0")
    (instance,) = (await gpus.card(cut.driver)).mig.instances
    cut.machine.start_process(0, 4711, instance_id=instance.instance_id)
    for kind in ("Compute", "Graphics", "MPSCompute"):
        cut.machine.forget(f"nvmlDeviceGet{kind}RunningProcesses_v3", f"nvmlDeviceGet{kind}RunningProcesses_v2")
    with pytest.raises(errors.Conflict, match=r"(?i)in use"):
        await cut.driver.destroy_instance(cut.uuid, instance.instance_id)
    cut.machine.clear_faults()
    (still,) = (await gpus.card(cut.driver)).mig.instances
    assert (still.uuid, still.is_busy) == (instance.uuid, True)


async def test_what_is_gone_is_not_found(cut: Bench) -> None:
    with pytest.raises(errors.NotFound, match="no GPU instance 9"):
        await cut.driver.destroy_instance(cut.uuid, 9)
    with pytest.raises(errors.NotFound, match="GPU-nobody"):
        await cut.driver.create_instance("GPU-nobody", "1g.10gb", 0)


# --- the mode -------------------------------------------------------------------------------------------


async def test_a_card_that_is_not_in_mig_mode_is_not_cut(tmp_path: Path) -> None:
    driver = gpus.driver(gpus.hardware(tmp_path, gpus.box(H100)))
    with pytest.raises(errors.Conflict, match="MIG mode is not on"):
        await driver.create_instance((await gpus.card(driver)).uuid, "1g.10gb", 0)
    await driver.close()


async def test_a_busy_hopper_refuses_the_mode(tmp_path: Path) -> None:
    machine = gpus.hardware(tmp_path, gpus.box(H100))
    driver = gpus.driver(machine)
    uuid = (await gpus.card(driver)).uuid
    machine.start_process(0, 4711)
    with pytest.raises(errors.Conflict, match="process 4711 on the GPU"):
        await driver.set_mig_mode(uuid, enabled=True)
    now = (await gpus.card(driver)).mig
    assert (now.is_enabled, now.is_pending) == (False, False)
    machine.stop_process(0, 4711)
    assert await driver.set_mig_mode(uuid, enabled=True)
    assert (await gpus.card(driver)).mig.is_enabled
    await driver.close()


async def test_a_busy_ampere_changes_its_mode_at_the_next_reset(tmp_path: Path) -> None:
    machine = gpus.hardware(tmp_path, gpus.box(A100))
    driver = gpus.driver(machine)
    uuid = (await gpus.card(driver)).uuid
    machine.start_process(0, 4711)
    assert not await driver.set_mig_mode(uuid, enabled=True)
    now = (await gpus.card(driver)).mig
    assert (now.is_enabled, now.is_pending) == (False, True)
    with pytest.raises(errors.Conflict, match=r"(?i)in use"):
        await driver.reset(uuid)
    machine.stop_process(0, 4711)
    await driver.reset(uuid)
    now = (await gpus.card(driver)).mig
    assert (now.is_enabled, now.is_pending) == (True, False)
    await driver.close()


async def test_a_cut_card_keeps_its_mode(tmp_path: Path) -> None:
    made = await bench(tmp_path, H100)
    await made.create("7g.80gb@0")
    with pytest.raises(errors.Conflict, match=r"7g\.80gb@0 on the GPU"):
        await made.driver.set_mig_mode(made.uuid, enabled=False)
    await made.remove("7g.80gb@0")
    assert await made.driver.set_mig_mode(made.uuid, enabled=False)
    await made.driver.close()


async def test_setting_the_mode_that_is_on_is_success(cut: Bench) -> None:
    await cut.create("1g.10gb@0")
    assert await cut.driver.set_mig_mode(cut.uuid, enabled=True)
    assert await cut.places() == ["1g.10gb@0"]


# --- media engines, other cards -------------------------------------------------------------------------


async def test_media_engines_go_to_one_instance(cut: Bench) -> None:
    await cut.create("1g.10gb+me@0")
    with pytest.raises(errors.Conflict, match=r"has 1g\.10gb\+me@0"):
        await cut.create("1g.10gb+me@1")
    await cut.create("1g.10gb@1")
    assert await cut.places() == ["1g.10gb+me@0", "1g.10gb@1"]


@pytest.mark.parametrize("gpu_name", [A100, "A30"])
async def test_who_is_not_root_reads_the_same_and_cuts_nothing(tmp_path: Path, gpu_name: str) -> None:
    made = await bench(tmp_path, gpu_name)
    geometry = catalog.CATALOGUE[gpu_name].geometry
    assert geometry is not None
    for state_number in (1, 7, 20, 50):
        atlas = layout_graph.get_layout_graph(geometry)
        for placement in atlas.layout(state_number):
            await made.create(f"{placement.profile.name}@{placement.start}")
        as_root = (await gpus.card(made.driver)).mig
        for function in ("nvmlDeviceGetGpuInstances", "nvmlDeviceGetGpuInstanceById"):
            made.machine.fail(function, Code.NO_PERMISSION)
        assert (await gpus.card(made.driver)).mig == as_root
        with pytest.raises(errors.Permanent, match="Permissions"):
            await made.create(f"{as_root.instances[0].profile}@{as_root.instances[0].start}")
        with pytest.raises(errors.Permanent, match="Permissions"):
            await made.driver.destroy_instance(made.uuid, as_root.instances[0].instance_id)
        made.machine.clear_faults()
        for place in await made.places():
            await made.remove(place)
    await made.driver.close()


@pytest.mark.parametrize(
    "model", [model for model in catalog.CATALOGUE.values() if model.geometry], ids=lambda m: m.name
)
def test_names_of_profiles_follow_from_their_sizes(model: catalog.GpuModel) -> None:
    """As they must where an old driver does not say the name."""
    numbers = {number: name for name, number in vars(pynvml).items() if name.startswith("NVML_GPU_INSTANCE_PROFILE_")}
    assert model.geometry is not None
    for profile in model.geometry.profiles.values():
        constant = numbers[blueprint.profile_number(model.geometry, profile)]
        made = nvml_mig.profile_name(constant, profile.compute, profile.memory_mib, model.memory_mib)
        assert made == profile.name


def test_the_c_library_has_every_profile_of_every_geometry() -> None:
    for geometry in mig.GEOMETRIES.values():
        numbers = [blueprint.profile_number(geometry, profile) for profile in geometry.profiles.values()]
        assert len(set(numbers)) == len(numbers)
        assert max(numbers) < state.MAX_PROFILES
        assert max(len(profile.starts) for profile in geometry.profiles.values()) <= state.MAX_STARTS
        assert geometry.units <= state.MAX_GPU_INSTANCES


@pytest.mark.parametrize("gpu", ["T4", "L40S"])
async def test_a_gpu_that_can_have_no_instances_is_not_mig_capable_although_it_reports_a_mode(tmp_path, gpu):
    machine = gpus.hardware(tmp_path, gpus.box(gpu))
    library = Library(machine.library)
    library.initialise()
    handle = library.call("nvmlDeviceGetHandleByIndex", 0)
    assert library.call("nvmlDeviceGetMigMode", handle) == [0, 0]
    assert not (await gpus.card(gpus.driver(machine))).mig.is_capable
