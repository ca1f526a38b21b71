"""Files of reports: text, FOCUS rows as CSV or Parquet, and PDF."""

from __future__ import annotations

import importlib
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from kgwe import errors, terminal
from kgwe.costing import dates
from kgwe.costing.focus.columns import NUMBERS, TIMES
from kgwe.costing.reports.texts import write_csv

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path
    from types import ModuleType

_EXTRA = "install KGWE with its extra `reports`: pip install 'kgwe[reports]'"


def write_text(text: str, path: Path | None) -> None:
    """Write to a file, or to the terminal."""
    if path is None:
        terminal.write(text)
        return
    try:
        path.write_text(text)
    except OSError as exc:
        raise errors.Permanent(f"{path} cannot be written: {exc.strerror or exc}") from exc


def make_rows_csv(columns: Sequence[str], rows: Iterable[dict[str, str | None]]) -> str:
    """Return FOCUS rows as CSV; null is an empty cell."""
    return write_csv([columns, *([row[name] or "" for name in columns] for row in rows)])


def write_parquet(columns: Sequence[str], rows: Iterable[dict[str, str | None]], path: Path) -> None:
    """Write FOCUS rows as Parquet: amounts as decimals, times as timestamps in UTC."""
    pa, parquet = load_extra("pyarrow"), load_extra("pyarrow.parquet")
    kept = list(rows)
    kinds = {
        **dict.fromkeys(NUMBERS, pa.decimal128(38, 12)),
        **dict.fromkeys(TIMES, pa.timestamp("s", tz="UTC")),
    }
    arrays = [
        pa.array([_convert(name, row[name]) for row in kept], type=kinds.get(name, pa.string())) for name in columns
    ]
    try:
        parquet.write_table(pa.Table.from_arrays(arrays, names=list(columns)), path)
    except OSError as exc:
        raise errors.Permanent(f"{path} cannot be written: {exc.strerror or exc}") from exc


def _convert(name: str, text: str | None) -> Any:
    if text is None:
        return None
    if name in NUMBERS:
        return Decimal(text)
    return dates.parse_time(text) if name in TIMES else text


def load_extra(name: str) -> ModuleType:
    """Return a module of an extra; Permanent says how to install it."""
    try:
        return importlib.import_module(name)
    except ImportError as exc:
        raise errors.Permanent(f"{name} is not installed: {_EXTRA}") from exc
