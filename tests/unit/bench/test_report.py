"""The one shape of every benchmark's result."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from kgwe.bench import report

if TYPE_CHECKING:
    from pathlib import Path

MACHINE = report.Machine(
    cpus=2, cpu_model="A CPU", memory_mb=8000, kernel="6.1", python="3.11.7", kubernetes="v1.36.3", load_1m=0.1
)


def make_report(**metrics: Any) -> report.Report:
    return report.Report("cluster", {"nodes": 4}, metrics, MACHINE)


def test_json_is_one_line_with_the_four_keys():
    text = report.to_json(make_report(ratio=0.9, phases={"jobs": {"per_s": 10.0}}))
    assert "\n" not in text
    assert json.loads(text).keys() == {"name", "params", "metrics", "machine"}
    assert json.loads(text)["metrics"] == {"ratio": 0.9, "phases": {"jobs": {"per_s": 10.0}}}


def test_a_table_shows_single_numbers_and_a_column_per_member_of_a_group():
    phases = {"jobs": {"per_s": 20.0, "writes": {"pods": 1.0}}, "workloads": {"per_s": 15.5, "rss_mb": 60.0}}
    lines = report.to_table(make_report(ratio=0.775, phases=phases)).splitlines()
    rows = {line.split("  ")[1].strip(): line.split()[-2:] for line in lines if line.startswith("  ")}
    assert rows["ratio"][-1] == "0.775"
    assert rows["per_s"] == ["20", "15.5"]
    assert rows["writes pods"] == ["1", "-"]
    assert rows["rss_mb"] == ["-", "60"]


def test_a_table_shows_lists_per_member():
    assert "jobs   20 21" in report.to_table(make_report(rounds_per_s={"jobs": [20.0, 21.0]}))


def test_the_machine_is_described_from_proc(tmp_path: Path):
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nmodel name\t: AMD EPYC\n")
    (tmp_path / "meminfo").write_text("MemTotal:       1000000 kB\nMemFree: 5 kB\n")
    machine = report.examine_machine(kubernetes="v1.36.3", proc=tmp_path)
    assert (machine.cpu_model, machine.memory_mb, machine.kubernetes) == ("AMD EPYC", 1024, "v1.36.3")
    assert machine.cpus >= 1


def test_a_machine_without_proc_is_still_described(tmp_path: Path):
    machine = report.examine_machine(proc=tmp_path)
    assert machine.cpu_model
    assert machine.memory_mb == 0
