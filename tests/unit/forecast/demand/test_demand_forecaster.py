import builtins

import numpy as np
import pytest

from kgwe import errors
from kgwe.forecast.demand.forecaster import DemandForecaster, choose_windows
from kgwe.forecast.demand.series import DemandSeries, describe_steps, fill_forward, find_anchor, shift, take_log


def make_series(days: int = 40, noise: float = 0.02, seed: int = 1) -> DemandSeries:
    """Demand that is high by day and low at night."""
    random = np.random.default_rng(seed)
    hours = np.arange(days * 24)
    values = 1000 * (1.5 + np.sin(2 * np.pi * hours / 24)) * np.exp(random.normal(0, noise, len(hours)))
    return DemandSeries(values, 3600.0, 0.0, {"jobs": values / 2})


@pytest.fixture(scope="module")
def fitted() -> DemandForecaster:
    forecaster = DemandForecaster()
    forecaster.fit(make_series().head(35 * 24), (6,))
    return forecaster


def test_a_daily_pattern_is_learnt(fitted):
    series = make_series()
    made = fitted.predict_all(series.head(len(series.values) - 6), 6, 35 * 24 - 1)
    truth = series.values[35 * 24 + 5 :]
    ours = np.mean(np.abs([forecast.value for forecast in made] - truth) / truth)
    persistence = np.mean(np.abs(series.values[35 * 24 - 1 : -6] - truth) / truth)
    assert ours < 0.04 < persistence


def test_the_interval_contains_the_forecast(fitted):
    forecast = fitted.predict(make_series(), 6)
    assert forecast.is_known
    assert 0 <= forecast.lower <= forecast.value <= forecast.upper


def test_a_forecast_depends_only_on_the_past(fitted):
    series = make_series()
    changed = DemandSeries(
        np.concatenate([series.values[:900], series.values[900:] * 3]), 3600.0, 0.0, dict(series.companions)
    )
    assert fitted.predict(series.head(900), 6) == fitted.predict(changed.head(900), 6)
    assert fitted.predict_all(series, 6, 890)[:10] == fitted.predict_all(changed, 6, 890)[:10]


def test_a_horizon_that_was_not_fitted_is_unknown(fitted):
    assert not fitted.predict(make_series(), 7).is_known


def test_a_short_series_is_unknown():
    forecaster = DemandForecaster()
    forecaster.fit(make_series(days=5), (1,))
    assert not forecaster.predict(make_series(days=5), 1).is_known


def test_misses_widen_the_interval():
    forecaster = DemandForecaster()
    series = make_series(days=25)
    forecaster.fit(series, (1,))
    before = forecaster.predict(series, 1)
    for _ in range(20):
        forecaster.observe(1, before, before.upper * 2)
    assert forecaster.predict(series, 1).upper > before.upper


def test_an_unknown_outcome_teaches_nothing(fitted):
    before = fitted.predict(make_series(), 6)
    fitted.observe(6, before, float("nan"))
    assert fitted.predict(make_series(), 6) == before


def test_gaps_leave_a_forecast_possible():
    series = make_series(days=25)
    values = series.values.copy()
    values[::17] = np.nan
    values[-1] = np.nan
    gapped = DemandSeries(values, 3600.0)
    forecaster = DemandForecaster()
    forecaster.fit(gapped, (1,))
    forecast = forecaster.predict(gapped, 1)
    assert forecast.is_known
    assert forecast.value == pytest.approx(series.values[-1], rel=0.5)


def test_without_lightgbm_the_linear_model_answers(monkeypatch):
    real = builtins.__import__

    def refuse(name, *arguments, **options):
        if name == "lightgbm":
            raise OSError("libgomp.so.1: cannot open shared object file")
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", refuse)
    forecaster = DemandForecaster()
    forecaster.fit(make_series(days=25), (1,))
    forecast = forecaster.predict(make_series(days=25), 1)
    assert forecast.source == "linear"
    assert forecast.is_known


def test_bursts_are_forecast_from_a_longer_mean_than_smooth_demand():
    random = np.random.default_rng(2)
    bursts = DemandSeries(random.exponential(1, 2000) ** 4, 3600.0)
    smooth = DemandSeries(1000 * np.exp(np.cumsum(random.normal(0, 0.01, 2000))), 3600.0)
    assert choose_windows(bursts, 1) > choose_windows(smooth, 1) == (1,)


def test_features_look_back_only():
    series = make_series(days=20)
    logs = take_log(series.values)
    whole = describe_steps(series, find_anchor(logs, 1), 6)
    part = describe_steps(series.head(400), find_anchor(logs[:400], 1), 6)
    np.testing.assert_allclose(whole[:400], part, rtol=1e-9, atol=1e-9)


def test_negative_demand_is_unknown():
    assert np.isnan(take_log(np.array([-1.0]))).all()


def test_a_shift_beyond_the_series_is_unknown():
    assert np.isnan(shift(np.array([1.0, 2.0]), 5)).all()


def test_a_gap_is_filled_from_the_past():
    assert fill_forward(np.array([1.0, np.nan, 3.0])).tolist() == [1.0, 1.0, 3.0]


def test_companions_of_another_length_are_refused():
    with pytest.raises(errors.Permanent, match="length"):
        DemandSeries(np.ones(3), 3600.0, 0.0, {"jobs": np.ones(2)})
