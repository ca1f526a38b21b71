"""Statements as tables, CSV, JSON and YAML, all from the same values."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Final

import msgspec

from kgwe.cli.cost.ledger_access import describe
from kgwe.costing.money import HOUR_S, format_dollars

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kgwe.costing.statement import Statement

_HEADINGS: Final = ("COST", "HOURLY", "DAILY", "MONTHLY", "GPUS", "GPU-HOURS", "USED", "IDLE")
_MONTH_HOURS: Final = 730
_COLUMNS: Final = ("name", "cost", "used", "idle", "unmeasured", "gpuHours", "unpricedGpuHours")
NOT_STATED: Final = "(none)"


def render(statements: Sequence[Statement], output: str) -> str:
    """Return the text of statements. JSON and YAML of one statement are an object, of several a list."""
    if output == "table":
        return "\n".join(_make_table(each, with_books=not number) for number, each in enumerate(statements))
    values = [describe(each) for each in statements]
    if output == "csv":
        return _make_csv(statements)
    body = values[0] if len(values) == 1 else values
    if output == "json":
        return msgspec.json.format(msgspec.json.encode(body), indent=2).decode() + "\n"
    return msgspec.yaml.encode(body).decode()


def _make_table(statement: Statement, *, with_books: bool) -> str:
    hours = (statement.end_s - statement.start_s) / HOUR_S
    rows = [(statement.by.upper(), *_HEADINGS)]
    for line in statement.lines:
        hourly = round(line.micros / hours)
        is_known = line.used or line.idle
        rows.append(
            (
                line.name or NOT_STATED,
                format_dollars(line.micros),
                format_dollars(hourly),
                format_dollars(hourly * 24),
                format_dollars(hourly * _MONTH_HOURS),
                f"{line.gpu_seconds / HOUR_S / hours:.2f}",
                f"{line.gpu_seconds / HOUR_S:.2f}",
                format_dollars(line.used) if is_known else "unknown",
                format_dollars(line.idle) if is_known else "unknown",
            )
        )
    text = _align(rows)
    return f"{_make_books(statement)}\n{text}" if with_books else text


def _make_books(statement: Statement) -> str:
    values = describe(statement)
    lines = [
        f"{values['start']} to {values['end']}, in {statement.currency}; split method: {statement.method}",
        (
            f"fleet {format_dollars(statement.fleet)} = allocated {format_dollars(statement.allocated)}"
            f" + idle {format_dollars(statement.idle)} + unallocated {format_dollars(statement.unallocated)}"
            f" + reserved idle {format_dollars(statement.reserved_idle)}"
            f" (system overhead {format_dollars(statement.overhead)} included)"
        ),
    ]
    if statement.unpriced_gpu_seconds:
        lines.append(
            f"{statement.unpriced_gpu_seconds / HOUR_S:.2f} GPU-hours have no price and are not in these costs"
        )
    lines += [
        f"not metered from {start} to {end}: pods deleted in that time are not charged" for start, end in values["gaps"]
    ]
    return "\n".join(lines) + "\n"


def _align(rows: Sequence[tuple[str, ...]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines) + "\n"


def _make_csv(statements: Sequence[Statement]) -> str:
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(("start", "end", "splitMethod", "currency", "by", *_COLUMNS))
    for each in statements:
        values = describe(each)
        head = (values["start"], values["end"], values["splitMethod"], values["currency"], values["by"])
        for line in values["lines"]:
            writer.writerow((*head, *(line[name] for name in _COLUMNS)))
        if each.by != statements[0].by:
            continue
        for name in ("unallocated", "reservedIdle", "fleet"):
            writer.writerow((*head[:4], "line", name, values[name], "", "", "", "", ""))
    return file.getvalue()
