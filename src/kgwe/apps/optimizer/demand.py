"""GPUs in use by GPU model: recorded by the hour in the store, and forecast from there.

    every minute: GPUs that pods hold → mean of the hour → one document per model → forecasts, made again every hour

An hour in which nothing was measured is unknown, not zero.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import structlog

from kgwe.forecast.demand.forecaster import COVERAGE, LEAST_ROWS, DemandForecaster
from kgwe.forecast.demand.series import DemandSeries
from kgwe.proto import optimizer_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kgwe.apps.optimizer.history.writer import StoreThread
    from kgwe.forecast.demand.forecaster import DemandForecast

log = structlog.get_logger(__name__)

#: hours ahead
HORIZONS: Final = (1, 6, 24)
_KIND: Final = "demand"
_HOUR_S: Final = 3600.0
_KEEP_HOURS: Final = 120 * 24
# GPU models of one cluster; others are left out.
_MAX_MODELS: Final = 32
_UNNAMED: Final = "unknown"


class HourlyUse(msgspec.Struct, frozen=True):
    """Recorded use of one GPU model."""

    start_s: float
    """Unix time at which the first hour begins."""
    hours: tuple[float | None, ...] = ()
    """Mean of each finished hour; None: not measured."""
    total: float = 0.0
    """Sum of the measurements of the hour that has not ended."""
    count: int = 0

    @property
    def current_s(self) -> float:
        """Return when the hour that has not ended begins."""
        return self.start_s + len(self.hours) * _HOUR_S

    @property
    def known_hours(self) -> int:
        return sum(each is not None for each in self.hours)

    def add(self, gpus: float, now_s: float) -> HourlyUse:
        """Return it with a measurement. Hours since the last one are closed; a clock set back changes nothing."""
        hour_s = math.floor(now_s / _HOUR_S) * _HOUR_S
        passed = round((hour_s - self.current_s) / _HOUR_S)
        if passed < 0:
            return self
        if passed == 0:
            return msgspec.structs.replace(self, total=self.total + gpus, count=self.count + 1)
        mean = self.total / self.count if self.count else None
        gap = (None,) * (min(passed, _KEEP_HOURS) - 1)
        hours = (*self.hours, mean, *gap)[-_KEEP_HOURS:]
        return HourlyUse(hour_s - len(hours) * _HOUR_S, hours, gpus, 1)

    def make_series(self) -> DemandSeries:
        """Return the finished hours."""
        values = np.array([math.nan if each is None else each for each in self.hours], dtype=np.float64)
        return DemandSeries(values, _HOUR_S, self.start_s)


@dataclass(slots=True)
class _Model:
    """One GPU model: what was recorded, and the forecasts from it."""

    use: HourlyUse
    gpus: float | None = None
    forecaster: DemandForecaster = field(default_factory=DemandForecaster)
    fitted_hours: float = -1.0
    found: Mapping[int, DemandForecast] = field(default_factory=dict)


class DemandForecasts:
    """Records and forecasts the demand of all GPU models."""

    def __init__(self, store: StoreThread, measure: Callable[[], Mapping[str, float]]) -> None:
        """`measure`: GPU model -> GPUs that pods hold now."""
        self._store = store
        self._measure = measure
        self._models: dict[str, _Model] = {}
        self._is_loaded = False

    async def record(self, now_s: float) -> None:
        """Measure once, store it, and forecast again where an hour has ended; raise a KgweError if the store fails."""
        if not self._is_loaded:
            await self._load()
        measured = {name or _UNNAMED: gpus for name, gpus in self._measure().items()}
        for name in (*self._models, *(each for each in sorted(measured) if each not in self._models)):
            known = self._models.get(name)
            if known is None:
                if len(self._models) >= _MAX_MODELS:
                    continue
                known = self._models[name] = _Model(HourlyUse(math.floor(now_s / _HOUR_S) * _HOUR_S))
            known.gpus = measured.get(name, 0.0)
            known.use = known.use.add(known.gpus, now_s)
        await self._save(now_s)
        for name, model in self._models.items():
            if model.fitted_hours != model.use.current_s:
                model.fitted_hours = model.use.current_s
                model.found = await asyncio.to_thread(_forecast, model.forecaster, model.use.make_series())
                log.debug("demand_forecast", gpu_model=name, hours=model.use.known_hours)

    def predict(self, gpu_model: str = "") -> pb.DemandReply:
        """Return the forecasts of one model, or of all."""
        chosen = sorted(name for name in self._models if gpu_model in {"", name})
        return pb.DemandReply(models=[self._describe(name, self._models[name]) for name in chosen])

    def _describe(self, name: str, model: _Model) -> pb.ModelDemand:
        return pb.ModelDemand(
            gpu_model=name,
            gpus=model.gpus,
            recorded_hours=model.use.known_hours,
            forecasts=[_encode(ahead, model.found.get(ahead), model.use) for ahead in HORIZONS],
        )

    async def _load(self) -> None:
        for document in await self._store.call(lambda store: store.list_documents(_KIND)):
            try:
                self._models[document.name] = _Model(msgspec.convert(document.body, HourlyUse))
            except (msgspec.ValidationError, TypeError) as exc:
                log.warning("demand_skipped", gpu_model=document.name, error=str(exc))
        self._is_loaded = True

    async def _save(self, now_s: float) -> None:
        bodies = {name: msgspec.to_builtins(model.use) for name, model in self._models.items()}

        def write(store: Any) -> None:
            for name, body in bodies.items():
                store.put_document(_KIND, name, body, now_s)

        await self._store.call(write)


def _forecast(forecaster: DemandForecaster, series: DemandSeries) -> dict[int, DemandForecast]:
    """Return the forecasts at the end of a series; none while it is short."""
    if len(series.values) <= LEAST_ROWS:
        return {}
    forecaster.fit(series, HORIZONS)
    return {ahead: forecaster.predict(series, ahead) for ahead in HORIZONS}


def _encode(ahead: int, found: DemandForecast | None, use: HourlyUse) -> pb.DemandForecast:
    if found is None or not found.is_known:
        # The forecaster learns from the last two thirds; the first third has no history of its own.
        needed = f"{use.known_hours} hours of use are recorded; a forecast needs about {LEAST_ROWS * 3 // 2 + ahead}"
        return pb.DemandForecast(hours_ahead=ahead, coverage=COVERAGE, reasoning=[needed])
    source = "boosted trees and a linear model" if found.source == "model" else "a linear model"
    return pb.DemandForecast(
        hours_ahead=ahead,
        is_known=True,
        gpus=found.value,
        lower=found.lower,
        upper=found.upper,
        coverage=found.coverage,
        reasoning=[f"{source} on {use.known_hours} hours of use"],
    )
