"""What a benchmark says in the end, and on what machine it was said.

Every benchmark returns one Report. For programs it is one JSON object on the last line of stdout,
`{"name", "params", "metrics", "machine"}`; for people it is a table. Numbers of different machines cannot be
compared, hence the machine; ratios to a baseline measured in the same run can.
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
    # None for benchmarks that need no cluster.
    kubernetes: str | None = None
    # Processes that wanted a CPU when the benchmark began, averaged over a minute: above ~0.5 it shared the machine.
    load_1m: float


class Report(msgspec.Struct, frozen=True):
    name: str
    params: dict[str, Any]
    # Numbers, or for several of a kind a mapping of name to numbers.
    metrics: dict[str, Any]
    machine: Machine


def examine_machine(*, kubernetes: str | None = None, proc: Path = Path("/proc")) -> Machine:
    """The facts of this machine that move benchmark numbers."""
    return Machine(
        cpus=len(os.sched_getaffinity(0)),
        cpu_model=_field(proc / "cpuinfo", "model name") or platform.machine(),
        memory_mb=int((_field(proc / "meminfo", "MemTotal") or "0 kB").split()[0]) * 1024 // 1_000_000,
        kernel=platform.release(),
        python=platform.python_version(),
        kubernetes=kubernetes,
        load_1m=round(os.getloadavg()[0], 2),
    )


def to_json(report: Report) -> str:
    """One line."""
    return msgspec.json.encode(report).decode()


def to_table(report: Report) -> str:
    """For people: parameters and machine in a line each, numbers one below the other, groups as tables."""
    groups = {name: value for name, value in report.metrics.items() if isinstance(value, dict)}
    single = {name: value for name, value in report.metrics.items() if not isinstance(value, dict)}
    machine = msgspec.to_builtins(report.machine)
    lines = [
        f"Benchmark {report.name}",
        f"  {_pairs(report.params)}",
        f"  {_pairs(machine)}",
        "",
        *_columns([[name, _cell(value)] for name, value in single.items()]),
    ]
    for name, group in groups.items():
        rows = _rows(group) if _has_members(group) else ([key, _cell(value)] for key, value in group.items())
        lines += ["", f"{name}:", *_columns(list(rows))]
    return "\n".join(lines)


def _has_members(group: Mapping[str, Any]) -> bool:
    return all(isinstance(each, dict) for each in group.values())


def _rows(group: Mapping[str, Mapping[str, Any]]) -> Iterator[list[str]]:
    """One column per member, one row per number that any of them has; mappings become a row per entry."""
    flat = {name: dict(_flatten(numbers)) for name, numbers in group.items()}
    yield ["", *flat]
    for key in dict.fromkeys(key for numbers in flat.values() for key in numbers):
        yield [key, *(_cell(numbers.get(key)) for numbers in flat.values())]


def _flatten(numbers: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in numbers.items():
        if isinstance(value, dict):
            yield from ((f"{key} {name}", entry) for name, entry in value.items())
        else:
            yield key, value


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    if not rows:
        return []
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        f"  {row[0]:<{widths[0]}}"
        + "".join(f"   {cell:>{width}}" for cell, width in zip(row[1:], widths[1:], strict=True))
        for row in rows
    ]


def _pairs(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {_cell(value)}" for name, value in values.items() if value is not None)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1000 else f"{value:.0f}"  # noqa: PLR2004 -- where digits stop to matter
    if isinstance(value, (list, tuple)):
        return " ".join(_cell(each) for each in value)
    return str(value)


def _field(path: Path, name: str) -> str | None:
    try:
        text = path.read_text()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in text.splitlines() if line.startswith(name)), None)
