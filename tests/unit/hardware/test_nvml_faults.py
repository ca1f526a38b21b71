"""Drivers that hang, fail, lose cards, are old or are not there."""

from __future__ import annotations

import asyncio
import os
import warnings
from typing import TYPE_CHECKING

import pytest
from tests.support.builders import gpus
from tests.support.patience import PATIENCE_S

from kgwe import errors
from kgwe.hardware.nvml.driver import Absence, NvmlDriver, Unavailable
from kgwe.local.nvml.build import Generation
from kgwe.local.nvml.hardware import STATE_FILE, Code, Hardware
from kgwe.model.gpu.driver_data import Event

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path


@pytest.fixture
def machine(tmp_path: Path) -> Hardware:
    return gpus.hardware(tmp_path, gpus.box("H100-SXM5-80GB", cards=3))


@pytest.fixture
async def driver(machine: Hardware) -> AsyncIterator[NvmlDriver]:
    made = gpus.driver(machine)
    yield made
    await made.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 -- the driver has no event for it
            await asyncio.sleep(0.01)


# --- no driver ------------------------------------------------------------------------------------------


async def absence_of(library: Path | str) -> tuple[Absence, str]:
    driver = NvmlDriver(library=library)
    with pytest.raises(Unavailable) as refusal:
        await driver.machine()
    with pytest.raises(Unavailable):
        await driver.readings()
    await driver.close()
    return refusal.value.absence, str(refusal.value)


async def test_no_library(tmp_path: Path) -> None:
    reason, words = await absence_of(tmp_path / "libnvidia-ml.so.1")
    assert reason is Absence.NO_LIBRARY
    assert "KGWE_NVML_LIBRARY" in words


async def test_something_that_is_no_library(tmp_path: Path) -> None:
    (tmp_path / "libnvidia-ml.so.1").write_text("not a library")
    assert (await absence_of(tmp_path / "libnvidia-ml.so.1"))[0] is Absence.BROKEN_LIBRARY


async def test_a_library_that_is_not_nvml() -> None:
    assert (await absence_of("libc.so.6"))[0] is Absence.BROKEN_LIBRARY


async def test_no_kernel_module(machine: Hardware) -> None:
    (machine.folder / STATE_FILE).unlink()
    assert (await absence_of(machine.library))[0] is Absence.NO_DRIVER


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (Code.LIB_RM_VERSION_MISMATCH, Absence.VERSION_MISMATCH),
        (Code.NO_PERMISSION, Absence.NO_PERMISSION),
        (Code.DRIVER_NOT_LOADED, Absence.NO_DRIVER),
    ],
)
async def test_a_driver_that_does_not_let_us_in(machine: Hardware, code: Code, reason: Absence) -> None:
    machine.fail("nvmlInitWithFlags", code)
    assert (await absence_of(machine.library))[0] is reason


async def test_a_driver_that_appears_is_found(machine: Hardware, driver: NvmlDriver) -> None:
    machine.fail("nvmlInitWithFlags", Code.DRIVER_NOT_LOADED)
    with pytest.raises(Unavailable):
        await driver.machine()
    machine.clear_faults()
    assert len((await driver.machine()).devices) == 3


async def test_a_driver_that_fails_to_start_for_another_reason_is_tried_again(
    machine: Hardware, driver: NvmlDriver
) -> None:
    machine.fail("nvmlInitWithFlags", Code.UNKNOWN, times=1)
    with pytest.raises(errors.Transient):
        await driver.machine()
    assert len((await driver.machine()).devices) == 3


async def test_the_environment_names_the_library(machine: Hardware) -> None:
    driver = NvmlDriver.from_environment(machine.environment)
    assert len((await driver.machine()).devices) == 3
    await driver.close()


# --- hanging --------------------------------------------------------------------------------------------


async def test_a_call_that_hangs_is_given_up_and_the_next_fail_at_once(machine: Hardware) -> None:
    driver = gpus.driver(machine, cut_s=0.2)
    uuid = (await gpus.card(driver)).uuid
    machine.delay_calls("nvmlDeviceGetHandleByUUID", 2.0, times=1)
    with pytest.raises(errors.Transient, match=r"removing instance 7 of .* did not respond within 0\.2 s"):
        await driver.destroy_instance(uuid, 7)
    assert driver.is_hung
    with pytest.raises(errors.Transient, match="reading the GPUs: the GPU driver hangs in removing instance 7"):
        await driver.machine()
    await until(lambda: not driver.is_hung)
    assert len(await driver.readings()) == 3
    await driver.close()


async def test_events_arrive_while_the_driver_hangs(machine: Hardware) -> None:
    driver = gpus.driver(machine, cut_s=0.2)
    uuid = (await gpus.card(driver)).uuid
    machine.delay_calls("nvmlDeviceGetHandleByUUID", 1.0, times=1)
    with pytest.raises(errors.Transient):
        await driver.destroy_instance(uuid, 7)
    machine.report_xid(2, 48)
    assert [event.xid for event in await driver.events(PATIENCE_S)] == [48]
    await until(lambda: not driver.is_hung)
    await driver.close()


async def test_a_driver_that_hangs_at_the_start_is_found_out_too(machine: Hardware) -> None:
    machine.delay_calls("nvmlInitWithFlags", 1.0, times=1)
    driver = gpus.driver(machine, read_s=0.2)
    with pytest.raises(errors.Transient, match="did not respond"):
        await driver.machine()
    await until(lambda: not driver.is_hung)
    await driver.close()


async def test_closing_does_not_wait_for_a_hung_call(machine: Hardware) -> None:
    driver = gpus.driver(machine, read_s=0.2)
    machine.delay_calls("nvmlDeviceGetCount_v2", 3.0, times=1)
    with pytest.raises(errors.Transient):
        await driver.machine()
    assert driver.is_hung
    await driver.close()
    assert driver.is_hung, "closed before the call returned"
    with pytest.raises(errors.Permanent, match="closed"):
        await driver.machine()
    await until(lambda: not driver.is_hung)


async def test_closing_while_the_wait_for_events_hangs(machine: Hardware) -> None:
    driver = gpus.driver(machine, read_s=0.5)
    await driver.machine()
    machine.delay_calls("nvmlEventSetWait_v2", 2.0, times=1)
    with pytest.raises(errors.Transient, match="waiting for events"):
        await driver.events(0.0)
    await driver.close()
    with pytest.raises(errors.Permanent, match="closed"):
        await driver.events(0.0)


# --- failing --------------------------------------------------------------------------------------------


async def test_one_card_that_fails_does_not_spoil_the_others(machine: Hardware, driver: NvmlDriver) -> None:
    machine.fail("nvmlDeviceGetPowerUsage", Code.UNKNOWN, card=1)
    readings = await driver.readings()
    assert [reading.power_w is None for reading in readings] == [False, True, False]


async def test_a_failure_of_something_needed_is_said(machine: Hardware, driver: NvmlDriver) -> None:
    machine.fail("nvmlDeviceGetCount_v2", Code.UNKNOWN, times=1)
    with pytest.raises(errors.Transient, match="reading the GPUs: nvmlDeviceGetCount: Unknown Error"):
        await driver.machine()
    assert len((await driver.machine()).devices) == 3


async def test_cutting_without_permission_is_refused_for_good(machine: Hardware, driver: NvmlDriver) -> None:
    machine.fail("nvmlDeviceSetMigMode", Code.NO_PERMISSION)
    with pytest.raises(errors.Permanent, match="Insufficient Permissions"):
        await driver.set_mig_mode((await gpus.card(driver)).uuid, enabled=True)


async def test_after_the_driver_was_reloaded_it_is_initialised_again(machine: Hardware, driver: NvmlDriver) -> None:
    await driver.machine()
    machine.fail("nvmlDeviceGetCount_v2", Code.UNINITIALIZED, times=1)
    with pytest.raises(errors.Transient, match="Uninitialized"):
        await driver.machine()
    assert len((await driver.machine()).devices) == 3


# --- lost cards -----------------------------------------------------------------------------------------


async def test_a_card_that_falls_off_the_bus_is_shown_as_lost(machine: Hardware, driver: NvmlDriver) -> None:
    before = await driver.machine()
    machine.lose(1)
    after, readings = await driver.machine(), await driver.readings()
    assert [device.is_lost for device in after.devices] == [False, True, False]
    assert [reading.is_lost for reading in readings] == [False, True, False]
    assert after.devices[1].uuid == before.devices[1].uuid == readings[1].uuid
    assert after.devices[0] == before.devices[0]
    with pytest.raises(errors.Transient, match="lost"):
        await driver.set_mig_mode(before.devices[1].uuid, enabled=True)


async def test_a_card_that_was_lost_before_we_came_has_no_name(machine: Hardware, driver: NvmlDriver) -> None:
    machine.lose(1)
    found = (await driver.machine()).devices
    assert [(device.uuid == "", device.index) for device in found] == [(False, 0), (True, 1), (False, 2)]


async def test_a_card_that_is_lost_in_the_middle_of_reading(machine: Hardware, driver: NvmlDriver) -> None:
    await driver.machine()
    machine.fail("nvmlDeviceGetPowerUsage", Code.GPU_IS_LOST, card=2)
    assert [reading.is_lost for reading in await driver.readings()] == [False, False, True]


async def test_a_reset_brings_a_lost_card_back(machine: Hardware, driver: NvmlDriver) -> None:
    card = await gpus.card(driver, 1)
    machine.set(1, ecc_uncorrected=3)
    machine.lose(1)
    assert (await gpus.card(driver, 1)).is_lost
    await driver.reset(card.uuid)
    assert await gpus.card(driver, 1) == card
    assert (await driver.readings())[1].faults.ecc_uncorrected == 0


async def test_a_reset_is_refused_while_another_process_has_the_driver_open(
    machine: Hardware, driver: NvmlDriver
) -> None:
    card = await gpus.card(driver)
    with machine.lock_state() as now:
        now.clients[5] = os.getppid()
    with pytest.raises(errors.Conflict, match=r"(?i)in use"):
        await driver.reset(card.uuid)
    assert not (await gpus.card(driver)).is_lost


async def test_a_reset_without_nvidia_smi_or_without_the_card(machine: Hardware, tmp_path: Path) -> None:
    driver = NvmlDriver(library=machine.library, smi=tmp_path / "absent")
    with pytest.raises(errors.NotFound, match="GPU-nobody"):
        await driver.reset("GPU-nobody")
    with pytest.raises(errors.Permanent, match="cannot run nvidia-smi"):
        await driver.reset((await gpus.card(driver)).uuid)
    assert len((await driver.machine()).devices) == 3
    await driver.close()


# --- events ---------------------------------------------------------------------------------------------


async def test_events_come_in_order_with_card_and_instance(machine: Hardware, driver: NvmlDriver) -> None:
    devices = (await driver.machine()).devices
    machine.report_xid(2, 31, instance_id=7)
    machine.report_xid(0, 79)
    assert list(await driver.events(PATIENCE_S)) == [Event(devices[2].uuid, 31, 7), Event(devices[0].uuid, 79)]
    assert list(await driver.events(0.0)) == []


async def test_an_event_wakes_who_waits(machine: Hardware, driver: NvmlDriver) -> None:
    await driver.machine()
    waiting = asyncio.create_task(driver.events(PATIENCE_S))
    await asyncio.sleep(0.05)
    machine.report_xid(1, 94)
    assert [event.xid for event in await waiting] == [94]


async def test_an_event_of_a_card_that_is_lost_names_it(machine: Hardware, driver: NvmlDriver) -> None:
    uuid = (await gpus.card(driver, 1)).uuid
    machine.lose(1)
    machine.report_xid(1, 79)
    assert list(await driver.events(PATIENCE_S)) == [Event(uuid, 79)]


async def test_no_event_is_lost_between_calls_or_by_a_caller_who_gives_up(
    machine: Hardware, driver: NvmlDriver
) -> None:
    await driver.machine()
    seen: list[int] = []
    for number in range(1, 21):
        waiting = asyncio.create_task(driver.events(PATIENCE_S))
        await asyncio.sleep(0)
        machine.report_xid(0, number)
        await asyncio.sleep(0.002 * (number % 5))
        waiting.cancel()
        await asyncio.wait([waiting])
        if not waiting.cancelled():
            seen += [event.xid for event in waiting.result()]
    async with asyncio.timeout(PATIENCE_S):
        while len(seen) < 20:
            seen += [event.xid for event in await driver.events(0.1)]
    assert seen == list(range(1, 21))


async def test_a_driver_without_events_is_waited_for_in_vain(machine: Hardware, driver: NvmlDriver) -> None:
    machine.forget("nvmlEventSetCreate")
    assert list(await driver.events(0.05)) == []


async def test_a_wait_that_ends_with_a_lost_card_goes_on_for_the_others(machine: Hardware, driver: NvmlDriver) -> None:
    devices = (await driver.machine()).devices
    machine.report_xid(1, 79)
    machine.lose(1)
    machine.fail("nvmlEventSetWait_v2", Code.GPU_IS_LOST, times=1)
    seen: list[Event] = []
    async with asyncio.timeout(PATIENCE_S):
        while not seen:
            seen += await driver.events(0.1)
    machine.report_xid(2, 31)
    seen += await driver.events(PATIENCE_S)
    assert seen == [Event(devices[1].uuid, 79), Event(devices[2].uuid, 31)]


async def test_events_survive_a_reset(machine: Hardware, driver: NvmlDriver) -> None:
    uuid = (await gpus.card(driver, 1)).uuid
    machine.report_xid(0, 13)
    await driver.reset(uuid)
    machine.report_xid(1, 14)
    seen = [event.xid for event in await driver.events(PATIENCE_S)]
    seen += [event.xid for event in await driver.events(1.0)]
    assert seen == [13, 14]


# --- processes and libraries ----------------------------------------------------------------------------


async def test_a_fork_initialises_for_itself(driver: NvmlDriver) -> None:
    await driver.machine()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # that it is not a good idea is what the driver is for
        pid = os.fork()
    if not pid:
        code = 1
        try:
            found = asyncio.new_event_loop().run_until_complete(driver.machine())
            code = 0 if len(found.devices) == 3 else 2
        finally:
            os._exit(code)
    _, status = await asyncio.to_thread(os.waitpid, pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert len((await driver.machine()).devices) == 3


async def test_opening_again_and_again_costs_no_memory(machine: Hardware) -> None:
    seen = set()
    for _ in range(3):
        driver = gpus.driver(machine)
        await driver.machine()
        seen.add(id(driver._open_session()._library.nvml))
        await driver.close()
    assert len(seen) == 1, "one copy of pynvml for all"


async def test_two_machines_live_in_one_process(tmp_path: Path) -> None:
    drivers = [gpus.driver(gpus.hardware(tmp_path, node)) for node in (gpus.box("T4"), gpus.box("L4", cards=2))]
    found = [await driver.machine() for driver in drivers]
    assert [[device.product for device in each.devices] for each in found] == [["Tesla T4"], ["NVIDIA L4"] * 2]
    for driver in drivers:
        await driver.close()


def test_the_hardware_can_be_let_go_of(machine: Hardware) -> None:
    machine.set(0, util=5)
    machine.close()
    again = Hardware(machine.folder)
    with again.lock_state() as now:
        assert now.gpus[0].util == 5


def test_a_machine_of_another_version_is_built_anew(tmp_path: Path) -> None:
    first = Hardware.create(tmp_path, gpus.box("T4"))
    first.set(0, util=5)
    other = tmp_path / "other"
    other.write_bytes(first.library.read_bytes() + b"of another version")
    other.replace(first.library)
    with Hardware.create(tmp_path, gpus.box("T4")).lock_state() as now:
        assert now.gpus[0].util == 0


async def test_a_machine_is_found_as_it_was_left(tmp_path: Path) -> None:
    node = gpus.box("H100-SXM5-80GB")
    first = gpus.driver(Hardware.create(tmp_path, node))
    uuid = (await gpus.card(first)).uuid
    await first.set_mig_mode(uuid, enabled=True)
    made = await first.create_instance(uuid, "2g.20gb", 2)
    await first.close()
    second = gpus.driver(Hardware.create(tmp_path, node))
    assert (await gpus.card(second)).mig.instances == (made,)
    await second.close()


async def test_an_old_driver_does_all_that_is_asked(tmp_path: Path) -> None:
    machine = gpus.hardware(tmp_path, gpus.box("A100-SXM4-40GB"), Generation.OLD)
    driver = gpus.driver(machine)
    uuid = (await gpus.card(driver)).uuid
    assert await driver.set_mig_mode(uuid, enabled=True)
    made = await driver.create_instance(uuid, "3g.20gb", 4)
    assert (made.profile, made.start, made.size) == ("3g.20gb", 4, 4)
    machine.report_xid(0, 13)
    assert [event.xid for event in await driver.events(PATIENCE_S)] == [13]
    assert (await driver.readings())[0].instance_memory_mib == ((made.instance_id, 0),)
    await driver.destroy_instance(uuid, made.instance_id)
    await driver.close()
