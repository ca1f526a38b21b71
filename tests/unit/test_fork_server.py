"""Processes that are forked behave as those that are started: arguments, environment, output, exit code, signals."""

from __future__ import annotations

import os
import signal
import subprocess
from typing import TYPE_CHECKING

import pytest
from tests.support.clusters.fork_server import ForkServer
from tests.support.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    made = ForkServer()
    yield made
    made.close()


def test_a_command_prints_and_ends_as_from_the_shell(server: ForkServer, tmp_path: Path):
    log = tmp_path / "log"
    process = server.start(["--version"], dict(os.environ), log)
    assert process.wait(PATIENCE_S) == 0
    assert log.read_text().startswith("kgwe ")


def test_a_command_that_fails_says_so_by_its_exit_code(server: ForkServer, tmp_path: Path):
    log = tmp_path / "log"
    env = os.environ | {"KGWE_SCHEDULER_WORKERS": "many"}
    process = server.start(["scheduler"], env, log)
    assert process.wait(PATIENCE_S) == 1
    assert "workers" in log.read_text()
    assert process.poll() == 1


def test_a_process_is_paused_and_killed_as_any_other(server: ForkServer, tmp_path: Path):
    process = server.start(["scheduler", "--kubeconfig", str(tmp_path / "fifo")], dict(os.environ), tmp_path / "log")
    process.send_signal(signal.SIGSTOP)
    if process.poll() is None:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.01)
    process.kill()
    process.send_signal(signal.SIGCONT)  # one that ended takes no signal
    assert process.wait(PATIENCE_S) in {1, -signal.SIGKILL}
