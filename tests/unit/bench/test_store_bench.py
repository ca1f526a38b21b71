"""`kgwe bench store`, in a small size."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kgwe import errors
from kgwe.bench.store import minutes
from kgwe.store.history import HistoryStore

if TYPE_CHECKING:
    from pathlib import Path


def test_the_report_has_rates_sizes_and_the_baseline():
    measured = minutes.run(minutes.Options(devices=20, minutes=3))
    assert measured.params == {"devices": 20, "minutes": 3, "url": "sqlite", "seed": 1}
    assert set(measured.metrics) >= {
        "put_rows_per_s", "again_rows_per_s", "load_ms", "forget_rows_per_s", "bytes_per_million_minutes",
        "plain_rows_per_s", "put_to_plain",
    }  # fmt: skip
    assert all(value > 0 for value in measured.metrics.values())


def test_a_store_with_minutes_is_not_used(tmp_path: Path):
    path = str(tmp_path / "history.db")
    with HistoryStore.open(path) as store:
        store.put_minutes(next(minutes._make_windows(minutes.Options(devices=1))))
    with pytest.raises(errors.Permanent, match="has minutes already"):
        minutes.run(minutes.Options(devices=1, minutes=2, url=path))
