"""Forecasts of a demand series: boosted trees and a linear model on differences, with intervals of stated coverage."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kgwe.forecast.demand.series import DemandSeries, describe_steps, find_anchor, take_log

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ask = Callable[[Floats], Floats]

COVERAGE: Final = 0.9
LEAST_ROWS: Final = 200
_LATER: Final = 0.25
_RIDGE: Final = 1000.0
_STEP: Final = 0.03
# Far ahead fewer independent days are known, so the simpler linear model counts more: hardly at an hour, most at a day.
_LINEAR_SHARE: Final = 0.8
# The linear model is fitted again with less weight on large errors, as often as this.
_REWEIGHTINGS: Final = 5
_TREES: Final = {"objective": "l1", "num_leaves": 15, "learning_rate": 0.025, "extra_trees": True}
_ROUNDS: Final = 400
# Models with other random numbers that are averaged.
_MODELS: Final = 4
_TAIL: Final = {"objective": "quantile", "num_leaves": 6, "learning_rate": 0.06}
_TAIL_ROUNDS: Final = 120
_COMMON: Final = {
    "min_data_in_leaf": 30,
    "feature_fraction": 0.4,
    "bagging_fraction": 0.7,
    "bagging_freq": 1,
    "lambda_l2": 5.0,
    "max_bin": 63,
    "verbose": -1,
    "deterministic": True,
    "force_col_wise": True,
}


@dataclass(frozen=True, slots=True)
class DemandForecast:
    """Demand some steps ahead. `is_known` is False where too little history is known."""

    is_known: bool
    value: float = float("nan")
    lower: float = float("nan")
    upper: float = float("nan")
    coverage: float = COVERAGE
    source: str = "unknown"
    """`model`, `linear` (LightGBM cannot be loaded) or `unknown`."""


@dataclass(slots=True)
class _Fitted:
    """The models of one horizon, and the corrections of its interval in log units."""

    ahead: int
    windows: tuple[int, ...]
    """Steps of the anchors. The forecast is the mean over them; the interval is a difference to the first."""
    middles: tuple[Ask, ...]
    low: Ask
    high: Ask
    below: float = 0.0
    above: float = 0.0


@dataclass(slots=True)
class DemandForecaster:
    """Forecasts of one series. Fit it again when new steps are known; corrections of intervals are kept."""

    seed: int = 1
    threads: int = 1
    source: str = "unknown"
    _fitted: dict[int, _Fitted] = field(default_factory=dict)

    def fit(self, series: DemandSeries, horizons: tuple[int, ...]) -> None:
        """Learn to forecast each number of steps ahead. A horizon with too little history stays unknown."""
        lightgbm = _load_lightgbm()
        self.source = "linear" if lightgbm is None else "model"
        for ahead in horizons:
            before = self._fitted.get(ahead)
            fitted = _fit_horizon(lightgbm, series, ahead, (self.seed, self.threads), calibrate=before is None)
            if fitted is None:
                continue
            if before is not None:
                fitted.below, fitted.above = before.below, before.above
            self._fitted[ahead] = fitted

    def predict(self, series: DemandSeries, ahead: int) -> DemandForecast:
        """Return the forecast `ahead` steps after the last step of a series."""
        return self.predict_all(series, ahead, len(series.values) - 1)[0]

    def predict_all(self, series: DemandSeries, ahead: int, first: int) -> list[DemandForecast]:
        """Return the forecasts made at the end of each step from `first` on. Each uses only the steps up to its own."""
        fitted = self._fitted.get(ahead)
        if fitted is None:
            return [DemandForecast(is_known=False)] * (len(series.values) - first)
        # No feature looks further back than this.
        begin = max(first - (ahead // series.day + 16) * series.day, 0)
        series, first = series.tail(begin), first - begin
        anchors = [find_anchor(take_log(series.values), window) for window in fitted.windows]
        rows = [describe_steps(series, anchor, ahead)[first:] for anchor in anchors]
        bases = [anchor[first:] for anchor in anchors]
        found = [ask(seen) + base for ask, seen, base in zip(fitted.middles, rows, bases, strict=True)]
        middle = np.mean(found, axis=0)
        low = np.minimum(fitted.low(rows[0]) + bases[0] - fitted.below, middle)
        high = np.maximum(fitted.high(rows[0]) + bases[0] + fitted.above, middle)
        columns = [np.maximum(np.expm1(each), 0.0) for each in (middle, low, high)]
        return [
            DemandForecast(True, float(value), float(lower), float(upper), COVERAGE, self.source)  # noqa: FBT003 -- positional for speed
            if np.isfinite(value)
            else DemandForecast(is_known=False)
            for value, lower, upper in zip(*columns, strict=True)
        ]

    def observe(self, ahead: int, forecast: DemandForecast, actual: float) -> None:
        """Correct the interval of a horizon by what came: out after a miss, in after a hit."""
        fitted = self._fitted.get(ahead)
        if fitted is None or not forecast.is_known or not np.isfinite(actual):
            return
        scale = _STEP * max(np.log1p(forecast.upper) - np.log1p(forecast.lower), 0.02)
        miss = (1 - COVERAGE) / 2
        fitted.below += scale * ((actual < forecast.lower) - miss)
        fitted.above += scale * ((actual > forecast.upper) - miss)


def _load_lightgbm() -> Any:
    try:
        import lightgbm  # noqa: PLC0415 -- slow to import, and absent where only linear forecasts are wanted
    except (ImportError, OSError):
        return None
    return lightgbm


def choose_windows(series: DemandSeries, ahead: int) -> tuple[int, ...]:
    """Return the steps whose mean is the anchor: of the windows that are tried, the best one step ahead.

    That is one step for smooth demand, and a day for bursts. A day or more ahead no anchor is close, so all are used.
    """
    logs = take_log(series.values)
    windows = (1, 6, series.day)
    found = [np.abs(np.expm1(find_anchor(logs, window)[:-1]) - series.values[1:]) for window in windows]
    errors = [float(np.nanmean(each)) if np.isfinite(each).any() else float("inf") for each in found]
    best = windows[int(np.argmin(errors))]
    return (best, *(window for window in windows if window != best)) if ahead >= series.day else (best,)


def _fit_horizon(
    lightgbm: Any, series: DemandSeries, ahead: int, options: tuple[int, int], *, calibrate: bool
) -> _Fitted | None:
    if len(series.values) <= ahead + LEAST_ROWS:
        return None
    windows = choose_windows(series, ahead)
    share = _LINEAR_SHARE * min(ahead / series.day, 1.0) ** 2
    sets = [_gather_rows(series, window, ahead) for window in windows]
    rows, target = sets[0]
    if len(target) < LEAST_ROWS:
        return None
    middles = tuple(_fit_middle(lightgbm, *each, share, options) for each in sets)
    low, high = _fit_ends(lightgbm, rows, target, options)
    result = _Fitted(ahead, windows, middles, low, high)
    if calibrate:
        cut = int(len(target) * (1 - _LATER))
        low, high = _fit_ends(lightgbm, rows[: cut - ahead], target[: cut - ahead], options)
        # Errors of overlapping forecasts go together: `ahead` of them say as much as one.
        independent = max((len(target) - cut) / ahead, 1.0)
        level = min((1 - (1 - COVERAGE) / 2) * (1 + 1 / independent), 1.0)
        result.below = float(np.quantile(low(rows[cut:]) - target[cut:], level))
        result.above = float(np.quantile(target[cut:] - high(rows[cut:]), level))
    return result


def _gather_rows(series: DemandSeries, window: int, ahead: int) -> tuple[Floats, Floats]:
    """Return the features of the steps whose outcome is known, and the outcomes as differences to the anchor."""
    logs = take_log(series.values)
    anchor = find_anchor(logs, window)
    target = logs[ahead:] - anchor[:-ahead]
    usable = np.isfinite(target)
    # The first two weeks have no history of their own.
    usable[: min(14 * series.day, len(usable) // 3)] = False
    return describe_steps(series, anchor, ahead)[:-ahead][usable], target[usable]


def _fit_middle(lightgbm: Any, rows: Floats, target: Floats, share: float, options: tuple[int, int]) -> Ask:
    """Return the mean of boosted models, with a share of the linear one; the linear one alone without LightGBM."""
    linear = _fit_linear(rows, target)
    if lightgbm is None:
        return linear
    settings = {**_TREES, "num_threads": options[1]}
    trees = [
        _boost(lightgbm, rows, target, {**settings, "seed": options[0] + number}, _ROUNDS) for number in range(_MODELS)
    ]

    def ask(new: Floats) -> Floats:
        boosted = np.mean([tree(new) for tree in trees], axis=0)
        return np.asarray((1 - share) * boosted + share * linear(new), dtype=np.float64)

    return ask


def _fit_ends(lightgbm: Any, rows: Floats, target: Floats, options: tuple[int, int]) -> tuple[Ask, Ask]:
    """Return functions for the lower and the upper end of the interval."""
    tail = (1 - COVERAGE) / 2
    if lightgbm is None:
        linear = _fit_linear(rows, target)
        residual = target - linear(rows)
        low, high = np.quantile(residual, tail), np.quantile(residual, 1 - tail)
        return lambda new: linear(new) + low, lambda new: linear(new) + high
    settings = {**_TAIL, "seed": options[0], "num_threads": options[1]}
    low_end = _boost(lightgbm, rows, target, {**settings, "alpha": tail}, _TAIL_ROUNDS)
    return low_end, _boost(lightgbm, rows, target, {**settings, "alpha": 1 - tail}, _TAIL_ROUNDS)


def _boost(lightgbm: Any, rows: Floats, target: Floats, settings: dict[str, Any], rounds: int) -> Ask:
    booster = lightgbm.train({**_COMMON, **settings}, lightgbm.Dataset(rows, target), rounds)
    threads = settings["num_threads"]
    return lambda new: np.asarray(booster.predict(new, num_threads=threads), dtype=np.float64)


def _fit_linear(rows: Floats, target: Floats) -> Ask:
    """Return a ridge regression on absolute errors: demand jumps. Unknown features count as their mean."""
    mean = np.array([np.mean(column[np.isfinite(column)]) if np.isfinite(column).any() else 0.0 for column in rows.T])
    filled = np.where(np.isfinite(rows), rows, mean) - mean
    scale = filled.std(axis=0) + 1e-9
    filled /= scale
    centre, counts = float(target.mean()), np.ones(len(target))
    for left in range(_REWEIGHTINGS, -1, -1):
        weighted = filled * counts[:, np.newaxis]
        weights = np.linalg.solve(filled.T @ weighted + _RIDGE * np.eye(rows.shape[1]), weighted.T @ (target - centre))
        if left:
            error = target - centre - filled @ weights
            size = np.abs(error)
            usual = float(np.median(size)) + 1e-9
            # An error counts by its size, unless it is small beside the usual one.
            counts = usual / np.maximum(size, 0.3 * usual)
            centre += float(np.average(error, weights=counts))
    return lambda new: np.asarray((np.where(np.isfinite(new), new, mean) - mean) / scale @ weights + centre)
