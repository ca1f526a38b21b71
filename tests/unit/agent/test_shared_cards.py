"""From the driver's C interface to the metrics: whose work a shared card does."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import TYPE_CHECKING

import pytest
from tests import gpus

from kgwe.apps.agent.around import Around
from kgwe.apps.agent.exporter import Exporter
from kgwe.apps.agent.sampler import Sampler

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
    out.set_sample(Sampler().take(machine, readings, 0.0, Around(proc).now(readings)))
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
