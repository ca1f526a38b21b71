"""`kgwe bench interference`, `classify` and `hints` on inputs small enough to run at once."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from kgwe.cli.main import main

if TYPE_CHECKING:
    from pathlib import Path

FAMILIES = ("bert", "cifar10")


def measure(capsys: pytest.CaptureFixture[str], name: str, *arguments: str) -> Any:
    with pytest.raises(SystemExit) as ended:
        main(["bench", name, "--json", *arguments])
    assert ended.value.code == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def exit_code(*arguments: str) -> Any:
    with pytest.raises(SystemExit) as ended:
        main(["bench", *arguments])
    return ended.value.code


@pytest.fixture
def sharing(tmp_path: Path) -> Path:
    """Four models with two settings each, which slow each other down by the product of their activities."""
    jobs = [(f"m{number // 2}", "data", str(32 * (1 + number % 2)), "0", 10.0 + 12 * number) for number in range(8)]
    singles = [f"{','.join(job[:4])},1000,{job[4]},{job[4] / 2},2000" for job in jobs]
    pairs = []
    for number, one in enumerate(jobs):
        for two in jobs[number:]:
            speed = 1 / (1 + 0.6 * one[4] * two[4] / 10_000)
            pairs.append(f"{','.join(one[:4])},{speed},{','.join(two[:4])},{speed}")
    head = "model{0},dataset{0},batchsize{0},amp{0},speed{0}"
    (tmp_path / "lucid_single_runs.csv").write_text(
        "\n".join(["model,dataset,batchsize,amp,speed,gpu_util,gmem_util,gmem", *singles])
    )
    (tmp_path / "lucid_colocated_pairs.csv").write_text("\n".join([f"{head.format(1)},{head.format(2)}", *pairs]))
    return tmp_path


@pytest.fixture
def placements(tmp_path: Path) -> Path:
    for family, slowdown in zip(FAMILIES, (2.0, 1.0), strict=True):
        measured = ("1", "2", "11", "3", "12", "111", "4", "13", "22", "112", "1111")
        rows = [f"{placement},8,{1.0 if len(placement) == 1 else slowdown},0" for placement in measured]
        rows.insert(0, "placement,local_bsz,step_time,sync_time")
        (tmp_path / f"{family}.csv").write_text("\n".join(rows))
    return tmp_path


def test_interference_beats_a_constant_on_models_it_has_not_seen(sharing, capsys):
    metrics = measure(capsys, "interference", "--data", str(sharing))["metrics"]
    assert metrics["mae"] < metrics["held_out_job_mae"]["constant"] / 2
    assert set(metrics) >= {"mae", "baseline_mae", "safe_precision", "held_out_job_mae"}


def test_a_pair_without_a_run_alone_is_reported(sharing, capsys):
    singles = sharing / "lucid_single_runs.csv"
    singles.write_text("\n".join(singles.read_text().splitlines()[:-1]))
    assert exit_code("interference", "--data", str(sharing)) == 1
    assert "bad or missing field" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["interference", "hints"])
def test_absent_data_is_exit_code_2_with_the_next_step(name, tmp_path, capsys):
    assert exit_code(name, "--data", str(tmp_path)) == 2
    assert "set KGWE_DATA" in capsys.readouterr().err


def test_classify_counts_every_workload_once(capsys):
    metrics = measure(capsys, "classify", "--seeds", "2")["metrics"]
    assert all(sum(metrics[f"both_{kind}"].values()) == 2 for kind in ("Training", "Inference", "Visualization"))
    assert metrics["usage"]["unknown_share"] >= 0.25


def test_hints_shorten_runs_of_models_that_suffer(placements, capsys):
    found = measure(capsys, "hints", "--data", str(placements), "--jobs", "60", "--nodes", "6", "--seeds", "2")[
        "metrics"
    ]
    assert found["bound_mean_run_s"] <= found["mean_run_s"] <= found["baseline_mean_run_s"]


def test_senseless_options_are_refused(placements, capsys):
    assert exit_code("hints", "--data", str(placements), "--load", "0") == 1
    assert exit_code("classify", "--seeds", "0") == 1
    assert "at least 1" in capsys.readouterr().err
