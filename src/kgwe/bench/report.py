"""The result of a benchmark, with the machine it ran on.

Each benchmark returns one Report: one JSON object on the last line of stdout, `{"name", "params", "metrics",
"machine"}`, or a table. Absolute numbers of different machines are not comparable, so the machine is part of the
report. Ratios to a baseline of the same run are comparable.
"""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    cpus: int
    cpu_model: str
    memory_mb: int
    kernel: str
    python: str
    # None for benchmarks without a cluster.
    kubernetes: str | None = None
    # One-minute load average at the start. Above about 0.5 the benchmark shared the machine with other load.
    load_1m: float


class Report(msgspec.Struct, frozen=True):
    name: str
    params: dict[str, Any]
    # Numbers, or a mapping of name to numbers.
    metrics: dict[str, Any]
    machine: Machine


def examine_machine(*, kubernetes: str | None = None, proc: Path = Path("/proc")) -> Machine:
    """Return the properties of this machine that affect benchmark results."""
    return Machine(
        cpus=len(os.sched_getaffinity(0)),
        cpu_model=_read_field(proc / "cpuinfo", "model name") or platform.machine(),
        memory_mb=int((_read_field(proc / "meminfo", "MemTotal") or "0 kB").split()[0]) * 1024 // 1_000_000,
        kernel=platform.release(),
        python=platform.python_version(),
        kubernetes=kubernetes,
        load_1m=round(os.getloadavg()[0], 2),
    )


def to_json(report: Report) -> str:
    """Return the report as one line of JSON."""
    return msgspec.json.encode(report).decode()


def to_table(report: Report) -> str:
    """Return the report as text: parameters, machine, numbers, and groups as tables."""
    groups = {name: value for name, value in report.metrics.items() if isinstance(value, dict)}
    single = {name: value for name, value in report.metrics.items() if not isinstance(value, dict)}
    machine = msgspec.to_builtins(report.machine)
    lines = [
        f"Benchmark {report.name}",
        f"  {_format_pairs(report.params)}",
        f"  {_format_pairs(machine)}",
        "",
        *_align_columns([[name, _format_cell(value)] for name, value in single.items()]),
    ]
    for name, group in groups.items():
        rows = (
            _list_rows(group) if _has_members(group) else ([key, _format_cell(value)] for key, value in group.items())
        )
        lines += ["", f"{name}:", *_align_columns(list(rows))]
    return "\n".join(lines)


def _has_members(group: Mapping[str, Any]) -> bool:
    return all(isinstance(each, dict) for each in group.values())


def _list_rows(group: Mapping[str, Mapping[str, Any]]) -> Iterator[list[str]]:
    """Return the rows of a table: one column per member, one row per number; mappings get a row per entry."""
    flat = {name: dict(_flatten(numbers)) for name, numbers in group.items()}
    yield ["", *flat]
    for key in dict.fromkeys(key for numbers in flat.values() for key in numbers):
        yield [key, *(_format_cell(numbers.get(key)) for numbers in flat.values())]


def _flatten(numbers: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in numbers.items():
        if isinstance(value, dict):
            yield from ((f"{key} {name}", entry) for name, entry in value.items())
        else:
            yield key, value


def _align_columns(rows: Sequence[Sequence[str]]) -> list[str]:
    if not rows:
        return []
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        f"  {row[0]:<{widths[0]}}"
        + "".join(f"   {cell:>{width}}" for cell, width in zip(row[1:], widths[1:], strict=True))
        for row in rows
    ]


def _format_pairs(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {_format_cell(value)}" for name, value in values.items() if value is not None)


def _format_cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1000 else f"{value:.0f}"  # noqa: PLR2004 -- where digits stop to matter
    if isinstance(value, (list, tuple)):
        return " ".join(_format_cell(each) for each in value)
    return str(value)


def _read_field(path: Path, name: str) -> str | None:
    try:
        text = path.read_text()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in text.splitlines() if line.startswith(name)), None)
