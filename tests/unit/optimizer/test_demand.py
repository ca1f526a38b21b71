"""GPUs in use are recorded by the hour, survive a restart, and become forecasts with intervals."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec
import pytest

from kgwe.apps.optimizer.demand import HORIZONS, DemandForecasts, HourlyUse
from kgwe.apps.optimizer.history.writer import StoreThread
from kgwe.cli.predict import describe_demand, format_demand
from kgwe.store.history import HistoryStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

HOUR_S = 3600.0
NOON_S = 500_000 * HOUR_S
A100 = "A100-SXM4-80GB"


class Bed:
    """Forecasts over a store, with what is measured."""

    def __init__(self, path: Path) -> None:
        self.store = StoreThread(lambda: HistoryStore.open(str(path)))
        self.measured: dict[str, float] = {A100: 4.0}
        self.demand = self.start()

    def start(self) -> DemandForecasts:
        self.demand = DemandForecasts(self.store, lambda: self.measured)
        return self.demand

    async def seed(self, hours: int) -> None:
        """Store hours of demand that repeats every day and ends before noon."""
        values = tuple(50 + 20 * math.sin(2 * math.pi * hour / 24) for hour in range(hours))
        use = HourlyUse(NOON_S - hours * HOUR_S, values)
        await self.store.call(lambda store: store.put_document("demand", A100, msgspec.to_builtins(use), 0.0))


@pytest.fixture
async def bed(tmp_path: Path) -> AsyncIterator[Bed]:
    made = Bed(tmp_path / "optimizer.db")
    yield made
    await made.store.close()


def test_an_hour_is_the_mean_of_its_measurements_and_a_gap_is_unknown():
    use = HourlyUse(NOON_S)
    for minute, gpus in ((0, 2.0), (30, 4.0), (60, 8.0), (180, 1.0)):
        use = use.add(gpus, NOON_S + 60 * minute)
    assert use.hours == (3.0, 8.0, None)
    assert (use.start_s, use.current_s, use.known_hours) == (NOON_S, NOON_S + 3 * HOUR_S, 2)


def test_a_clock_that_was_set_back_changes_nothing():
    use = HourlyUse(NOON_S).add(2.0, NOON_S + HOUR_S)
    assert use.add(9.0, NOON_S - 50 * HOUR_S) == use


def test_only_some_months_are_kept():
    use = HourlyUse(NOON_S).add(2.0, NOON_S).add(3.0, NOON_S + 1e6 * HOUR_S)
    assert len(use.hours) == 120 * 24
    assert use.current_s == NOON_S + 1e6 * HOUR_S


async def test_without_history_the_demand_is_unknown_and_says_why(bed: Bed):
    await bed.demand.record(NOON_S)
    (found,) = describe_demand(bed.demand.predict())
    assert (found["gpuModel"], found["gpus"], found["recordedHours"]) == (A100, 4.0, 0)
    assert [(each["hoursAhead"], each["known"], each["gpus"]) for each in found["forecasts"]] == [
        (ahead, False, None) for ahead in HORIZONS
    ]
    assert "in  6 h   unknown: 0 hours of use are recorded; a forecast needs about 306" in format_demand([found])


async def test_a_restart_goes_on_with_the_recorded_hours(bed: Bed):
    for minute in range(0, 150, 15):
        await bed.demand.record(NOON_S + 60 * minute)
    bed.measured = {}
    bed.start()
    await bed.demand.record(NOON_S + 3 * HOUR_S)
    (found,) = bed.demand.predict().models
    assert (found.recorded_hours, found.gpus) == (3, 0.0)


async def test_three_weeks_of_daily_demand_are_forecast_with_intervals(bed: Bed):
    await bed.seed(21 * 24)
    bed.measured = {A100: 50.0}
    await bed.demand.record(NOON_S)
    (found,) = describe_demand(bed.demand.predict(A100))
    for each in found["forecasts"]:
        expected = 50 + 20 * math.sin(2 * math.pi * (21 * 24 - 1 + each["hoursAhead"]) / 24)
        assert each["known"]
        assert each["lower"] <= each["gpus"] <= each["upper"]
        assert each["gpus"] == pytest.approx(expected, abs=6.0)
    assert "90% between" in format_demand([found])
    assert bed.demand.predict("H100").models == []


async def test_a_document_that_cannot_be_read_is_skipped(bed: Bed):
    await bed.store.call(lambda store: store.put_document("demand", "bad", {"start_s": "never"}, 0.0))
    await bed.demand.record(NOON_S)
    assert [each.gpu_model for each in bed.demand.predict().models] == [A100]
