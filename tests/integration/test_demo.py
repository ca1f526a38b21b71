"""`make run`, once: the newcomer's first look must work."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from kgwe.local.cluster.cluster import LocalCluster
from kgwe.local.host import paths

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.cluster


def demo(root: Path, *arguments: str, **env: str) -> subprocess.Popen[str]:
    name = f"test-{os.getpid()}-demo"
    return subprocess.Popen(
        [sys.executable, "-m", "kgwe.cli", "demo", "--name", name, "--nodes", "32", *arguments],
        env=os.environ | {"KGWE_STATE_DIR": str(root)} | env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        bufsize=1,
    )


def test_once_the_samples_get_where_they_should_and_nothing_is_left_running(cluster_root: Path):
    process = demo(cluster_root, KGWE_RUN_ONCE="1")
    output, _ = process.communicate(timeout=480)

    assert process.returncode == 0, output
    assert "greedy: Pending  Budget ml-team/sweep-daily" in output
    assert "The fleet costs $" in output
    assert "All 8 samples reached their expected phase" in output
    assert "kgwe.nvidia.io/llm-training: Running on" in output
    assert "gpu.warp.dev/my-inference-workload: Succeeded" in output
    assert "too-large: Pending  0/" in output
    assert f"test-{os.getpid()}-demo" not in paths.cluster_names(cluster_root)


@pytest.mark.slow
def test_interrupted_it_stops_what_it_started(cluster_root: Path):
    process = demo(cluster_root)
    assert process.stdout is not None
    seen = []
    for line in process.stdout:
        seen.append(line)
        if "Running on" in line:
            break
    process.send_signal(signal.SIGINT)
    rest, _ = process.communicate(timeout=240)

    assert process.returncode == 0, "".join(seen) + rest
    assert not LocalCluster(f"test-{os.getpid()}-demo", state_root=cluster_root).is_running()
    assert f"test-{os.getpid()}-demo" not in paths.cluster_names(cluster_root)


def test_an_unknown_fleet_is_a_clear_error_and_leaves_nothing(cluster_root: Path):
    process = demo(cluster_root, "--fleet", "nonsense")
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 1
    assert "no fleet model 'nonsense'" in output
    assert "Traceback" not in output
