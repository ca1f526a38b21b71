"""Statements as tables and CSV."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING, Any, Final

from kgwe.costing.dates import format_time
from kgwe.costing.money import HOUR_S, format_dollars
from kgwe.costing.reports.values import NOT_STATED, describe, list_books, list_notes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kgwe.costing.statement import Statement, StatementLine

HEADINGS: Final = ("COST", "HOURLY", "DAILY", "MONTHLY", "GPUS", "GPU-HOURS", "USED", "IDLE")
_MONTH_HOURS: Final = 730
#: The same for pages.
TITLES: Final = ("Cost", "Hourly", "Daily", "Monthly", "GPUs", "GPU-hours", "Used", "Idle")
_COLUMNS: Final = ("name", "cost", "used", "idle", "unmeasured", "gpuHours", "unpricedGpuHours")
_BOOKS: Final = ("unallocated", "reservedIdle", "billedOnly", "fleet")


def make_tables(statements: Sequence[Statement]) -> str:
    """Return the books and a table for each statement."""
    parts = [_make_head(statements[0])]
    for each in statements:
        rows = [(each.by.upper(), *HEADINGS), *(list_cells(each, line) for line in each.lines)]
        parts.append(align(rows))
    return "\n".join(parts)


def list_cells(statement: Statement, line: StatementLine) -> tuple[str, ...]:
    """Return the cells of a line, as tables and pages show them."""
    hours = (statement.end_s - statement.start_s) / HOUR_S
    hourly = round(line.micros / hours)
    is_known = line.used or line.idle
    return (
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


def describe_window(statement: Statement) -> str:
    """Return one line: time, currency and method."""
    start, end = format_time(statement.start_s), format_time(statement.end_s)
    return f"{start} to {end}, in {statement.currency}; split method: {statement.method}"


def _make_head(statement: Statement) -> str:
    books = " + ".join(f"{name} {format_dollars(micros)}" for name, micros in list_books(statement))
    overhead = f"(system overhead {format_dollars(statement.overhead)} included)"
    lines = [
        describe_window(statement),
        f"fleet {format_dollars(statement.fleet)} = {books} {overhead}",
        *list_notes(statement),
    ]
    return "\n".join(lines) + "\n"


def align(rows: Sequence[tuple[str, ...]]) -> str:
    """Return rows as a table: the first column to the left, the others to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines) + "\n"


def make_csv(statements: Sequence[Statement]) -> str:
    """Return all lines of all statements, and the books once."""
    rows: list[Sequence[Any]] = [("start", "end", "splitMethod", "currency", "by", *_COLUMNS)]
    for number, each in enumerate(statements):
        values = describe(each)
        head = (values["start"], values["end"], values["splitMethod"], values["currency"])
        rows += [(*head, values["by"], *(line[name] for name in _COLUMNS)) for line in values["lines"]]
        if not number:
            rows += [(*head, "line", name, values[name], "", "", "", "", "") for name in _BOOKS]
    return write_csv(rows)


class _Parts(list[str]):
    def write(self, text: str) -> None:
        self.append(text)


def write_csv(rows: Iterable[Sequence[Any]]) -> str:
    """Return rows as CSV. Names that a spreadsheet would take for a formula are quoted by an apostrophe."""
    parts = _Parts()
    writer = csv.writer(parts, lineterminator="\n")
    for row in rows:
        writer.writerow([_guard(cell) for cell in row])
    return "".join(parts)


def _guard(cell: Any) -> Any:
    is_number = isinstance(cell, str) and cell.replace(".", "", 1).removeprefix("-").isdigit()
    return f"'{cell}" if isinstance(cell, str) and cell[:1] in {"=", "+", "-", "@", "\t"} and not is_number else cell
