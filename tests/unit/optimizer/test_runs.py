"""Runs, put together from pods."""

from tests.support.builders.optimizer_pods import START_S, read

from kgwe.apps.optimizer.history.runs import RunTracker

NOW_S = START_S + 900


def _track(*facts):
    tracker = RunTracker()
    for each in facts:
        tracker.set_pod(each)
    return tracker


def test_a_running_run_is_censored_and_collected_each_time():
    tracker = _track(read("train-0"), read("train-1"))
    for now_s in (NOW_S, NOW_S + 60):
        (run,) = tracker.collect(now_s).runs
        assert run.is_censored
        assert run.lasted_s == now_s - START_S
        assert (run.pods, run.gpus, run.uid) == (2, 2.0, "ml/uid-train")


def test_a_run_ends_with_its_last_pod_and_is_collected_once():
    tracker = _track(
        read("train-0", phase="Succeeded", ended="2026-11-01T10:05:00Z"),
        read("train-1", phase="Succeeded", ended="2026-11-01T10:10:00Z"),
    )
    (run,) = tracker.collect(NOW_S).runs
    assert (run.lasted_s, run.succeeded) == (600, True)
    assert not tracker.collect(NOW_S).runs


def test_a_run_with_a_failed_pod_failed():
    tracker = _track(
        read("train-0", phase="Succeeded", ended="2026-11-01T10:05:00Z"),
        read("train-1", phase="Failed", ended="2026-11-01T10:10:00Z"),
    )
    (run,) = tracker.collect(NOW_S).runs
    assert run.succeeded is False


def test_a_pod_that_disappears_before_its_end_does_not_end_its_run():
    tracker = _track(read("train-0"))
    (run,) = tracker.collect(NOW_S).runs
    tracker.drop_pod("pod-train-0")
    assert not tracker.collect(NOW_S + 60).runs
    assert run.is_censored
    assert not tracker.pods


def test_an_ended_pod_that_is_deleted_still_ends_its_run():
    tracker = _track(read("train-0", phase="Succeeded", ended="2026-11-01T10:05:00Z"))
    tracker.drop_pod("pod-train-0")
    (run,) = tracker.collect(NOW_S).runs
    assert run.lasted_s == 300
    assert not tracker.collect(NOW_S).runs


def test_a_pod_before_its_start_is_no_run():
    tracker = _track(read("train-0", phase="Pending", started=None))
    assert not tracker.collect(NOW_S).runs


def test_a_released_pod_is_a_run_of_its_own():
    tracker = _track(read("train-0"), read("train-1"))
    tracker.set_pod(read("train-1", owner=""))
    runs = {run.uid: run.pods for run in tracker.collect(NOW_S).runs}
    assert runs == {"ml/uid-train": 1, "ml/pod-train-1": 1}


def test_a_recreated_pod_keeps_its_place_when_the_old_one_goes():
    tracker = _track(read("train-0", uid="old"), read("train-0", uid="new"))
    tracker.drop_pod("old")
    assert [each.uid for each in tracker.pods.values()] == ["new"]


def test_out_of_memory_is_collected_with_its_fingerprint():
    oom = {"reason": "OOMKilled", "exitCode": 137}
    tracker = _track(read(phase="Failed", ended="2026-11-01T10:10:00Z", terminated=oom, message="CUDA out of memory"))
    batch = tracker.collect(NOW_S)
    (fact,) = batch.out_of_memory
    assert (fact.uid, fact.fingerprint) == ("pod-train-0", batch.fingerprints[0].key)


def test_the_prediction_is_made_once_at_the_start():
    asked = []

    def predict(run):
        asked.append(run.uid)
        return 77.0

    tracker = RunTracker(predict=predict)
    tracker.set_pod(read("train-0"))
    for now_s in (NOW_S, NOW_S + 60):
        (run,) = tracker.collect(now_s).runs
        assert run.predicted_s == 77.0
    assert asked == ["ml/uid-train"]


def test_a_pod_of_another_namespace_that_claims_the_controller_is_another_run():
    tracker = _track(read("train-0", phase="Succeeded", ended="2026-11-01T10:05:00Z"), read("evil-0", namespace="evil"))
    runs = {run.uid: run.is_censored for run in tracker.collect(NOW_S).runs}
    assert runs == {"ml/uid-train": False, "evil/uid-train": True}
