import numpy as np
import pytest

from kgwe.forecast.runtime.conformal import AdaptiveIntervals, calibrate
from kgwe.forecast.runtime.drift import DriftDetector
from kgwe.forecast.runtime.predictor import Predictor
from kgwe.forecast.runtime.query import Query
from kgwe.forecast.runtime.reasons import name_subject
from kgwe.forecast.runtime.schema import Schema

SCHEMA = Schema(("job", "team"), ("GPUs",))


def ask(at_s: float, job: int = 1, gpus: float = 1.0) -> Query:
    return Query(at_s, (f"j|{job}", f"t|{job % 3}"), f"u{job % 4}", 1, (gpus,))


def feed(predictor: Predictor, count: int, seconds: float = 100.0, first: int = 0) -> None:
    for number in range(first, first + count):
        predictor.submit(str(number), ask(number * 1000.0))
        predictor.end(str(number), seconds, number * 1000.0 + seconds)


def test_without_history_the_answer_is_unknown():
    prediction = Predictor(SCHEMA).predict(ask(0.0))
    assert not prediction.is_known
    assert prediction.source == "unknown"
    assert prediction.reasons


def test_runs_that_share_no_key_leave_a_query_unknown():
    predictor = Predictor(SCHEMA)
    feed(predictor, 5)
    assert not predictor.predict(ask(9000.0, job=2)).is_known


def test_history_alone_answers_with_its_quantiles():
    predictor = Predictor(SCHEMA)
    feed(predictor, 20)
    prediction = predictor.predict(ask(30_000.0))
    assert prediction.source == "history"
    assert prediction.median_s == pytest.approx(100.0, rel=0.06)
    assert prediction.lower_s <= prediction.quantiles[0.5] <= prediction.upper_s
    assert 0 < prediction.confidence <= 1


def test_a_new_job_of_a_known_team_has_less_confidence():
    predictor = Predictor(SCHEMA)
    feed(predictor, 2)
    few = predictor.predict(ask(9000.0, job=4))
    feed(predictor, 40, first=10)
    assert few.is_known
    assert few.confidence < predictor.predict(ask(60_000.0)).confidence


def test_a_long_running_run_raises_the_answer_of_history():
    predictor = Predictor(SCHEMA)
    feed(predictor, 5)
    before = predictor.predict(ask(9000.0)).upper_s
    predictor.submit("long", ask(9000.0))
    assert predictor.predict(ask(19_000.0)).upper_s > before


def test_a_model_answers_with_three_reasons(model):
    predictor = Predictor(SCHEMA, model)
    feed(predictor, 30)
    prediction = predictor.predict(ask(40_000.0))
    assert prediction.source == "model"
    assert 1 <= len(prediction.reasons) <= 3
    assert prediction.reasons[0].startswith("30 similar runs")
    assert prediction.lower_s <= prediction.quantiles[0.5] <= prediction.upper_s


def test_every_feature_has_a_plain_name():
    for name in SCHEMA.names:
        assert "." not in name_subject(name)


def test_a_prediction_remembers_nothing(model):
    predictor = Predictor(SCHEMA, model)
    feed(predictor, 10)
    query = ask(20_000.0)
    assert predictor.predict(query) == predictor.predict(query)


def test_the_model_is_dropped_when_it_no_longer_fits(model):
    predictor = Predictor(SCHEMA, model)
    feed(predictor, 30)
    assert predictor.drift is not None
    for _ in range(100):
        predictor.drift.observe(3.0, 0.1)
    prediction = predictor.predict(ask(40_000.0))
    assert prediction.source == "history"
    assert "no longer fits" in prediction.reasons[1]


def test_a_model_that_fits_again_is_used_again():
    drift = DriftDetector(0.2)
    for _ in range(100):
        drift.observe(2.0, 0.2)
    assert drift.has_drifted
    for _ in range(2000):
        drift.observe(0.1, 0.2)
    assert not drift.has_drifted


def test_errors_as_large_as_in_training_are_no_drift():
    drift = DriftDetector(0.2)
    for _ in range(1000):
        drift.observe(0.2, 0.19)
    assert not drift.has_drifted


def test_errors_that_history_shares_are_no_drift():
    drift = DriftDetector(0.2)
    for _ in range(1000):
        drift.observe(0.9, 1.0)
    assert not drift.has_drifted


def test_calibrated_intervals_cover_what_they_promise():
    random = np.random.default_rng(3)
    median = random.normal(4, 1, 4000)
    truth = median + random.normal(0, 0.3, 4000)
    table = calibrate(median[:2000], median[:2000], median[:2000], truth[:2000], 0.8)
    intervals = AdaptiveIntervals(table)
    inside = 0
    for middle, value in zip(median[2000:], truth[2000:], strict=True):
        low, high = intervals.widen(middle, middle, middle)
        inside += low <= value <= high
    assert 0.77 < inside / 2000 < 0.83


def test_intervals_follow_when_errors_grow():
    random = np.random.default_rng(4)
    median = np.full(500, 4.0)
    table = calibrate(median, median, median, median + random.normal(0, 0.1, 500), 0.8)
    intervals = AdaptiveIntervals(table)
    inside = []
    for error in random.normal(0, 0.5, 3000):
        interval = intervals.widen(4.0, 4.0, 4.0)
        inside.append(interval[0] <= 4.0 + error <= interval[1])
        intervals.observe(4.0, interval, 4.0 + error)
    assert 0.77 < np.mean(inside[1000:]) < 0.83


def test_an_interval_always_contains_the_median():
    table = calibrate(np.zeros(0), np.zeros(0), np.zeros(0), np.zeros(0), 0.8)
    low, high = AdaptiveIntervals(table).widen(4.0, 5.0, 3.0)
    assert low <= 4.0 <= high
