"""`kgwe agent`, as typed: on the C library that plays the hardware, without a cluster."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import msgspec
import pytest
import yaml
from tests.support.machines import memory_driver
from tests.support.machines.naming import named_alike
from tests.support.patience import PATIENCE_S

from kgwe.kube.api.kgwe.gpunode import GPUNodeStatus
from kgwe.local.fleet import gpunodes
from kgwe.local.fleet.agents import AgentMachine

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[AgentMachine]:
    with AgentMachine(memory_driver.node("v100"), tmp_path / "machine") as made:
        yield made


def kgwe(machine: AgentMachine, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kgwe.cli", "agent", *arguments],
        env={**os.environ, **machine.hardware.environment, **env},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_discover_shows_cards_and_how_they_are_joined(machine: AgentMachine):
    done = kgwe(machine, "discover")
    assert done.returncode == 0, done.stderr
    assert "8 GPUs, driver" in done.stdout
    assert done.stdout.count("Tesla V100-SXM2-16GB") == 8
    assert "v2 6/6" in done.stdout
    (row,) = [line for line in done.stdout.splitlines() if line.startswith("GPU0 ")]
    assert row.split()[1:] == machine.node.machine.wiring.matrix()[0]


@pytest.mark.parametrize("flags", [("--json",), ("-o", "json"), ("-o", "yaml")])
def test_discover_for_programs_is_the_status_of_a_gpunode(machine: AgentMachine, flags: tuple[str, ...]):
    done = kgwe(machine, "discover", *flags)
    assert done.returncode == 0, done.stderr
    told = yaml.safe_load(done.stdout) if "yaml" in flags else json.loads(done.stdout)
    assert named_alike(msgspec.convert(told, GPUNodeStatus)) == named_alike(gpunodes.status(machine.node))


def test_without_a_driver_discover_says_what_is_missing(machine: AgentMachine):
    done = kgwe(machine, "discover", KGWE_NVML_LIBRARY="/nowhere/libnvidia-ml.so.1")
    assert done.returncode == 1
    assert done.stderr.startswith("kgwe: ")
    assert "/nowhere/libnvidia-ml.so.1" in done.stderr


def test_an_agent_runs_alone_is_pinged_and_watched_and_ends_when_asked(machine: AgentMachine):
    env = {**os.environ, **machine.hardware.environment, "KGWE_AGENT_TELEMETRY_INTERVAL_SECONDS": "0.2"}
    flags = ("--standalone", "--node-name", "n1", "--grpc-bind-address", machine.address, "--exporter-bind-address", "")
    with machine.log.open("wb") as log:
        agent = subprocess.Popen([sys.executable, "-m", "kgwe.cli", "agent", *flags], env=env, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + PATIENCE_S
        while (pong := kgwe(machine, "ping", machine.address)).returncode and time.monotonic() < deadline:
            assert agent.poll() is None, machine.log.read_text()
        assert pong.stdout.startswith("n1: kgwe "), pong.stderr
        assert "driver ready" in pong.stdout
        seen = kgwe(machine, "watch", machine.address, "--count", "2")
        assert seen.stdout.count("GPU-") == 16
        told = kgwe(machine, "watch", machine.address, "--count", "1", "--json")
        assert len(json.loads(told.stdout)["readings"]) == 8
        agent.terminate()
        assert agent.wait(PATIENCE_S) == 0
    finally:
        agent.kill()
        agent.wait()


def test_nobody_there_is_said(machine: AgentMachine):
    done = kgwe(machine, "ping", machine.address)
    assert done.returncode == 1
    assert f"kgwe: agent {machine.address}: " in done.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--grpc-bind-address", "", "--config", "/nowhere.yaml"), "cannot read settings /nowhere.yaml"),
        (("ping", "127.0.0.1:1", "--cert", "/x"), "--cert, --key and --ca must be given together"),
    ],
)
def test_mistakes_are_answered_with_what_to_do(machine: AgentMachine, arguments: tuple[str, ...], says: str):
    done = kgwe(machine, *arguments)
    assert done.returncode == 1
    assert says in done.stderr
