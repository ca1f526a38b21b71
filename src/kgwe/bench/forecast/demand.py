"""`kgwe bench demand`: forecasts of GPU demand on recorded series, beside persistence and seasonal forecasts.

Forecasts of the later part are made in the order of time. The models are fitted again every few days, from the steps
that were known by then.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kgwe import errors
from kgwe.bench import report
from kgwe.bench.forecast.data import find_file, parse_number, read_rows
from kgwe.forecast.demand.forecaster import DemandForecaster
from kgwe.forecast.demand.series import DemandSeries, describe_steps

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from kgwe.local.host.progress import Progress

_HOURLY: Final = "history/hourly_gpu_demand.csv"
_VENUS: Final = "demand/helios_venus_10min.csv"
_HORIZONS: Final = (1, 6, 24)
_LATER: Final = 0.2
_LEAST: Final = 500
_STEP_S: Final = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    hourly: Path | None = None
    venus: Path | None = None
    refit_days: int = 3
    seed: int = 1


def run(options: Options, progress: Progress) -> report.Report:
    """Forecast both series."""
    if options.refit_days < 1:
        raise errors.Permanent("--refit-days must be at least 1")
    machine = report.examine_machine()
    hourly_file, venus_file = find_file(options.hourly, _HOURLY), find_file(options.venus, _VENUS)
    started = time.process_time()
    progress.note("forecasting hourly demand")
    metrics = measure_hourly(read_hourly(hourly_file), options)
    progress.note("forecasting submissions per 10 minutes")
    metrics["venus"] = measure_venus(*read_venus(venus_file), options)
    metrics["cpu_s"] = round(time.process_time() - started, 1)
    params = {"refit_days": options.refit_days, "seed": options.seed}
    return report.Report("demand", params, metrics, machine)


def read_hourly(path: Path) -> DemandSeries:
    """Return the hourly series with the number of active jobs beside it."""
    rows = read_rows(path, ("hour", "jobs_active", "gpus_active_requested"))
    values = np.array([parse_number(row["gpus_active_requested"]) for row in rows])
    jobs = np.array([parse_number(row["jobs_active"]) for row in rows])
    _check(values, path)
    return DemandSeries(values, 3600.0, 0.0, {"jobs": jobs})


def read_venus(path: Path) -> tuple[DemandSeries, int]:
    """Return GPUs submitted per 10 minutes, and the first step of the last month."""
    others = ("submit_gpu_job", "start_gpu_num", "end_gpu_num")
    rows = read_rows(path, ("time", "submit_gpu_num", *others))
    values = np.array([parse_number(row["submit_gpu_num"]) for row in rows])
    _check(values, path)
    try:
        start = datetime.fromisoformat(rows[0]["time"]).replace(tzinfo=UTC).timestamp()
    except ValueError as problem:
        raise errors.Permanent(f"{path}: {problem}") from problem
    companions = {name: np.array([parse_number(row[name]) for row in rows]) for name in others}
    month = rows[-1]["time"][:7]
    first = next(index for index, row in enumerate(rows) if row["time"].startswith(month))
    if first < _LEAST:
        raise errors.Permanent(f"{path} has no month before the last one; more history is needed")
    return DemandSeries(values, _STEP_S, start, companions), first


def _check(values: NDArray[np.float64], path: Path) -> None:
    if int(np.isfinite(values).sum()) < _LEAST:
        raise errors.Permanent(f"{path} has fewer than {_LEAST} usable rows")


@dataclass(frozen=True, slots=True)
class Forecasts:
    value: NDArray[np.float64]
    lower: NDArray[np.float64]
    upper: NDArray[np.float64]


def forecast_later(series: DemandSeries, ahead: int, first: int, *, refit: int, seed: int) -> Forecasts:
    """Return forecasts for the steps from `first` on, each made `ahead` steps earlier."""
    length = len(series.values)
    result = Forecasts(*(np.full(length - first, np.nan) for _ in range(3)))
    forecaster = DemandForecaster(seed=seed)
    for begin in range(first, length, refit):
        known = begin - ahead + 1
        forecaster.fit(series.head(known), (ahead,))
        end = min(begin + refit, length)
        for target in range(begin, end, ahead):
            # The outcome of a forecast corrects the interval only after it is known: `ahead` steps later.
            stop = min(target + ahead, end)
            made = forecaster.predict_all(series.head(stop - ahead), ahead, target - ahead)
            for step, forecast in zip(range(target, stop), made, strict=True):
                result.value[step - first] = forecast.value
                result.lower[step - first], result.upper[step - first] = forecast.lower, forecast.upper
            for step, forecast in zip(range(target, stop), made, strict=True):
                forecaster.observe(ahead, forecast, float(series.values[step]))
    return result


def measure_hourly(series: DemandSeries, options: Options) -> dict[str, Any]:
    """Return the errors of all horizons in percent."""
    first = int(len(series.values) * (1 - _LATER))
    truth = series.values[first:]
    metrics: dict[str, Any] = {"mape": {}, "persistence_mape": {}, "seasonal_mape": {}, "coverage_90": {}, "width": {}}
    for ahead in _HORIZONS:
        found = forecast_later(series, ahead, first, refit=24 * options.refit_days, seed=options.seed)
        name = str(ahead)
        metrics["mape"][name] = _mape(found.value, truth)
        metrics["persistence_mape"][name] = _mape(series.values[first - ahead : -ahead], truth)
        metrics["seasonal_mape"][name] = _mape(series.values[first - 24 : -24], truth)
        metrics["coverage_90"][name] = _cover(found, truth)
        metrics["width"][name] = round(float(np.nanmean((found.upper - found.lower) / truth)) * 100, 2)
    return metrics


def measure_venus(series: DemandSeries, first: int, options: Options) -> dict[str, Any]:
    """Return the mean absolute error in GPUs per 10 minutes, one hour ahead, of ours and of three baselines."""
    ahead, truth = 6, series.values[first:]
    found = forecast_later(series, ahead, first, refit=7 * series.day, seed=options.seed)
    return {
        "mae": _mae(found.value, truth),
        "persistence_mae": _measure_lag(series, ahead, first),
        "seasonal_mae": _measure_lag(series, series.day, first),
        "weekly_mae": _measure_lag(series, 7 * series.day, first),
        "plain_lightgbm_mae": _measure_plain(series, ahead, first),
        "coverage_90": _cover(found, truth),
        "mean_width": round(float(np.nanmean(found.upper - found.lower)), 2),
    }


def _measure_lag(series: DemandSeries, lag: int, first: int) -> float | None:
    """Return the error of repeating what was `lag` steps before; None where the series had not begun."""
    return _mae(series.values[first - lag : -lag], series.values[first:]) if lag <= first else None


def _measure_plain(series: DemandSeries, ahead: int, first: int) -> float | None:
    """Return the error of LightGBM with default settings on the same features; None where it cannot be loaded."""
    try:
        import lightgbm  # noqa: PLC0415 -- slow to import
    except (ImportError, OSError):
        return None
    rows = describe_steps(series, np.zeros(len(series.values)), ahead)
    target = series.values[ahead:]
    cut = first - ahead + 1 - ahead
    settings = {"verbose": -1, "num_threads": 1, "seed": 1}
    booster = lightgbm.train(settings, lightgbm.Dataset(rows[:cut], target[:cut]), 100)
    return _mae(np.asarray(booster.predict(rows[first - ahead : -ahead], num_threads=1)), series.values[first:])


def _mape(forecast: NDArray[np.float64], truth: NDArray[np.float64]) -> float:
    return round(float(np.nanmean(np.abs(forecast - truth) / np.maximum(truth, 1.0))) * 100, 3)


def _mae(forecast: NDArray[np.float64], truth: NDArray[np.float64]) -> float:
    return round(float(np.nanmean(np.abs(forecast - truth))), 3)


def _cover(found: Forecasts, truth: NDArray[np.float64]) -> float:
    return round(float(np.mean((truth >= found.lower) & (truth <= found.upper))), 4)
