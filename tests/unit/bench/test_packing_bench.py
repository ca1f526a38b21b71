"""`kgwe bench packing` on a trace small enough to run at once."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from kgwe.bench.placement import packing
from kgwe.cli.main import main

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    trace, nodes = tmp_path / "openb_pod_list_tiny.csv", tmp_path / "nodes.csv"
    rows = [f"pod-{i:03},{2000 + i % 3},1024,1,{(1000, 470, 320)[i % 3]}," for i in range(60)]
    trace.write_text("\n".join(["name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec", *rows]))
    nodes.write_text("\n".join(["sn,cpu_milli,memory_mib,gpu,model", *(f"n{i},64000,262144,8,G2" for i in range(4))]))
    return ["--trace", str(trace), "--nodes", str(nodes)]


def measure(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    with pytest.raises(SystemExit) as ended:
        main(["bench", "packing", "--json", *arguments])
    assert ended.value.code == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_the_last_line_has_every_policy_and_the_limit(files, capsys):
    found = measure(capsys, *files, "--seeds", "2", "--jobs", "1")
    metrics = found["metrics"]
    assert set(metrics["alloc_100"]) == set(packing.ALL_POLICIES)
    assert metrics["limit"]["tiny"] > 95
    assert metrics["published"] == {}
    assert all(90 < value <= 100 for value in metrics["alloc_130"].values())
    assert set(metrics["gap_closed"]) <= {"tiny"}


def test_the_number_of_processes_changes_nothing(files, capsys):
    one, two = (measure(capsys, *files, "--seeds", "2", "--jobs", jobs)["metrics"] for jobs in ("1", "2"))
    for key in ("alloc_100", "alloc_130", "frag_50", "idle_by_cause"):
        assert one[key] == two[key]


def test_an_unknown_policy_is_answered_with_the_known_ones(files, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["bench", "packing", *files, "--policies", "Worst"])
    assert ended.value.code == 1
    assert "known policies: Random" in capsys.readouterr().err


def test_two_traces_of_one_name_are_not_taken_for_one(files, tmp_path, capsys):
    twin = tmp_path / "other" / "openb_pod_list_tiny.csv"
    twin.parent.mkdir()
    twin.write_bytes((tmp_path / twin.name).read_bytes())
    with pytest.raises(SystemExit) as ended:
        main(["bench", "packing", *files, "--trace", str(twin)])
    assert ended.value.code == 1
    assert "two traces have the name tiny" in capsys.readouterr().err


def outcome(alloc: float) -> packing.Outcome:
    return packing.Outcome(alloc, alloc + 1, 5.0, 0, 1.0, 0.9, {"Usable": 100 - alloc})


def test_the_gap_is_counted_from_the_published_mean():
    found = packing.summarize(
        {("t", "FGD"): [outcome(94.0)], ("t", "MixFit"): [outcome(95.0), outcome(97.0)]},
        {"t": 97.0},
        {"FGD": {"t": 95.0, "other": 1.0}},
    )
    assert found["alloc_100"] == {"FGD": 94.0, "MixFit": 96.0}
    assert found["above_fgd"] == {"t": 1.0}
    assert found["gap_closed"] == {"t": 0.5}
    assert found["published"] == {"FGD": {"t": 95.0}}
