"""Run times: predicted ones within the declared ones, which arrive without delaying a pass."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from tests.support.builders.objects import added, make

from kgwe import errors
from kgwe.apps.scheduler.planning.local_predictions import LocalPredictions
from kgwe.apps.scheduler.planning.predictions import PredictedRunTimes
from kgwe.apps.scheduler.planning.refresher import Refresher
from kgwe.apps.scheduler.planning.remote_predictions import read_run_time
from kgwe.apps.scheduler.planning.run_times import RunTimes
from kgwe.cluster.state.cluster_state import ClusterState
from kgwe.cluster.workload.description import describe_workload
from kgwe.cluster.workload.workload import from_kgwe
from kgwe.kube.api import resources
from kgwe.model.usage.description import WorkloadDescription
from kgwe.placement.queue.ask import run_time_from_quantiles
from kgwe.placement.queue.workloads import RunTime
from kgwe.proto import optimizer_pb2 as pb

TRAIN = WorkloadDescription("ml", "train")


class Source:
    def __init__(self, *answers):
        self.answers = list(answers)
        self.asked = []
        self.is_closed = False

    async def predict(self, workloads):
        self.asked.append(list(workloads))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def close(self):
        self.is_closed = True


def _refresher(source, workloads=None):
    applied: list[Any] = []
    outcomes: list[str] = []
    known: Any = {"a": TRAIN} if workloads is None else workloads
    forecast = PredictedRunTimes(source, lambda each: cast("Any", each), applied.append)
    refresher = Refresher(forecast, lambda: known, every_s=60, on_result=outcomes.append)
    return refresher, applied, outcomes


def test_a_prediction_counts_within_what_was_declared():
    times = RunTimes()
    assert times.find("a", None) is None
    assert times.find("a", 100.0) == RunTime(100.0, 200.0)
    times.replace_predictions({"a": RunTime(50.0, 60.0)})
    assert times.find("a", None) == RunTime(50.0, 60.0)
    assert times.find("a", 100.0) == RunTime(50.0, 60.0)
    assert times.find("a", 20.0) == RunTime(20.0, 40.0)


def test_only_noticeable_changes_are_news():
    times = RunTimes()
    assert times.replace_predictions({"a": RunTime(100.0, 200.0)}) == ["a"]
    assert times.replace_predictions({"a": RunTime(105.0, 205.0)}) == []
    assert times.replace_predictions({"a": RunTime(105.0, 300.0)}) == ["a"]
    assert times.replace_predictions({}) == ["a"]


async def test_predictions_are_applied_by_owner_and_unknown_ones_left_out():
    source = Source([RunTime(1.0, 2.0), None])
    refresher, applied, outcomes = _refresher(source, {"a": TRAIN, "b": TRAIN})
    await refresher.refresh()
    assert applied == [{"a": RunTime(1.0, 2.0)}]
    assert outcomes == ["success"]


async def test_a_source_that_is_down_or_broken_changes_nothing():
    source = Source(errors.Transient("down"), ValueError("defect"), [RunTime(1.0, 2.0)])
    refresher, applied, outcomes = _refresher(source)
    for _ in range(3):
        await refresher.refresh()
    assert outcomes == ["failure", "failure", "success"]
    assert len(applied) == 1


async def test_a_stopped_refresher_closes_its_source():
    source = Source([None])
    refresher, _, _ = _refresher(source)
    task = asyncio.create_task(refresher.run())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert source.is_closed


def test_messages_become_run_times():
    known = pb.Prediction(is_known=True, expected_duration_seconds=60, duration_upper_seconds=90, coverage=0.8)
    found = read_run_time(known)
    assert found is not None
    assert found.p50_s == 60
    assert 90 < found.p95_s < 110
    known.duration_quantiles.add(q=0.95, seconds=120)
    found = read_run_time(known)
    assert found is not None
    assert found.p95_s == pytest.approx(120.0)
    assert read_run_time(pb.Prediction(is_known=False, expected_duration_seconds=60)) is None
    assert read_run_time(pb.Prediction(is_known=True)) is None
    nothing = pb.Prediction(is_known=True, expected_duration_seconds=0, coverage=0.8)
    assert read_run_time(nothing) == RunTime(1.0, 1.0)


def test_quantiles_become_run_times():
    assert run_time_from_quantiles({}) is None
    assert run_time_from_quantiles({0.5: 10.0}) is None
    found = run_time_from_quantiles({0.5: 10.0, 0.95: 30.0})
    assert found is not None
    assert found.p95_s == pytest.approx(30.0)
    assert run_time_from_quantiles({0.5: 10.0, 0.9: float("inf")}) is None
    assert run_time_from_quantiles({0.5: 10.0, 0.9: 5.0}) == RunTime(10.0, 10.0)


def _ended(name, seconds, **status):
    meta = {"name": name, "namespace": "ml", "uid": name, "creationTimestamp": "2026-11-01T09:00:00Z"}
    status = {
        "phase": "Succeeded",
        "startTime": "2026-11-01T10:00:00Z",
        "completionTime": f"2026-11-01T10:00:{seconds:02d}Z",
        **status,
    }
    return make(
        resources.GPU_WORKLOAD.type, {"metadata": meta, "spec": {"gpuRequirements": {"count": 1}}, "status": status}
    )


async def test_without_an_optimizer_run_times_come_from_ended_workloads():
    state = ClusterState()
    source = LocalPredictions(state, "image:1", lambda: 1_800_000_000.0)
    asked = describe_workload(from_kgwe(_ended("train-10009", 0, phase="Pending")), "image:1")
    assert asked is not None
    assert await source.predict([asked]) == [None]
    for number, seconds in enumerate((20, 22, 24)):
        state.on_kgwe(added(_ended(f"train-1000{number}", seconds)))
    state.on_kgwe(added(_ended("train-10004", 59, phase="Failed")))
    state.on_kgwe(added(_ended("train-10005", 59, startTime="2027-01-01T00:00:00Z")))
    (found,) = await source.predict([asked])
    assert found is not None
    assert 18 < found.p50_s < 26
