"""From the driver's C interface to the metrics: whose work a shared card does."""

from __future__ import annotations

import re
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

import pytest
from tests.support.builders import gpus

from kgwe.apps.agent.metrics.exporter import Exporter
from kgwe.apps.agent.metrics.node_context import NodeContext
from kgwe.apps.agent.metrics.sampler import Sampler
from kgwe.hardware.dcgm import scrape

if TYPE_CHECKING:
    from pathlib import Path

    from kgwe.local.nvml.hardware import Hardware

UID = "8d5f1a3c-02be-4f7a-9c1d-00000000000{}"


def in_pod(proc: Path, pid: int, number: int) -> str:
    uid = UID.format(number)
    (proc / str(pid)).mkdir(parents=True, exist_ok=True)
    path = f"/kubepods.slice/kubepods-pod{uid.replace('-', '_')}.slice/cri-containerd-{'a' * 64}.scope"
    (proc / str(pid) / "cgroup").write_text(f"0::{path}\n")
    return uid


async def shown(hardware: Hardware, proc: Path) -> str:
    """One round of the agent's, without the rest of it."""
    driver = gpus.driver(hardware)
    try:
        machine, readings = await driver.machine(), await driver.readings()
    finally:
        await driver.close()
    out = Exporter("node-1", clock=lambda: 0.0)
    out.set_machine(machine)
    out.set_sample(Sampler().take(machine, readings, 0.0, NodeContext(proc).take_surroundings(readings)))
    return out.render().decode()


def values(text: str, name: str) -> dict[str, Fraction]:
    """pod uid (or nothing) -> value, of the first card."""
    lines = re.findall(rf"^{name}\{{(.*)\}} (\S+)$", text, re.MULTILINE)
    return {(re.findall(r'pod_uid="([^"]+)"', labels) or [""])[0]: Fraction(value) for labels, value in lines}


@pytest.fixture
def hardware(tmp_path) -> Hardware:
    return gpus.hardware(tmp_path, gpus.box("H100-SXM5-80GB"))


async def test_four_pods_on_a_card_at_99_percent(hardware, tmp_path):
    hardware.set(0, util=99)
    for number in range(4):
        in_pod(tmp_path, 1000 + number, number)
        hardware.start_process(0, 1000 + number, util=99, memory_mib=1000)
    text = await shown(hardware, tmp_path)
    assert values(text, "kgwe_gpu_utilization_percent") == {"": 99}
    assert values(text, "kgwe_gpu_pod_share_percent") == {UID.format(n): Fraction("24.75") for n in range(4)}
    assert values(text, "kgwe_gpu_idle_percent") == {"": 1}
    assert set(values(text, "kgwe_gpu_pod_memory_bytes").values()) == {1000 * 1024 * 1024}


async def test_a_process_of_the_host_and_one_that_is_gone_are_nobodys(hardware, tmp_path):
    hardware.set(0, util=50)
    uid = in_pod(tmp_path, 1000, 0)
    hardware.start_process(0, 1000, util=30)
    hardware.start_process(0, 1001, util=20)
    text = await shown(hardware, tmp_path)
    assert values(text, "kgwe_gpu_pod_share_percent") == {uid: 30}
    assert values(text, "kgwe_gpu_unattributed_percent") == {"": 20}
    assert values(text, "kgwe_gpu_idle_percent") == {"": 50}


async def test_a_busy_instance_is_its_pods_and_what_nobody_measures_is_not_idle(tmp_path):
    hardware = gpus.hardware(tmp_path, gpus.box("A100-SXM4-80GB"))
    driver = gpus.driver(hardware)
    uuid = (await gpus.card(driver)).uuid
    if not await driver.set_mig_mode(uuid, enabled=True):
        await driver.reset(uuid)
    first = await driver.create_instance(uuid, "3g.40gb", 0)
    await driver.create_instance(uuid, "3g.40gb", 4)
    pod = in_pod(tmp_path, 1000, 1)
    hardware.start_process(0, 1000, memory_mib=2000, instance_id=first.instance_id)
    machine, readings = await driver.machine(), await driver.readings()
    await driver.close()
    labels = f'{{gpu="0",UUID="{uuid}",GPU_I_PROFILE="3g.40gb",GPU_I_ID="{first.instance_id}"}}'
    activities = scrape.MetricsReader().read(f"DCGM_FI_PROF_GR_ENGINE_ACTIVE{labels} 0.5\n")
    around = replace(NodeContext(tmp_path).take_surroundings(readings), activities=activities)
    out = Exporter("node-1", clock=lambda: 0.0)
    out.set_machine(machine)
    out.set_sample(Sampler().take(machine, readings, 0.0, around))
    text = out.render().decode()
    assert values(text, "kgwe_gpu_utilization_percent") == {}
    assert values(text, "kgwe_mig_instance_utilization_percent") == {"": 50}
    # A process NVML has no figure for, alone on its instance: all of the instance's work is its own.
    assert values(text, "kgwe_gpu_pod_share_percent") == {pod: 25}
    assert values(text, "kgwe_gpu_idle_percent") == {"": 25}
    assert values(text, "kgwe_gpu_unmeasured_percent") == {"": 50}
    assert values(text, "kgwe_gpu_pod_memory_bytes") == {pod: 2000 * 1024 * 1024}


async def test_traffic_is_what_the_links_counted_between_two_readings(tmp_path):
    hardware = gpus.hardware(tmp_path, gpus.node_of("v100-cube"))
    driver = gpus.driver(hardware)
    machine = await driver.machine()
    keeps = Sampler()
    keeps.take(machine, await driver.readings(), 0.0)
    kib = 1 << 20
    peers = {link.remote_bus.lower() for link in machine.devices[0].links}
    for link in machine.devices[0].links:
        hardware.set_link(0, link.index, tx_kib=kib * 5)
    told = keeps.take(machine, await driver.readings(), 5.0).gpus[0]
    await driver.close()
    links = len(machine.devices[0].links)
    assert links > 0
    assert told.nvlink.tx == pytest.approx(links * kib * 1024)
    by_uuid = {device.uuid: device.slot.bus.lower() for device in machine.devices}
    assert {by_uuid[uuid] for uuid in told.peers} == peers
    assert sum(traffic.tx or 0.0 for traffic in told.peers.values()) == pytest.approx(told.nvlink.tx)
