"""Minutes of many devices, one batch per minute as the optimizer writes them.

    put        each minute stored for the first time
    again      the same minutes stored once more: every row is a conflict
    load       the last ten minutes of all devices as one window
    forget     retention of everything but the last minute
    plain      the baseline: the same rows by `executemany` of sqlite3 into a table without keys, from ready tuples

Rates are rows per CPU second of this process; with PostgreSQL the server's CPU time is not in them, so rates by the
wall clock are given too.
"""

from __future__ import annotations

import sqlite3
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import sqlalchemy as sa

from kgwe import errors
from kgwe.bench import report
from kgwe.model.usage.window import QUANTITIES, Device, DeviceKey, PodKey, UsageWindow, make_window
from kgwe.store.database import Database
from kgwe.store.history import HistoryStore
from kgwe.store.retention import MINUTES_KEPT_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_START_S: Final = 1_795_003_200
_MINUTE_S: Final = 60
_READ: Final = 10
_MEMORY_MIB: Final = 81_559
_POWER_W: Final = 700.0


@dataclass(frozen=True, slots=True)
class Options:
    devices: int = 5_000
    minutes: int = 60
    url: str = ""
    """Empty: a SQLite file in a temporary folder."""
    seed: int = 1


def run(options: Options) -> report.Report:
    """Measure the store; Permanent if the database of `url` has minutes already."""
    machine = report.examine_machine()
    with tempfile.TemporaryDirectory(prefix="kgwe-bench-store-") as folder:
        windows = list(_make_windows(options))
        metrics = _measure_store(options, windows, Path(folder) / "history.db")
        metrics["plain_rows_per_s"] = _measure_plain(windows, Path(folder) / "plain.db")
    metrics["put_to_plain"] = metrics["put_rows_per_s"] / metrics["plain_rows_per_s"]
    params = asdict(options) | {"url": "postgresql" if "postgres" in options.url else "sqlite"}
    return report.Report("store", params, metrics, machine)


def _make_windows(options: Options) -> Iterator[UsageWindow]:
    """One minute each. Values have the digits that exporters print."""
    rng = np.random.default_rng(options.seed)
    devices = tuple(_make_device(number) for number in range(options.devices))
    for minute in range(options.minutes):
        window = make_window(_START_S + _MINUTE_S * minute, _MINUTE_S, 1, devices)
        for name in ("activity", "tensor", "dram"):
            getattr(window, name)[:] = np.round(rng.random((options.devices, 1)), 3)
        window.memory_used_mib[:] = rng.integers(0, _MEMORY_MIB, (options.devices, 1))
        window.memory_total_mib[:] = _MEMORY_MIB
        window.power_w[:] = np.round(rng.random((options.devices, 1)) * _POWER_W, 2)
        yield window


def _make_device(number: int) -> Device:
    key = DeviceKey(f"node-{number // 8:04}", f"GPU-{number:032x}", "", PodKey("team", f"train-{number}"), "main")
    return Device(key, "NVIDIA H100 80GB HBM3")


def _measure_store(options: Options, windows: Sequence[UsageWindow], path: Path) -> dict[str, Any]:
    database = Database.open(options.url or str(path))
    store = HistoryStore(database)
    end_s = _START_S + _MINUTE_S * options.minutes
    rows = options.devices * options.minutes
    try:
        if store.load_minutes(_START_S, end_s, _MINUTE_S).devices:
            raise errors.Permanent("the database has minutes already: name an empty one")
        metrics: dict[str, Any] = {}
        _add_rates(metrics, "put", rows, lambda: _put_all(store, windows))
        metrics["bytes_per_million_minutes"] = _measure_bytes(database) / rows * 1e6
        _add_rates(metrics, "again", rows, lambda: _put_all(store, windows))
        begin_s = end_s - _MINUTE_S * min(_READ, options.minutes)
        cpu_s, _ = _time(lambda: store.load_minutes(begin_s, end_s, _MINUTE_S))
        metrics["load_ms"] = cpu_s * 1e3
        forget_s = end_s - _MINUTE_S + MINUTES_KEPT_S
        store.put_minutes(make_minute_at(windows[-1], forget_s))
        _add_rates(metrics, "forget", rows, lambda: store.apply_retention(forget_s + _MINUTE_S))
    finally:
        store.close()
    return metrics


def make_minute_at(window: UsageWindow, start_s: float) -> UsageWindow:
    """Return the first device of a window at another time: the newest data, from which retention counts."""
    made = make_window(start_s, _MINUTE_S, 1, window.devices[:1])
    made.activity[:] = 0.5
    return made


def _add_rates(metrics: dict[str, Any], name: str, rows: int, work: Callable[[], object]) -> None:
    cpu_s, wall_s = _time(work)
    metrics[f"{name}_rows_per_s"] = rows / cpu_s
    metrics[f"{name}_rows_per_wall_s"] = rows / wall_s


def _put_all(store: HistoryStore, windows: Sequence[UsageWindow]) -> None:
    for window in windows:
        store.put_minutes(window)


def _time(work: Callable[[], object]) -> tuple[float, float]:
    cpu, wall = time.process_time(), time.perf_counter()
    work()
    return time.process_time() - cpu, time.perf_counter() - wall


def _measure_bytes(database: Database) -> int:
    queries = (
        ("SELECT pg_total_relation_size('minutes')",)
        if database.is_postgresql
        else ("PRAGMA page_count", "PRAGMA page_size")
    )
    size = 1
    with database.transaction() as connection:
        for query in queries:
            size *= int(connection.execute(sa.text(query)).scalar_one())
    return size


def _measure_plain(windows: Sequence[UsageWindow], path: Path) -> float:
    batches = [_make_tuples(window, minute) for minute, window in enumerate(windows)]
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("CREATE TABLE plain (minute, device, a, b, c, d, e, f)")

    def write() -> None:
        for batch in batches:
            connection.executemany("INSERT INTO plain VALUES (?, ?, ?, ?, ?, ?, ?, ?)", batch)
            connection.commit()

    cpu_s, _ = _time(write)
    connection.close()
    return sum(len(batch) for batch in batches) / cpu_s


def _make_tuples(window: UsageWindow, minute: int) -> list[tuple[Any, ...]]:
    columns = [getattr(window, name)[:, 0].tolist() for name in QUANTITIES]
    return [(minute, device, *values) for device, values in enumerate(zip(*columns, strict=True))]
