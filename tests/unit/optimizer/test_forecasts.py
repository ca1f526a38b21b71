"""Forecasts about workloads: what is known, what is not, and prices."""

from __future__ import annotations

import pytest
from tests.support.builders.assessments import assessment, facts
from tests.support.builders.usage import NOON_S, run

from kgwe import errors
from kgwe.apps.optimizer.forecasts import WorkloadForecasts, describe_facts
from kgwe.apps.optimizer.history.runs import RunTracker
from kgwe.apps.optimizer.run_times import RunTimeModel
from kgwe.apps.optimizer.waste.detector import Assessment
from kgwe.apps.optimizer.waste.needs import NO_HISTORY
from kgwe.forecast.waste.recommend import Prices
from kgwe.forecast.waste.states import State
from kgwe.model.usage.description import WorkloadDescription
from kgwe.proto import optimizer_pb2 as pb

POD = facts()
NOW_S = NOON_S + 9000.0


class Bed:
    def __init__(self, runs: int = 3) -> None:
        self.run_times = RunTimeModel()
        key = POD.fingerprint.key
        history = [run(f"r{n}", key, NOON_S + 1000.0 * n, 600, user="team", gpus=1.0) for n in range(runs)]
        self.run_times.load(history, {key: POD.fingerprint}, NOW_S)
        self.tracker = RunTracker()
        self.tracker.set_pod(POD)
        self.assessment = Assessment()
        self.seen: list[bool] = []
        self.forecasts = WorkloadForecasts(
            self.run_times,
            self.tracker,
            Prices({"L40S": 1.5}, {}),
            histories=lambda _: NO_HISTORY,
            hints=lambda _workload, _nodes: [],
            assessment=lambda: self.assessment,
            on_prediction=lambda is_known, _seconds: self.seen.append(is_known),
        )


def test_a_workload_with_history_has_a_prediction():
    bed = Bed()
    (found,) = bed.forecasts.predict([describe_facts(POD, 1)], NOW_S)
    assert (found.is_known, found.runs, found.fingerprint) == (True, 3, POD.fingerprint.key)
    assert found.duration_lower_seconds <= found.expected_duration_seconds <= found.duration_upper_seconds
    assert [each.q for each in found.duration_quantiles] == [0.1, 0.5, 0.9]
    assert bed.seen == [True]


def test_a_workload_without_history_has_reasons_only():
    bed = Bed()
    (found,) = bed.forecasts.predict([WorkloadDescription("x", "y", owner_kind="Job", milli_gpus=3000)], NOW_S)
    assert not found.is_known
    assert found.reasoning
    assert not found.HasField("expected_duration_seconds")
    assert not found.duration_quantiles
    assert (bed.forecasts.made, bed.forecasts.unknown) == (1, 1)


def test_predictions_are_in_the_order_of_the_workloads():
    known, unknown = describe_facts(POD, 1), WorkloadDescription("x", "y", owner_kind="Job")
    found = Bed().forecasts.predict([unknown, known, unknown], NOW_S)
    assert [each.is_known for each in found] == [False, True, False]


@pytest.mark.parametrize(("model", "cost"), [("L40S", 6.0), ("T4", None), ("", None)])
def test_the_price_is_known_where_the_model_has_one(model, cost):
    work = WorkloadDescription("x", "y", owner_kind="Job", milli_gpus=2000, pods=2, gpu_model=model)
    (found,) = Bed().forecasts.predict([work], NOW_S)
    assert (found.estimated_cost_per_hour if found.HasField("estimated_cost_per_hour") else None) == cost


def test_a_pod_is_described_by_its_name_and_by_that_of_its_owner():
    bed = Bed()
    bed.assessment = assessment([(POD, State.IDLE)], NOW_S)
    for name in ("train-0", "train"):
        reasons, prediction = bed.forecasts.describe_pod("team", name, NOW_S)
        assert reasons == ["train-0 is idle (Measured).", "3 earlier runs of the same work ended."]
        assert prediction is not None
        assert prediction.is_known


def test_a_pod_that_does_not_exist_is_not_found():
    with pytest.raises(errors.NotFound, match="no GPU pod or workload train-0 in namespace other"):
        Bed().forecasts.describe_pod("other", "train-0", NOW_S)


def test_the_fingerprint_of_a_pod_is_that_of_its_description():
    assert describe_facts(POD, 1).make_fingerprint().key == POD.fingerprint.key


def test_metrics_count_predictions():
    bed = Bed()
    bed.forecasts.predict([describe_facts(POD, 1), WorkloadDescription("x", "y")], NOW_S)
    reply = pb.MetricsReply()
    bed.forecasts.fill_metrics(reply)
    assert (reply.predictions, reply.predictions_unknown, reply.runs) == (2, 1, 3)
