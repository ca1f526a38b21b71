"""`kgwe bench predictor` and `kgwe bench demand` on made-up files, and the leakage test on recorded requests."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from kgwe import errors
from kgwe.bench.forecast.data import parse_number
from kgwe.bench.forecast.predictor import replay_requests
from kgwe.bench.forecast.requests import COLUMNS, SCHEMA, Request, read_requests
from kgwe.cli.main import main
from kgwe.forecast.runtime.query import Query
from kgwe.forecast.runtime.replays import replay_queries

if TYPE_CHECKING:
    from collections.abc import Sequence

DATA = Path(os.environ.get("KGWE_DATA", Path(__file__).parents[4] / "shared" / "data"))


def write_requests(path: Path, count: int, first_s: float = 1.7e9) -> Path:
    random = np.random.default_rng(int(first_s) % 1000)
    lines = [",".join(COLUMNS)]
    for index in range(count):
        images, model = int(random.integers(1, 5)), int(random.integers(0, 3))
        lasted = (10 + 8 * images + 5 * model) * np.exp(random.normal(0, 0.2))
        when = datetime.fromtimestamp(first_s + 30 * index, UTC).strftime("%Y-%m-%d %H:%M:%S")
        lines.append(f"{when},TXT_2_IMG,{lasted:.0f},G{index % 7},50,,{images},30,M{model},0")
    path.write_text("\n".join(lines))
    return path


def measure(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    with pytest.raises(SystemExit) as ended:
        main(["bench", *arguments, "--json"])
    assert ended.value.code == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def fail(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        main(["bench", *arguments])
    assert isinstance(ended.value.code, int)
    return ended.value.code, capsys.readouterr().err


def test_the_predictor_reports_its_keys(tmp_path, capsys):
    found = measure(capsys, "predictor", "--train", str(write_requests(tmp_path / "r.csv", 900)))
    metrics = found["metrics"]
    assert found["params"]["test_requests"] == 225
    assert {"mae_s", "baseline_mae_s", "coverage_80", "mean_width_s", "predict_p99_ms"} <= set(metrics)
    assert metrics["mae_s"] < metrics["median_mae_s"]["all"]
    assert 0.6 < metrics["coverage_80"] < 0.95


def test_a_later_file_is_predicted_from_an_earlier_one(tmp_path, capsys):
    train = write_requests(tmp_path / "a.csv", 600)
    test = write_requests(tmp_path / "b.csv", 50, 1.7e9 + 30 * 600)
    found = measure(capsys, "predictor", "--train", str(train), "--test", str(test))
    assert found["params"]["train_requests"] == 600
    assert found["params"]["test_requests"] == 50


def test_a_test_file_that_is_earlier_is_refused(tmp_path, capsys):
    train = write_requests(tmp_path / "a.csv", 60)
    test = write_requests(tmp_path / "b.csv", 50, 1.6e9)
    code, message = fail(capsys, "predictor", "--train", str(train), "--test", str(test))
    assert code != 0
    assert "later" in message


def test_few_requests_are_predicted_from_history_alone(tmp_path, capsys):
    found = measure(capsys, "predictor", "--train", str(write_requests(tmp_path / "r.csv", 100)))
    assert "needed" in found["params"]["model"]


@pytest.mark.parametrize("bench", ["predictor", "demand"])
def test_absent_data_ends_with_code_2(bench, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("KGWE_DATA", str(tmp_path))
    code, message = fail(capsys, bench)
    assert code == 2
    assert "set KGWE_DATA" in message


def test_rows_that_cannot_be_read_are_counted_and_skipped(tmp_path):
    path = write_requests(tmp_path / "r.csv", 10)
    with path.open("a") as file:
        file.write("\nyesterday,TXT_2_IMG,5,G1,1,,1,30,M1,0\n2024-01-01 00:00:00,TXT_2_IMG,nan,G1,1,,1,30,M1,0\n")
        file.write("2024-01-01 00:00:00,TXT_2_IMG,-3,G1,1,,1,30,M1,0\n2024-01-01 00:00:00\n")
    requests, _, skipped = read_requests([path])
    assert len(requests) == 10
    assert skipped == 4


def test_a_file_without_a_column_is_refused(tmp_path):
    path = tmp_path / "r.csv"
    path.write_text("gmt_create\n2024-01-01")
    with pytest.raises(errors.Permanent, match="no column"):
        read_requests([path])


def test_missing_numbers_are_unknown():
    assert np.isnan([parse_number(""), parse_number(None), parse_number("x")]).all()


@pytest.mark.slow
def test_demand_reports_its_keys(tmp_path, capsys):
    hours = np.arange(24 * 21)
    demand = 1000 * (1.5 + np.sin(2 * np.pi * hours / 24))
    hourly = tmp_path / "hourly.csv"
    hourly.write_text(
        "hour,jobs_active,gpus_active_requested\n"
        + "\n".join(f"{hour},{value / 2},{value}" for hour, value in zip(hours, demand, strict=True))
    )
    venus = tmp_path / "venus.csv"
    rows = []
    for step in range(144 * 5):
        when = datetime.fromtimestamp(1.7e9 // 86400 * 86400 + 600 * step + 13 * 86400, UTC)
        rows.append(f"{when:%Y-%m-%d %H:%M:%S},{step % 5},{step % 7},{step % 3},{step % 4}")
    venus.write_text("time,submit_gpu_num,submit_gpu_job,start_gpu_num,end_gpu_num\n" + "\n".join(rows))
    metrics = measure(capsys, "demand", "--hourly", str(hourly), "--venus", str(venus), "--refit-days", "10")["metrics"]
    assert set(metrics["mape"]) == set(metrics["persistence_mape"]) == {"1", "6", "24"}
    assert metrics["mape"]["6"] < metrics["persistence_mape"]["6"]
    assert metrics["venus"]["mae"] < metrics["venus"]["persistence_mae"]


def read_real() -> list[Request]:
    path = DATA / "history" / "genai_requests.csv"
    if not path.is_file():
        pytest.skip(f"no reference data: {path} is absent (set KGWE_DATA to the folder that holds it)")
    return read_requests([path])[0][:300]


def shuffle_after(requests: Sequence[Request], cut: int) -> list[Request]:
    """Return the requests with everything but the time exchanged between the later ones."""
    order = np.random.default_rng(5).permutation(np.arange(cut, len(requests)))
    moved = [
        Request(
            Query(
                requests[at].query.submitted_s,
                requests[of].query.keys,
                requests[of].query.user,
                requests[of].query.lane,
                requests[of].query.numbers,
            ),
            requests[of].lasted_s,
        )
        for at, of in zip(range(cut, len(requests)), order, strict=True)
    ]
    return [*requests[:cut], *moved]


def test_shuffling_later_requests_changes_no_earlier_prediction():
    requests = read_real()
    shuffled = shuffle_after(requests, 250)
    assert (
        replay_requests(requests, 200, None).predictions[:50] == replay_requests(shuffled, 200, None).predictions[:50]
    )
    before, after = (
        replay_queries(SCHEMA, [r.query for r in rows], [r.lasted_s for r in rows], [True] * len(rows)).features[:250]
        for rows in (requests, shuffled)
    )
    np.testing.assert_array_equal(before, after)
