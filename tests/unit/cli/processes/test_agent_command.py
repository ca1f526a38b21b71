"""`kgwe agent`, as typed: on the C library that plays the hardware, without a cluster."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import pytest
import yaml
from tests.support.machines import memory_driver
from tests.support.machines.naming import named_alike
from tests.support.patience import PATIENCE_S

from kgwe.cli import main
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


@dataclass
class Shell:
    """Types commands on the machine. They run in this process: a process of its own takes half a second to start."""

    machine: AgentMachine
    capture: pytest.CaptureFixture[str]
    environment: pytest.MonkeyPatch

    def type(self, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        for name, value in {**self.machine.hardware.environment, **env}.items():
            self.environment.setenv(name, value)
        self.capture.readouterr()
        try:
            main.main(["agent", *arguments])
        except SystemExit as stop:
            code = 1 if isinstance(stop.code, str) else stop.code or 0
        else:
            code = 0
        return subprocess.CompletedProcess(arguments, code, *self.capture.readouterr())


@pytest.fixture
def shell(machine: AgentMachine, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shell:
    return Shell(machine, capsys, monkeypatch)


def test_discover_shows_cards_and_how_they_are_joined(shell: Shell):
    done = shell.type("discover")
    assert done.returncode == 0, done.stderr
    assert "8 GPUs, driver" in done.stdout
    assert done.stdout.count("Tesla V100-SXM2-16GB") == 8
    assert "v2 6/6" in done.stdout
    (row,) = [line for line in done.stdout.splitlines() if line.startswith("GPU0 ")]
    assert row.split()[1:] == shell.machine.node.machine.wiring.matrix()[0]


@pytest.mark.parametrize("flags", [("--json",), ("-o", "json"), ("-o", "yaml")])
def test_discover_for_programs_is_the_status_of_a_gpunode(shell: Shell, flags: tuple[str, ...]):
    done = shell.type("discover", *flags)
    assert done.returncode == 0, done.stderr
    told = yaml.safe_load(done.stdout) if "yaml" in flags else json.loads(done.stdout)
    assert named_alike(msgspec.convert(told, GPUNodeStatus)) == named_alike(gpunodes.build_status(shell.machine.node))


def test_without_a_driver_discover_says_what_is_missing(shell: Shell):
    done = shell.type("discover", KGWE_NVML_LIBRARY="/nowhere/libnvidia-ml.so.1")
    assert done.returncode == 1
    assert done.stderr.startswith("kgwe: ")
    assert "/nowhere/libnvidia-ml.so.1" in done.stderr


def test_an_agent_runs_alone_is_pinged_and_watched_and_ends_when_asked(shell: Shell):
    env = {**os.environ, **shell.machine.hardware.environment, "KGWE_AGENT_TELEMETRY_INTERVAL_SECONDS": "0.2"}
    flags = (
        "--standalone",
        "--node-name",
        "n1",
        "--grpc-bind-address",
        shell.machine.address,
        "--exporter-bind-address",
        "",
    )
    with shell.machine.log.open("wb") as log:
        agent = subprocess.Popen([sys.executable, "-m", "kgwe.cli", "agent", *flags], env=env, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + PATIENCE_S
        while (pong := shell.type("ping", shell.machine.address)).returncode and time.monotonic() < deadline:
            assert agent.poll() is None, shell.machine.log.read_text()
        assert pong.stdout.startswith("n1: kgwe "), pong.stderr
        assert "driver ready" in pong.stdout
        seen = shell.type("watch", shell.machine.address, "--count", "2")
        assert seen.stdout.count("GPU-") == 16
        told = shell.type("watch", shell.machine.address, "--count", "1", "--json")
        assert len(json.loads(told.stdout)["readings"]) == 8
        agent.terminate()
        assert agent.wait(PATIENCE_S) == 0
    finally:
        agent.kill()
        agent.wait()


def test_nobody_there_is_said(shell: Shell):
    done = shell.type("ping", shell.machine.address)
    assert done.returncode == 1
    assert f"kgwe: agent {shell.machine.address}: " in done.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--grpc-bind-address", "", "--config", "/nowhere.yaml"), "cannot read settings /nowhere.yaml"),
        (("ping", "127.0.0.1:1", "--cert", "/x"), "--cert, --key and --ca must be given together"),
    ],
)
def test_mistakes_are_answered_with_what_to_do(shell: Shell, arguments: tuple[str, ...], says: str):
    done = shell.type(*arguments)
    assert done.returncode == 1
    assert says in done.stderr
