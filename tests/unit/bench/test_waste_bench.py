"""`kgwe bench waste` with few seeds: everything is judged right, and a careless detector would be noticed."""

from __future__ import annotations

import gzip
import json
import shutil
from typing import TYPE_CHECKING

import pytest

from kgwe.bench.waste import benchmark as bench
from kgwe.bench.waste import published, scenes, speed
from kgwe.cli.main import main
from kgwe.forecast.waste.rules import Rules
from kgwe.local.host import progress
from kgwe.local.prometheus import binary

if TYPE_CHECKING:
    from pathlib import Path

SMALL = bench.Options(seeds=2, pods=50, gap_minutes=4, rounds=1)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "history").mkdir()
    rows = [f"{50.0 if name == 'b' else 0.0},{1000.0 + 60 * step},{name}" for step in range(40) for name in "ab"]
    with gzip.open(tmp_path / published.DUTY_FILE, "wt") as file:
        file.write("\n".join(["value,timestamp_anon,container_ip", *rows]))
    return tmp_path


def test_all_kinds_are_judged_right_and_no_gap_has_a_finding():
    metrics = bench.run(SMALL, progress.Silent()).metrics
    assert metrics["judged"] == 40
    assert (metrics["wrong"], metrics["gap_findings"]) == (0, 0)
    assert metrics["gap_judged"] > 0
    assert metrics["baseline_wrong"] > 0
    assert metrics["baseline_gap_findings"] > 0
    assert metrics["ms_per_pod"] > 0


@pytest.mark.slow
def test_a_real_prometheus_leads_to_the_same_judgements():
    if binary.find_prometheus() is None or shutil.which("promtool") is None:
        pytest.skip("no prometheus with promtool; install Debian's package prometheus")
    options = bench.Options(seeds=2, pods=50, gap_minutes=4, rounds=1, source="prometheus")
    tally = bench.judge_scenes(options)
    assert (tally.judged, tally.wrong, tally.gap_findings) == (40, 0, 0)
    assert tally.gap_judged > 0


def test_a_detector_that_ignores_gaps_is_noticed(monkeypatch):
    monkeypatch.setattr(bench, "DEFAULT", Rules(min_coverage=0.05, max_stale_s=600.0))
    tally = bench.judge_scenes(SMALL)
    assert tally.gap_findings > 0


def test_a_detector_without_a_noise_floor_for_bursts_is_noticed(monkeypatch):
    monkeypatch.setattr(bench, "DEFAULT", Rules(noise_floor=0.9))
    tally = bench.judge_scenes(SMALL)
    assert tally.wrong > 0
    assert tally.mistakes


def test_every_seed_has_nodes_of_its_own():
    built = scenes.build_scenes(range(30), 1e9)
    names = [name for scene in built for name in scene.meters]
    assert len(names) == len(set(names)) == 90


def test_the_pods_of_the_speed_test_have_all_states():
    assert speed.measure_speed(100, 1)["findings"] >= 40


def test_published_usage_is_counted_by_state(data):
    found = published.judge_published(data, Rules())
    assert found["published"]["containers"] == 2
    assert found["published_states"]["of_known"] == {
        "idle": 0.5,
        "idle-holding-memory": 0.0,
        "bursty": 0.0,
        "busy": 0.5,
    }


def measure(capsys, *arguments):
    with pytest.raises(SystemExit) as ended:
        main(["bench", "waste", "--json", "--seeds", "1", "--pods", "10", "--gap-minutes", "1", *arguments])
    return ended.value.code, capsys.readouterr()


def test_the_last_line_is_the_report(capsys, data):
    code, out = measure(capsys, "--data", str(data))
    assert code == 0
    found = json.loads(out.out.splitlines()[-1])
    assert found["name"] == "waste"
    assert {"judged", "wrong", "gap_findings", "ms_per_pod", "published"} <= set(found["metrics"])


def test_absent_data_is_named_and_exits_with_2(capsys, tmp_path):
    code, out = measure(capsys, "--data", str(tmp_path))
    assert code == 2
    assert "pod_gpu_duty_cycle" in out.err


def test_an_unknown_source_is_answered_with_the_known_ones(capsys, data):
    code, out = measure(capsys, "--source", "graphite", "--data", str(data))
    assert code == 1
    assert "embedded or prometheus" in out.err
