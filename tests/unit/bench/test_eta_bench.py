"""`kgwe bench eta` on made-up jobs."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import numpy as np
import pytest

from kgwe.bench.forecast import eta
from kgwe.bench.forecast.eta_jobs import ROUND_S, declare_run_times, read_jobs, size_fleet
from kgwe.cli.main import main
from kgwe.placement.queue.eta import Eta
from kgwe.sim.recording import JobRecord

if TYPE_CHECKING:
    from pathlib import Path


def write_jobs(path: Path, count: int) -> Path:
    random = np.random.default_rng(3)
    lines = ["timestamp,duration,num_gpus,gpu_time,cluster"]
    for index in range(count):
        when = datetime.fromtimestamp(1.5e9 + 500 * index, UTC).strftime("%Y-%m-%d %H:%M:%S")
        lines.append(f"{when},{600 * np.exp(random.normal(1, 0.5)):.0f},{random.choice((1, 4, 8))},0,vc{index % 2}")
    path.write_text("\n".join(lines))
    return path


def run_bench(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["bench", "eta", *arguments])
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_it_reports_its_keys_for_each_source(tmp_path, capsys):
    jobs = write_jobs(tmp_path / "jobs.csv", 70)
    assert run_bench("--data", str(jobs), "--every", "1", "--nodes", "2", "--json") == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    metrics = found["metrics"]
    assert found["params"]["jobs"] == 70
    assert {"start_error_s", "p90_coverage", "mean_wait_s"} <= set(metrics)
    assert all(set(by_source) == set(eta.SOURCES) for by_source in metrics.values())
    assert metrics["start_error_s"]["none"] == {"mean": None, "median": None}
    assert metrics["unknown_share"]["none"] == 1.0
    for source in ("declared", "predicted", "both"):
        assert metrics["estimated"][source] > 2
        assert 0 <= metrics["p90_coverage"][source] <= 1


def test_absent_data_is_refused_with_code_2(tmp_path, capsys):
    assert run_bench("--data", str(tmp_path / "none.csv")) == 2
    assert "does not exist" in capsys.readouterr().err


def test_rows_that_make_no_sense_are_counted_and_skipped(tmp_path):
    path = tmp_path / "jobs.csv"
    good = "2017-10-09 07:01:33,60,12,0,vc"
    bad = ("yesterday,60,1,0,vc", "2017-10-09 07:01:33,,1,0,vc", "2017-10-09 07:01:33,60,0,0,vc")
    path.write_text("\n".join(("timestamp,duration,num_gpus,gpu_time,cluster", good, *bad)))
    workload, skipped = read_jobs(path, every=1, first=0)
    assert skipped == 3
    (job,) = workload.jobs
    assert (job.pods, job.request.gpus.count) == (2, 6)
    assert size_fleet(workload, 0.5) == 2


def test_users_declare_round_values_and_mostly_too_much():
    real = np.random.default_rng(1).lognormal(7, 1.5, 4000)
    declared = declare_run_times(real, seed=1)
    assert set(declared) <= set(ROUND_S)
    assert 0.93 < (declared >= real).mean() < 0.99
    assert 0.2 < np.median(real / declared) < 0.5
    assert (declared == declare_run_times(real, seed=1)).all()


def test_estimates_are_compared_with_real_starts(tmp_path):
    workload, _ = read_jobs(write_jobs(tmp_path / "jobs.csv", 3), every=1, first=0)
    records = [JobRecord(job, first_start_s=job.arrival_s + 100.0) for job in workload.jobs]
    late, early = records[0].job.arrival_s + 50.0, records[1].job.arrival_s + 300.0
    told = {0: Eta(late, late), 1: Eta(early, None), 2: Eta(None, None)}
    metrics = eta.measure(eta.collect(records, told), common=[1])
    assert metrics["start_error_s"] == {"mean": 125.0, "median": 125.0}
    assert metrics["common_start_error_s"] == {"mean": 200.0, "median": 200.0}
    assert metrics["p90_coverage"] == 0.5
    assert metrics["mean_wait_s"] == 100.0
    assert metrics["unknown_share"] == pytest.approx(1 / 3, abs=1e-3)
