"""Reads the Prometheus text format: only the wanted families, line by line, and nothing else.

The labels of a line are the same in every scrape, so their meaning is remembered by their text. A line that cannot be
read is counted and skipped; the other lines are kept. A body about too many devices is refused: all that follows would
be slow with them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from kgwe import errors
from kgwe.metrics.fields import FAMILIES, Field, Rejected, merge_rejected, reject_bad_samples
from kgwe.metrics.series import PLAIN, Dialect, identify_device, uses_exported_labels

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from kgwe.model.usage.window import Device, Floats

_LABEL: Final = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(,|$)', re.ASCII)
_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)
_ESCAPED: Final = {"n": "\n"}
_TIMESTAMPED: Final = re.compile(rb"\s+([-+0-9.eEa-zA-Z]+)\s+(-?\d{1,18})\s*", re.ASCII)
_MAX_REMEMBERED: Final = 65_536
#: A node has at most 64 GPUs, each with a few slices and sharers.
MAX_DEVICES: Final = 4096
# Lines between two looks whether the result is still wanted.
_LOOK_EVERY: Final = 2048
_MS: Final = 1000.0
_WANTED: Final = {name.encode(): family for name, family in FAMILIES.items()}
_FIELDS: Final = len(Field)
_Line = tuple[bytes, "Field", float, float | None]


@dataclass(frozen=True, slots=True, eq=False)
class Scrape:
    """The samples of one body: row i of `values` is `devices[i]`, columns are fields, NaN is absent."""

    devices: tuple[Device, ...]
    values: Floats
    at_s: float | None = None
    """Time that the exporter wrote; None if it wrote none, as exporters usually do."""
    rejected: Rejected = field(default_factory=dict)

    def select(self, rows: Sequence[int], reason: str) -> Scrape:
        """Return the scrape with these rows alone; the others are counted as rejected for the reason."""
        left_out = len(self.devices) - len(rows)
        if not left_out:
            return self
        return Scrape(
            tuple(self.devices[row] for row in rows),
            self.values[np.array(rows, dtype=np.int64)],
            self.at_s,
            merge_rejected(self.rejected, {reason: left_out}),
        )


class ExpositionReader:
    """Reads the bodies of one exporter. Remembers the labels it has seen."""

    def __init__(
        self, dialect: Dialect = PLAIN, labels: Mapping[str, str] | None = None, *, max_devices: int = MAX_DEVICES
    ) -> None:
        self._dialect = dialect
        self._max_devices = max_devices
        self._defaults = labels or {}
        """Labels of the target, for series that do not have them."""
        self._devices: dict[bytes, Device | None] = {}

    def read(self, body: bytes, is_wanted: Callable[[], bool] = lambda: True) -> Scrape:
        """Return all samples of the wanted families; raise Transient for too many devices, or if no longer wanted."""
        rows: dict[bytes, list[float | None]] = {}
        rejected: Rejected = {}
        newest_s: float | None = None
        for labels, column, value, at_s in _read_lines(body, rejected, is_wanted):
            row = rows.get(labels)
            if row is None:
                if len(rows) >= self._max_devices:
                    raise errors.Transient(f"has samples of more than {self._max_devices} devices")
                row = rows[labels] = [None] * _FIELDS
            if row[column] is not None:
                rejected["duplicate"] = rejected.get("duplicate", 0) + 1
                continue
            row[column] = value
            if at_s is not None:
                newest_s = at_s if newest_s is None else max(newest_s, at_s)
        return self._make_scrape(rows, rejected, newest_s)

    def _make_scrape(self, rows: dict[bytes, list[float | None]], rejected: Rejected, newest_s: float | None) -> Scrape:
        found: dict[Device, list[float | None]] = {}
        for text, row in rows.items():
            device = self._identify(text)
            if device is None:
                _count(rejected, "malformed", sum(value is not None for value in row))
            elif device not in found:
                found[device] = row
            else:
                _count(rejected, "duplicate", _merge_row(found[device], row))
        cells = [value for row in found.values() for value in row]
        with np.errstate(over="ignore"):  # too large for 32 bits is infinite, and out of range
            values = np.array(cells, dtype=np.float64).astype(np.float32).reshape(-1, _FIELDS)
        present = np.array([value is not None for value in cells], dtype=np.bool_).reshape(-1, _FIELDS)
        for reason, count in reject_bad_samples(values, present).items():
            _count(rejected, reason, count)
        return Scrape(tuple(found), values, newest_s, rejected)

    def _identify(self, text: bytes) -> Device | None:
        try:
            return self._devices[text]
        except KeyError:
            pass
        labels = parse_labels(text.decode("utf-8", "replace"))
        if labels is not None and uses_exported_labels(labels) and not self._dialect.exported:
            self._dialect = Dialect(self._dialect.node_labels, exported=True)
            self._devices.clear()  # `pod` of other series was the exporter's own
        device = None if labels is None else identify_device({**self._defaults, **labels}, self._dialect)
        if len(self._devices) >= _MAX_REMEMBERED:
            self._devices.clear()  # pods come and go, and their names are in the labels
        self._devices[text] = device
        return device


def parse_labels(text: str) -> dict[str, str] | None:
    """Return the labels between the braces of a line; None if they are malformed."""
    labels: dict[str, str] = {}
    position, end = 0, len(text.rstrip())
    while position < end:
        match = _LABEL.match(text, position, end)
        if match is None:
            return None
        labels[match[1]] = _ESCAPE.sub(_unescape, match[2]) if "\\" in match[2] else match[2]
        position = match.end()
    return labels


def _unescape(match: re.Match[str]) -> str:
    return _ESCAPED.get(match[1], match[1])


def _read_lines(body: bytes, rejected: Rejected, is_wanted: Callable[[], bool]) -> Iterator[_Line]:
    wanted = _WANTED.get
    for number, line in enumerate(body.split(b"\n")):
        if not number % _LOOK_EVERY and not is_wanted():
            raise errors.Transient("is no longer wanted")
        brace = line.find(b"{")
        family = wanted(line[:brace].rstrip() if brace > 0 else line.partition(b" ")[0])
        if family is None:
            continue
        end = line.rfind(b"}")
        tail = line[end + 1 :]
        try:
            value, at_s = float(tail), None
        except ValueError:
            value, at_s = _read_timestamped(tail)
        if brace < 0 or end < brace or at_s is _MALFORMED or b"_" in tail:
            _count(rejected, "malformed")
            continue
        yield line[brace + 1 : end], family.field, value * family.scale, at_s


_MALFORMED: Final = float("nan")


def _read_timestamped(tail: bytes) -> tuple[float, float | None]:
    """Return value and time of ` 0.5 1800000000000`; the marker for malformed as time if it is something else."""
    match = _TIMESTAMPED.fullmatch(tail)
    try:
        return (float(match[1]), int(match[2]) / _MS) if match else (0.0, _MALFORMED)
    except ValueError:
        return 0.0, _MALFORMED


def _merge_row(row: list[float | None], other: list[float | None]) -> int:
    """Add values of other lines about the same device; return how many were there already."""
    repeated = 0
    for column, value in enumerate(other):
        if value is None:
            continue
        if row[column] is None:
            row[column] = value
        else:
            repeated += 1
    return repeated


def _count(rejected: Rejected, reason: str, count: int = 1) -> None:
    if count:
        rejected[reason] = rejected.get(reason, 0) + count
