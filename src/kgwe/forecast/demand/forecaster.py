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
# Far ahead fewer independent days are known, so the simpler linear model counts more: most at a day.
_LINEAR_SHARE: Final = 0.8
_TREES: Final = (
    ({"objective": "l1", "num_leaves": 6, "learning_rate": 0.05}, 250),
    ({"objective": "l1", "num_leaves": 15, "learning_rate": 0.04}, 150),
    ({"objective": "l1", "num_leaves": 15, "learning_rate": 0.05, "extra_trees": True}, 200),
)
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
    window: int
    middle: Ask
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
        anchor = find_anchor(take_log(series.values), fitted.window)
        rows = describe_steps(series, anchor, ahead)[first:]
        base = anchor[first:]
        middle = fitted.middle(rows) + base
        low = np.minimum(fitted.low(rows) + base - fitted.below, middle)
        high = np.maximum(fitted.high(rows) + base + fitted.above, middle)
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


def choose_window(series: DemandSeries, ahead: int) -> int:
    """Return how many last steps give the best plain forecast: one for smooth demand, a day for bursts."""
    logs = take_log(series.values)
    windows = (1, 6, series.day)
    found = [np.abs(np.expm1(find_anchor(logs, window)[:-ahead]) - series.values[ahead:]) for window in windows]
    return windows[
        int(np.argmin([float(np.nanmean(each)) if np.isfinite(each).any() else float("inf") for each in found]))
    ]


def _fit_horizon(
    lightgbm: Any, series: DemandSeries, ahead: int, options: tuple[int, int], *, calibrate: bool
) -> _Fitted | None:
    if len(series.values) <= ahead + LEAST_ROWS:
        return None
    window = choose_window(series, ahead)
    anchor = find_anchor(take_log(series.values), window)
    rows = describe_steps(series, anchor, ahead)[:-ahead]
    target = take_log(series.values)[ahead:] - anchor[:-ahead]
    usable = np.isfinite(target)
    # The first two weeks have no history of their own.
    usable[: min(14 * series.day, len(usable) // 3)] = False
    rows, target = rows[usable], target[usable]
    if len(target) < LEAST_ROWS:
        return None
    days = ahead / series.day
    fitted = _fit_models(lightgbm, rows, target, days, options)
    result = _Fitted(ahead, window, *fitted)
    if calibrate:
        cut = int(len(target) * (1 - _LATER))
        _, low, high = _fit_models(lightgbm, rows[: cut - ahead], target[: cut - ahead], days, options)
        # Errors of overlapping forecasts go together: `ahead` of them say as much as one.
        independent = max((len(target) - cut) / ahead, 1.0)
        level = min((1 - (1 - COVERAGE) / 2) * (1 + 1 / independent), 1.0)
        result.below = float(np.quantile(low(rows[cut:]) - target[cut:], level))
        result.above = float(np.quantile(target[cut:] - high(rows[cut:]), level))
    return result


def _fit_models(
    lightgbm: Any, rows: Floats, target: Floats, days: float, options: tuple[int, int]
) -> tuple[Ask, Ask, Ask]:
    """Return functions for the middle, the lower and the upper end."""
    linear = _fit_linear(rows, target)
    if lightgbm is None:
        tail = (1 - COVERAGE) / 2
        residual = target - linear(rows)
        low, high = np.quantile(residual, tail), np.quantile(residual, 1 - tail)
        return linear, lambda new: linear(new) + low, lambda new: linear(new) + high
    common = {**_COMMON, "seed": options[0], "num_threads": options[1]}

    def train(parameters: dict[str, Any], rounds: int) -> Ask:
        booster = lightgbm.train({**common, **parameters}, lightgbm.Dataset(rows, target), rounds)
        return lambda new: np.asarray(booster.predict(new, num_threads=options[1]), dtype=np.float64)

    trees = [train({**parameters, "seed": options[0] + i}, rounds) for i, (parameters, rounds) in enumerate(_TREES)]
    share = _LINEAR_SHARE * min(days, 1.0)

    def middle(new: Floats) -> Floats:
        boosted = np.mean([tree(new) for tree in trees], axis=0)
        return np.asarray((1 - share) * boosted + share * linear(new), dtype=np.float64)

    return middle, train({**_TAIL, "alpha": 0.05}, _TAIL_ROUNDS), train({**_TAIL, "alpha": 0.95}, _TAIL_ROUNDS)


def _fit_linear(rows: Floats, target: Floats) -> Ask:
    """Return a ridge regression. Unknown features count as their mean."""
    mean = np.array([np.mean(column[np.isfinite(column)]) if np.isfinite(column).any() else 0.0 for column in rows.T])
    filled = np.where(np.isfinite(rows), rows, mean) - mean
    scale = filled.std(axis=0) + 1e-9
    filled /= scale
    centre = target.mean()
    weights = np.linalg.solve(filled.T @ filled + _RIDGE * np.eye(rows.shape[1]), filled.T @ (target - centre))
    return lambda new: np.asarray((np.where(np.isfinite(new), new, mean) - mean) / scale @ weights + centre)
