"""`kgwe bench scaledown` and `kgwe bench spot` on made-up files."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from kgwe.bench.scaling.spot import close_gap
from kgwe.cli.main import main


def measure(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    with pytest.raises(SystemExit) as ended:
        main(["bench", *arguments, "--json"])
    assert ended.value.code == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def fail(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main(["bench", *arguments])
    assert ended.value.code != 0
    return capsys.readouterr().err


def write_nodes(path, minutes=6 * 1440):
    random = np.random.default_rng(1)
    demand = np.rint(200 + 30 * np.sin(np.arange(minutes) / 400) + random.normal(0, 4, minutes)).astype(int)
    rows = [f"2017-10-03 00:00:00,{each},300" for each in demand]
    rows[10] = "2017-10-03 00:00:00,,300"
    path.write_text("time,active,total\n" + "\n".join(rows))
    return path


def write_spot(folder, hours=110):
    random = np.random.default_rng(2)
    runs = np.concatenate([np.full(int(random.integers(1, 12)), number % 2) for number in range(400)])
    for kind, most in (("availability_1-node_a", 1), ("preemption_4-node_b", 4)):
        data = (runs[: hours * 2] * most).tolist()
        (folder / f"{kind}.json").write_text(json.dumps({"metadata": {"gap_seconds": 1800}, "data": data}))
    return folder


def test_scaledown_reports_shares_beside_baselines_and_draws_a_chart(tmp_path, capsys):
    chart = tmp_path / "chart.svg"
    nodes = write_nodes(tmp_path / "nodes.csv")
    metrics = measure(capsys, "scaledown", "--data", str(nodes), "--plot", str(chart))["metrics"]
    assert metrics["used_share"] > metrics["baselines"]["no_scaling"]["used_share"]
    assert {"shortages_per_day", "changes_per_day"} <= set(metrics)
    assert set(metrics["by_launch_minutes"]) == {"3", "5", "10"}
    assert chart.read_text().startswith("<svg xmlns")


def test_spot_reports_every_setting_and_the_risk_of_gangs(tmp_path, capsys):
    chart = tmp_path / "chart.svg"
    found = measure(
        capsys,
        "spot",
        "--data",
        str(write_spot(tmp_path)),
        "--start-every-hours",
        "36",
        "--replan-hours",
        "60",
        "--plot",
        str(chart),
    )
    metrics = found["metrics"]
    assert len(metrics["cost_ratio"]) == 8
    for ratio in metrics["cost_ratio"].values():
        assert set(ratio) == {"kgwe", "bound", "greedy", "uniform_progress", "spot_else_on_demand"}
        assert ratio["bound"] <= ratio["kgwe"] <= 1.05
    assert metrics["deadline_misses"] == 0
    assert metrics["gang_risk_error"] is not None
    assert "</svg>" in chart.read_text()


def test_the_closed_gap_is_negative_where_a_baseline_is_better():
    ratio = {"kgwe": 0.8, "greedy": 0.7, "uniform_progress": 0.9, "spot_else_on_demand": 0.9, "bound": 0.5}
    assert close_gap(ratio) == -0.5
    assert close_gap({**ratio, "kgwe": 0.6}) == 0.5


@pytest.mark.parametrize("text", ["no json", '{"metadata": {"gap_seconds": 0}, "data": [1]}', '{"data": []}'])
def test_a_trace_that_cannot_be_read_is_named(tmp_path, capsys, text):
    (tmp_path / "availability_x.json").write_text(text)
    assert "availability_x.json" in fail(capsys, "spot", "--data", str(tmp_path))


def test_absent_data_is_named(tmp_path, capsys):
    assert "availability" in fail(capsys, "spot", "--data", str(tmp_path))
    assert "does not exist" in fail(capsys, "scaledown", "--data", str(tmp_path / "none.csv"))
    short = tmp_path / "short.csv"
    short.write_text("time,active,total\n,1,2\n")
    assert "usable minutes" in fail(capsys, "scaledown", "--data", str(short))


def test_the_autoscaler_reports_speed_loops_and_cost_beside_exact_plans(tmp_path, capsys):
    head = "cloud,catalog_path,instance_type,accelerator,accelerator_count,vcpus,memory_gib,region,zone,"
    head += "price_usd_h,spot_price_usd_h"
    rows = [
        f"aws,x,{name},{model},{gpus},{8 * gpus},{64 * gpus},r,z,{price},{price / 2}"
        for name, model, gpus, price in (("one", "T4", 1, 0.5), ("four", "A100", 4, 12.0), ("eight", "H100", 8, 40.0))
    ]
    prices = tmp_path / "prices.csv"
    prices.write_text("\n".join([head, *rows, "gcp,x,,A100,1.0,,,r,z,2.0,", "aws,x,odd,A100,0.5,4,8,r,z,1.0,"]))
    arguments = ["--pods", "40", "--classes", "5", "--small-cases", "4", "--nodes", "32"]
    found = measure(capsys, "autoscaler", "--data", str(prices), *arguments)
    assert found["params"]["pools"] == 6
    metrics = found["metrics"]
    assert metrics["pods_per_s"] > 0
    assert len(metrics["loop_s"]) == 6
    assert metrics["cost_ratio_max"] is None or metrics["cost_ratio_max"] >= 1
    assert "does not exist" in fail(capsys, "autoscaler", "--data", str(tmp_path / "none.csv"))
