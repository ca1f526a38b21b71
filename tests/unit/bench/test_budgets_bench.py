"""`kgwe bench budgets` on a small trace."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

import pytest

from kgwe.cli.main import main

if TYPE_CHECKING:
    from pathlib import Path


def write_jobs(folder: Path) -> Path:
    lines = ["timestamp,duration,num_gpus,gpu_time,cluster"]
    for number in range(600):
        month, day, hour = 9 + number // 200, 1 + number % 200 // 8, number % 8 * 3
        duration = 1800 + number * 7919 % 40_000
        lines.append(f"2017-{month:02}-{day:02} {hour:02}:00:00,{duration}.0,{1 + number % 4},0,c{number % 4}")
    lines.append("2017-09-01 00:00:00,-5,1,0,c0")
    lines.append("garbage,,,,")
    with gzip.open(folder / "philly_jobs.csv.gz", "wt") as file:
        file.write("\n".join(lines) + "\n")
    return folder


def measure(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    with pytest.raises(SystemExit) as ended:
        main(["bench", "budgets", "--json", *arguments])
    assert ended.value.code == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_no_budget_is_exceeded_and_no_team_with_money_waits(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    measured = measure(capsys, "--data", str(write_jobs(tmp_path)))

    assert measured["params"]["jobs"] == 600
    assert measured["params"]["teams"] == 20
    ours, cutoff = measured["metrics"]["kgwe"], measured["metrics"]["cutoff"]
    assert ours["overspend_max"] == 0
    assert ours["blocked_in_ample_teams"] == 0
    assert ours["waited"] > 0
    assert cutoff["overspend_max"] > 0


def test_absent_data_is_an_error_with_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        main(["bench", "budgets", "--data", str(tmp_path)])
    assert ended.value.code == 2
    assert "philly_jobs.csv.gz" in capsys.readouterr().err
