"""Instruments, counters and processes through the C library."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.builders import gpus

from kgwe.hardware.nvml import reading as nvml_reading
from kgwe.local.nvml.build import Generation
from kgwe.local.nvml.hardware import Kind
from kgwe.model.gpu.driver_data import LinkErrors, Process, Throttle

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("generation", Generation)
async def test_every_instrument_is_read_in_its_unit(tmp_path: Path, generation: Generation) -> None:
    machine = gpus.hardware(tmp_path, gpus.box("H100-SXM5-80GB"), generation)
    machine.set(
        0,
        util=87,
        memory_util=31,
        power_mw=512_345,
        power_limit_mw=700_000,
        energy_mj=123_456_789,
        gpu_c=66,
        memory_c=71,
        slowdown_c=87,
        sm_mhz=1755,
        memory_mhz=2619,
        pcie_tx_kb=1200,
        pcie_rx_kb=900,
        throttle=0x4,
    )
    driver = gpus.driver(machine)
    (reading,) = await driver.readings()
    await driver.close()
    assert (reading.util, reading.memory_util) == (0.87, 0.31)
    assert (reading.power_w, reading.power_limit_w, reading.energy_j) == (512.345, 700.0, 123_456.789)
    assert (reading.gpu_c, reading.memory_c, reading.slowdown_c) == (66, 71, 87)
    assert (reading.sm_mhz, reading.memory_mhz) == (1755, 2619)
    assert (reading.pcie_tx_bytes_per_s, reading.pcie_rx_bytes_per_s) == (1_200_000, 900_000)
    assert reading.throttle is Throttle.POWER_CAP
    assert reading.memory_total_mib == 81559
    # What the driver keeps for itself counts as used only where it cannot be told apart.
    assert reading.memory_used_mib == (0 if generation is Generation.NEW else 81559 * 7 // 1000)


async def test_what_went_wrong_is_counted(tmp_path: Path) -> None:
    machine = gpus.hardware(tmp_path, gpus.node_of("hgx-a100"))
    machine.set(3, ecc_corrected=7, ecc_uncorrected=1, rows_uncorrected=2, rows_pending=1, pcie_replays=5)
    machine.set_link(3, 4, replays=11, recoveries=2, crc=9, tx_kib=8, rx_kib=16)
    driver = gpus.driver(machine)
    reading = (await driver.readings())[3]
    await driver.close()
    faults = reading.faults
    assert (faults.ecc_corrected, faults.ecc_uncorrected, faults.pcie_replays) == (7, 1, 5)
    assert (faults.rows_remapped, faults.is_remap_pending, faults.has_remap_failed) == (2, True, False)
    assert (faults.retired_pages, faults.is_retirement_pending) == (None, None), "an A100 remaps rows instead"
    assert faults.links[4] == LinkErrors(4, replays=11, recoveries=2, crc=9)
    assert dict(reading.nvlink_tx_bytes)[4] == 8192
    assert dict(reading.nvlink_rx_bytes)[4] == 16384


async def test_a_volta_retires_pages(tmp_path: Path) -> None:
    machine = gpus.hardware(tmp_path, gpus.box("V100-SXM2-16GB"))
    machine.set_retired_pages(0, single_bit=3, double_bit=2)
    machine.set(0, pages_pending=1)
    driver = gpus.driver(machine)
    faults = (await driver.readings())[0].faults
    await driver.close()
    assert (faults.retired_pages, faults.is_retirement_pending, faults.rows_remapped) == (5, True, None)


@pytest.mark.parametrize("generation", Generation)
async def test_processes_of_a_shared_card_are_told_apart(tmp_path: Path, generation: Generation) -> None:
    machine = gpus.hardware(tmp_path, gpus.box("A10"), generation)
    machine.start_process(0, 100, memory_mib=4000, util=60)
    machine.start_process(0, 200, memory_mib=1000, util=25, kind=Kind.MPS)
    machine.start_process(0, 300, memory_mib=10)
    machine.start_process(0, 300, memory_mib=20, kind=Kind.GRAPHICS)
    driver = gpus.driver(machine)
    (reading,) = await driver.readings()
    await driver.close()
    assert reading.processes == (
        Process(100, 4000, 0.6),
        Process(200, 1000, 0.25),
        Process(300, 20, 0.0),
    )


async def test_a_process_that_uses_more_or_ends_is_seen(tmp_path: Path) -> None:
    machine = gpus.hardware(tmp_path, gpus.box("A10"))
    driver = gpus.driver(machine)
    machine.start_process(0, 100, memory_mib=4000, util=60)
    assert (await driver.readings())[0].processes == (Process(100, 4000, 0.6),)
    machine.start_process(0, 100, memory_mib=5000, util=0)
    assert (await driver.readings())[0].processes == (Process(100, 5000, 0.0),)
    assert (await driver.readings())[0].memory_used_mib == 5000
    machine.stop_process(0, 100)
    assert (await driver.readings())[0].processes == ()
    await driver.close()


async def test_a_cut_card_is_read_by_instance(tmp_path: Path) -> None:
    machine = gpus.hardware(tmp_path, gpus.node_of("hgx-a100", "a100-mig"))
    machine.start_process(0, 100, memory_mib=4000, util=60, instance_id=1)
    machine.start_process(0, 200, memory_mib=500, util=60, instance_id=13)
    driver = gpus.driver(machine)
    reading = (await driver.readings())[0]
    await driver.close()
    assert (reading.util, reading.memory_util) == (None, None), "the driver measures none on a cut card"
    assert reading.processes == (
        Process(100, 4000, None, instance_id=1),
        Process(200, 500, None, instance_id=13),
    )
    assert reading.instance_memory_mib == ((1, 4000), (5, 0), (13, 500))


async def test_what_a_card_does_not_measure_is_not_known(tmp_path: Path) -> None:
    machine = gpus.hardware(tmp_path, gpus.box("L40S"))
    machine.forget(
        "nvmlDeviceGetPowerUsage",
        "nvmlDeviceGetTotalEnergyConsumption",
        "nvmlDeviceGetFieldValues",
        "nvmlDeviceGetTemperature",
        "nvmlDeviceGetRemappedRows",
        "nvmlDeviceGetTotalEccErrors",
        "nvmlDeviceGetCurrentClocksEventReasons",
        "nvmlDeviceGetCurrentClocksThrottleReasons",
        "nvmlDeviceGetUtilizationRates",
        "nvmlDeviceGetComputeRunningProcesses_v3",
        "nvmlDeviceGetComputeRunningProcesses_v2",
    )
    driver = gpus.driver(machine)
    (reading,) = await driver.readings()
    await driver.close()
    assert (reading.power_w, reading.energy_j, reading.gpu_c, reading.memory_c) == (None, None, None, None)
    assert (reading.util, reading.throttle, reading.faults.ecc_corrected) == (None, None, None)
    assert reading.faults.rows_remapped is None
    assert (reading.processes, reading.nvlink_tx_bytes) == ((), ())
    assert reading.memory_total_mib == 46068
    assert reading.sm_mhz is not None


async def test_a_card_with_only_the_second_memory_call_is_read(tmp_path: Path) -> None:
    machine = gpus.hardware(tmp_path, gpus.box("GB200-186GB"))
    machine.set(0, memory_v1_missing=1)
    driver = gpus.driver(machine)
    assert (await gpus.card(driver)).memory_mib == 189471
    machine.forget("nvmlDeviceGetMemoryInfo_v2")
    assert (await gpus.card(driver)).memory_mib is None
    assert (await driver.readings())[0].memory_total_mib is None
    await driver.close()


@pytest.mark.parametrize(
    ("bits", "expected"),
    [
        (0x0, Throttle.NONE),
        (0x1, Throttle.IDLE),
        (0x4 | 0x20, Throttle.POWER_CAP | Throttle.THERMAL_SOFTWARE),
        (0x8 | 0x40, Throttle.THERMAL_HARDWARE),
        (0x8 | 0x80, Throttle.POWER_BRAKE),
        (0x8, Throttle.OTHER),
        (0x2 | 0x100, Throttle.OTHER),
    ],
)
def test_reasons_of_slow_clocks(bits: int, expected: Throttle) -> None:
    assert nvml_reading.list_throttle_reasons(bits) is expected
