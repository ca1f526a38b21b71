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

from kgwe.local.host import paths, processes

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

# Only against hanging: a busy machine may take several times its usual time.
TIMEOUT_S = 540
TINY = ("--nodes", "8", "--leaf", "4", "--warm-up", "2", "--timeout-s", "100")


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "kgwe.cli", "bench", *arguments]


@pytest.fixture
def state(tmp_path: Path) -> dict[str, str]:
    """An environment whose clusters are nobody else's."""
    return {**os.environ, "KGWE_STATE_DIR": str(tmp_path)}


def run_cluster_bench(state: dict[str, str], *arguments: str) -> dict[str, Any]:
    return run_bench(state, "cluster", *TINY, *arguments)


def run_bench(state: dict[str, str], *arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        command(*arguments, "--json"),
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


def test_gangs_are_measured_beside_kube_scheduler_alone(state: dict[str, str], tmp_path: Path):
    sizes = ("--scenario", "gangs", "--gangs", "2", "--gang-size", "3", "--repeat", "1")
    report = run_cluster_bench(state, *sizes, "--phases", "kube-scheduler", "kgwe")
    metrics = report["metrics"]
    assert (metrics["unbound"], metrics["doubled"], metrics["oversubscribed"]) == (0, 0, 0)
    assert metrics["pods_per_s"] > 0
    assert metrics["kube_scheduler_pods_per_s"] > 0
    assert metrics["ratio"] > 0
    assert 0 < metrics["bind_p50_s"] <= metrics["bind_p99_s"]
    assert (metrics["one_leaf_share"], metrics["mean_leaves"], metrics["ideal_leaves"]) == (1.0, 1.0, 1.0)
    assert (metrics["whole_gangs"], metrics["partial_gangs"]) == (2, 0)
    assert metrics["rss_peak_mb"] >= metrics["rss_mb"] > 0
    phase = metrics["phases"]["kgwe"]
    assert (phase["writes"]["pods/binding"], phase["writes"]["pods"]) == (1.0, 2.0)
    assert phase["cpu_s"].keys() == phase["rss_mb"].keys() >= {"etcd", "kube-scheduler", "kgwe-scheduler"}
    assert report["machine"]["kubernetes"].startswith("v1.")
    assert_nothing_left(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sizes", "keys"),
    [
        (("fill", "--pods", "6"), {"pods_per_s", "null_pods_per_s", "ratio", "api_writes_per_pod"}),
        (("biggang", "--gang-size", "6"), {"mean_leaves", "ideal_leaves", "gang_p50_s"}),
        (("impossible", "--gang-size", "4", "--free-nodes", "2"), {"verdict_s", "kube_scheduler_verdict_s", "verdict"}),
        (("fragmented", "--gangs", "4", "--gang-size", "2"), {"mean_leaves", "ideal_leaves", "partial_gangs"}),
        (("workloads", "--pods", "6"), {"pods_per_s", "kube_scheduler_pods_per_s", "bind_p99_s"}),
        (("workloads", "--pods", "6", "--kind", "warp", "--fleet", "dgx-h100"), {"pods_per_s", "ratio"}),
        (("restart", "--pods", "20", "--gang-size", "2"), {"first_decision_s", "kube_scheduler_first_decision_s"}),
    ],
    ids=lambda each: each[0] if isinstance(each, tuple) else "",
)
def test_every_scenario_runs_in_every_phase(state: dict[str, str], tmp_path: Path, sizes: tuple[str, ...], keys):
    metrics = run_cluster_bench(state, "--scenario", *sizes, "--repeat", "1")["metrics"]
    assert metrics.keys() >= keys
    assert metrics["oversubscribed"] == 0
    assert metrics["phases"].keys() == {"null", "kube-scheduler", "kgwe"}
    assert_nothing_left(tmp_path)


@pytest.mark.slow
def test_the_extender_is_asked_what_kube_scheduler_asked(state: dict[str, str], tmp_path: Path):
    sizes = ("--nodes", "12", "--pods", "10", "--calls", "10", "--gang-size", "4", "--timeout-s", "100")
    metrics = run_bench(state, "extender", *sizes)["metrics"]
    assert metrics["placed_share"] == 1.0
    for part in ("", "echo_", "busy_", "landing_"):
        assert 0 < metrics[f"{part}p50_ms"] <= metrics[f"{part}p99_ms"] <= metrics[f"{part}max_ms"]
    assert metrics["rss_peak_mb"] >= metrics["rss_mb"] > 0
    assert_nothing_left(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 130)])
def test_an_interrupted_run_stops_all_it_started(state: dict[str, str], tmp_path: Path, number: signal.Signals, code):
    arguments = command("cluster", *TINY, "--pods", "6", "--phases", "kgwe")
    with subprocess.Popen(arguments, env=state, stderr=subprocess.PIPE, text=True) as bench:
        assert bench.stderr is not None
        for line in bench.stderr:
            if line.startswith("Scenario"):
                bench.send_signal(number)
                break
        _, said = bench.communicate(timeout=TIMEOUT_S)
    assert bench.returncode == code, said
    assert "Traceback" not in said
    assert_nothing_left(tmp_path)


@pytest.mark.slow
def test_nodes_that_die_and_leaders_that_are_killed(state: dict[str, str], tmp_path: Path):
    size = ("--nodes", "6", "--leaf", "3", "--gangs", "1", "--gang-size", "2", "--faults", "1", "--kills", "1")
    metrics = run_bench(state, "recovery", *size)["metrics"]
    assert metrics["moved_pods"] == metrics["leaves"] == 1
    assert metrics["plan_p50_s"] < metrics["recovered_p50_s"]
    assert metrics["kubernetes_recovered_p50_s"] > 0
    assert metrics["failover_p50_s"] > 0
    assert metrics["bound_after_kill_p50_s"] > 0
    assert_nothing_left(tmp_path)


@pytest.mark.slow
def test_mixfit_places_more_pods_on_shared_gpus_than_pack(state: dict[str, str], tmp_path: Path):
    metrics = run_bench(state, "shares", "--nodes", "8", "--strategies", "pack,mixfit")["metrics"]
    assert metrics["placed"]["mixfit"] > metrics["placed"]["pack"]
    assert metrics["stranded_gpus"]["mixfit"] < metrics["stranded_gpus"]["pack"]
    assert_nothing_left(tmp_path)


@pytest.mark.slow
def test_recommendations_are_followed_and_the_saving_is_the_promised_one(state, tmp_path):
    found = run_bench(state, "recommendations", "--count", "5", "--timeout-s", "150")["metrics"]
    assert found["applied"] == 5
    assert found["started"] == found["resized"]
    assert found["error_share"] <= 0.05
    assert found["verified"] == 5, found["not_verified"]
    assert found["unmetered_pods"] == 0
    assert_nothing_left(tmp_path)
