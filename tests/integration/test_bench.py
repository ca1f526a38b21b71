"""`kgwe bench` as a user runs it, at sizes where nothing can be concluded but that it works."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kgwe.local import paths, processes

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

# Only against hanging: a busy machine may take several times its usual time.
TIMEOUT_S = 540
TINY = ("--nodes", "3", "--workloads", "6", "--warm-up", "2", "--timeout-s", "100")


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "kgwe.cli", "bench", *arguments]


@pytest.fixture
def state(tmp_path: Path) -> dict[str, str]:
    """An environment whose clusters are nobody else's."""
    return {**os.environ, "KGWE_STATE_DIR": str(tmp_path)}


def run_cluster_bench(state: dict[str, str], *arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        command("cluster", *TINY, *arguments, "--json"),
        env=state,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert report.keys() == {"name", "params", "metrics", "machine"}
    return report


def assert_nothing_left(root: Path) -> None:
    assert paths.cluster_names(root) == []
    mark = f"{processes.MARK}={root}".encode()
    assert [path.parent.name for path in Path("/proc").glob("[0-9]*/environ") if mark in read(path)] == []


def read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # the process ended meanwhile, or is somebody else's
        return b""


def test_workloads_are_measured_beside_plain_jobs(state: dict[str, str], tmp_path: Path):
    report = run_cluster_bench(state, "--phases", "jobs", "workloads")
    metrics = report["metrics"]
    assert (metrics["unbound"], metrics["doubled"], metrics["oversubscribed"]) == (0, 0, 0)
    assert metrics["workloads_per_s"] == metrics["pods_per_s"] > 0
    assert metrics["kube_scheduler_jobs_per_s"] > 0
    assert metrics["ratio"] > 0
    assert 0 < metrics["bind_p50_s"] <= metrics["bind_p99_s"]
    assert metrics["rss_peak_mb"] >= metrics["rss_mb"] > 0
    writes = metrics["phases"]["workloads"]["writes"]
    assert (writes["pods/binding"], writes["jobs"]) == (1.0, 1.0)
    assert metrics["api_writes_per_pod"] > metrics["baseline_api_writes_per_pod"] > 0
    assert report["machine"]["kubernetes"].startswith("v1.")
    assert_nothing_left(tmp_path)


@pytest.mark.slow
def test_every_phase_repeats_over_the_small_kind_on_plain_nodes(state: dict[str, str], tmp_path: Path):
    arguments = ("--kind", "warp", "--gpus-per-node", "4", "--gpus-per-workload", "2", "--repeat", "2")
    metrics = run_cluster_bench(state, *arguments)["metrics"]
    assert metrics["oversubscribed"] == 0
    assert {name: len(rates) for name, rates in metrics["rounds_per_s"].items()} == dict.fromkeys(
        ("null", "pods", "jobs", "workloads"), 2
    )
    assert metrics["null_pods_per_s"] > 0
    assert metrics["kube_scheduler_pods_per_s"] > 0
    assert_nothing_left(tmp_path)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 130)])
def test_an_interrupted_run_stops_all_it_started(state: dict[str, str], tmp_path: Path, number: signal.Signals, code):
    arguments = command("cluster", *TINY, "--phases", "workloads")
    with subprocess.Popen(arguments, env=state, stderr=subprocess.PIPE, text=True) as bench:
        assert bench.stderr is not None
        for line in bench.stderr:
            if line.startswith("Filling"):
                bench.send_signal(number)
                break
        _, said = bench.communicate(timeout=TIMEOUT_S)
    assert bench.returncode == code, said
    assert "Traceback" not in said
    assert_nothing_left(tmp_path)
