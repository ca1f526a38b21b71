"""Recorded data of the forecast benchmarks: where the files are, and reading them without failing on a bad row."""

from __future__ import annotations

import csv
import gzip
import os
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from kgwe import errors

if TYPE_CHECKING:
    from collections.abc import Sequence


def find_file(given: Path | None, name: str) -> Path:
    """Return the given file, else `name` in $KGWE_DATA or shared/data nearby. Raise NotFound where it is absent."""
    if given is not None:
        if given.is_file():
            return given
        raise errors.NotFound(f"{given} does not exist")
    named = os.environ.get("KGWE_DATA")
    places = [Path(named)] if named else [Path("shared/data"), Path("../shared/data")]
    for place in places:
        if (place / name).is_file():
            return place / name
    looked = ", ".join(map(str, places))
    raise errors.NotFound(f"no {name} under {looked}; set KGWE_DATA to the folder that holds it, or name a file")


def read_rows(path: Path, columns: Sequence[str]) -> list[dict[str, str]]:
    """Return the rows of a CSV file, plain or gzip. Raise Permanent if a column is missing."""
    try:
        with _open(path) as file:
            reader = csv.DictReader(file)
            missing = sorted(set(columns) - set(reader.fieldnames or ()))
            if missing:
                raise errors.Permanent(f"{path} has no column {', '.join(missing)}")
            return list(reader)
    except (OSError, UnicodeError, csv.Error) as problem:
        raise errors.Permanent(f"cannot read {path}: {problem}") from problem


def _open(path: Path) -> TextIO:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", newline="", encoding="utf-8")
    return path.open(newline="", encoding="utf-8")


def parse_number(text: str | None) -> float:
    """Return a number; NaN where it is missing or not a number."""
    try:
        return float(text) if text else float("nan")
    except ValueError:
        return float("nan")
