import math

from kgwe.forecast.runtime.replays import WORKLOADS, build_predictor, make_query, make_training_set, order_runs
from kgwe.model.usage.fingerprint import Shape, make_fingerprint
from kgwe.model.usage.history import Run

PRINT = make_fingerprint(
    namespace="ml", owner_kind="Job", owner_name="nightly", image="app:1", shape=Shape(milli_gpus=2000)
)
OTHER = make_fingerprint(
    namespace="ml", owner_kind="Job", owner_name="weekly", image="app:1", shape=Shape(milli_gpus=2000)
)
PRINTS = {PRINT.key: PRINT, OTHER.key: OTHER}


def run(uid: str, start: float, seconds: float | None, *, version: str = "1") -> Run:
    end = None if seconds is None else start + seconds
    return Run(uid, PRINT.key, start, start, end, seen_s=start + 10, version=version, user="ann", gpus=2.0)


def ask(now_s: float, version: str = "1", fingerprint=PRINT):
    return make_query(fingerprint, now_s=now_s, user="ann", gpus=2.0, pods=1, version=version)


def test_stored_runs_answer_for_their_workload():
    predictor = build_predictor([run(str(i), i * 100.0, 50.0) for i in range(10)], PRINTS, now_s=2000.0)
    prediction = predictor.predict(ask(2000.0))
    assert prediction.is_known
    assert 45 < prediction.quantiles[0.5] < 55


def test_a_new_version_starts_from_the_old_one_with_less_confidence():
    runs = [run(str(i), i * 100.0, 50.0) for i in range(4)] + [run("z", 500.0, 50.0, version="2")]
    predictor = build_predictor(runs, PRINTS, now_s=2000.0)
    assert predictor.predict(ask(2000.0, "2")).confidence < predictor.predict(ask(2000.0)).confidence


def test_another_workload_with_the_same_image_is_known():
    predictor = build_predictor([run(str(i), i * 100.0, 50.0) for i in range(4)], PRINTS, now_s=2000.0)
    assert predictor.predict(ask(2000.0, fingerprint=OTHER)).is_known


def test_runs_that_end_later_are_not_known_yet():
    predictor = build_predictor([run("1", 0.0, 5000.0)], PRINTS, now_s=100.0)
    assert not predictor.predict(ask(100.0)).is_known
    assert "1" in predictor.stream.running


def test_runs_with_unusable_times_are_skipped():
    runs = [run("1", math.nan, 5.0), run("2", 10.0, -5.0), run("3", 5.0, 5.0)]
    assert [each.uid for each in order_runs(runs)] == ["3"]


def test_a_run_without_its_fingerprint_is_kept():
    predictor = build_predictor([run("1", 0.0, 50.0)], {}, now_s=100.0)
    assert predictor.predict(ask(100.0)).is_known


def test_running_runs_are_censored_in_the_training_set():
    data = make_training_set([run("1", 0.0, 50.0), run("2", 60.0, None)], PRINTS, now_s=500.0)
    assert data.features.shape == (2, len(WORKLOADS.names))
    assert data.has_ended.tolist() == [True, False]
    assert data.lasted_s.tolist() == [50.0, 440.0]
