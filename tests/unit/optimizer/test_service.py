"""Every call of the service over a real gRPC connection: answers, limits and bad values."""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.builders.assessments import assessment, facts, found
from tests.support.builders.usage import NOON_S, run

from kgwe import errors
from kgwe.apps.optimizer.forecasts import WorkloadForecasts, describe_facts
from kgwe.apps.optimizer.history.runs import RunTracker
from kgwe.apps.optimizer.inbox import TelemetryInbox
from kgwe.apps.optimizer.run_times import RunTimeModel
from kgwe.apps.optimizer.service import OptimizerService, encode_finding
from kgwe.apps.optimizer.waste.detector import Assessed, Assessment
from kgwe.apps.optimizer.waste.needs import NO_HISTORY
from kgwe.cli import optimizer_access
from kgwe.forecast.waste.findings import Kind
from kgwe.forecast.waste.recommend import Prices
from kgwe.forecast.waste.states import State
from kgwe.optimizerapi.calls import CALLS, SERVICE
from kgwe.optimizerapi.client import MAX_BATCH, Access, OptimizerClient
from kgwe.optimizerapi.messages import encode_workload
from kgwe.proto import optimizer_pb2 as pb
from kgwe.rpc import server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

NOW_S = NOON_S + 9000.0
POD = facts()
TEXTS = [each.name for each in pb.Workload.DESCRIPTOR.fields if each.type == each.TYPE_STRING and not each.is_repeated]


class Sink:
    def push(self, scrape: Any, at_s: float) -> None:
        pass


class Bed:
    def __init__(self) -> None:
        run_times, tracker = RunTimeModel(), RunTracker()
        tracker.set_pod(POD)
        key = POD.fingerprint.key
        run_times.load([run(of=key, lasted_s=600, user="team", gpus=1.0)], {key: POD.fingerprint}, NOW_S)
        self.assessment = Assessment()
        self.looked_back: list[float] = []
        self.loaded: list[str] = []
        self.inbox = TelemetryInbox(Sink(), size=10, find_node=lambda _: None, now=lambda: NOW_S)
        forecasts = WorkloadForecasts(
            run_times,
            tracker,
            Prices({}, {}),
            histories=lambda _: NO_HISTORY,
            hints=lambda _workload, _nodes: [],
            assessment=lambda: self.assessment,
        )
        self.service = OptimizerService(
            forecasts,
            self.inbox,
            assessment=lambda: self.assessment,
            assess=self._assess,
            load_histories=self._load_histories,
            now=lambda: NOW_S,
            find_cluster_uid=lambda: "uid-1",
        )
        self.client = OptimizerClient(Access(""))

    async def _load_histories(self, keys: Sequence[str]) -> None:
        self.loaded += keys

    async def _assess(self, lookback_s: float) -> Assessment:
        self.looked_back.append(lookback_s)
        return assessment([(POD, State.IDLE_HOLDING)], NOW_S)


@contextlib.asynccontextmanager
async def serving(bed: Bed) -> AsyncIterator[OptimizerClient]:
    async with (
        server.serving([server.Service(SERVICE, CALLS, bed.service)], "127.0.0.1:0") as port,
        OptimizerClient(Access(f"127.0.0.1:{port}", deadline_s=60.0)) as client,
    ):
        bed.client = client
        yield client


@pytest.fixture
async def bed() -> AsyncIterator[Bed]:
    made = Bed()
    async with serving(made):
        yield made


def workload(**changes: Any) -> pb.Workload:
    message = encode_workload(describe_facts(POD, 1))
    for name, value in changes.items():
        setattr(message, name, value)
    return message


async def test_predictions_are_in_the_order_of_the_request(bed: Bed):
    found = await bed.client.predict([workload(image="other", namespace="x"), workload()])
    assert [each.is_known for each in found] == [False, True]
    assert await bed.client.predict([]) == []


async def test_more_workloads_than_one_request_takes_are_sent_in_several(bed: Bed):
    assert len(await bed.client.predict([workload()] * (MAX_BATCH + 1))) == MAX_BATCH + 1
    with pytest.raises(errors.Permanent, match="the most is 1000"):
        await bed.client._call(
            "PredictResources", pb.PredictRequest(workloads=[workload()] * (MAX_BATCH + 1)), pb.PredictReply
        )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"declared_duration_s": -1.0}, "declared_duration_s"),
        ({"declared_duration_s": math.nan}, "declared_duration_s"),
        ({"model_parameters_billions": math.inf}, "model_parameters_billions"),
        ({"submitted_s": -5.0}, "submitted_s"),
        *(({name: "n" * 5000}, name) for name in TEXTS),
        ({"pods": 2_000_000}, "too many"),
    ],
)
async def test_a_bad_value_is_a_clear_error_of_that_field(bed: Bed, changes, message):
    for call in (bed.client.predict([workload(**changes)]), bed.client.classify(workload(**changes))):
        with pytest.raises(errors.Permanent, match=message):
            await call
    with pytest.raises(errors.Permanent, match=message):
        await bed.client.get_placement(pb.PlacementRequest(workload=workload(**changes)))


async def test_a_request_that_is_no_message_is_a_clear_error(bed: Bed):
    channel = await bed.client._connect()
    method = channel.unary_unary(f"/{SERVICE}/PredictResources", request_serializer=bytes, response_deserializer=bytes)
    with pytest.raises(Exception, match="not a PredictRequest") as caught:
        await method(b"\xff\xff\xff", timeout=60)
    assert "INVALID_ARGUMENT" in str(caught.value)


async def test_placement_has_a_limit_of_nodes(bed: Bed):
    reply = await bed.client.get_placement(pb.PlacementRequest(workload=workload(), nodes=["n1"]))
    assert list(reply.hints) == []
    with pytest.raises(errors.Permanent, match="the most is 10000"):
        await bed.client.get_placement(pb.PlacementRequest(workload=workload(), nodes=["n"] * 10_001))


async def test_no_request_has_a_text_without_a_limit(bed: Bed):
    long = "x" * 300
    for call in (
        bed.client.get_placement(pb.PlacementRequest(workload=workload(), nodes=[long])),
        bed.client.explain(long, "a"),
        bed.client.explain("a", long),
        bed.client.list_findings(long),
        bed.client._call("PredictDemand", pb.DemandRequest(gpu_model=long), pb.DemandReply),
    ):
        with pytest.raises(errors.Permanent, match="253"):
            await call


async def test_a_declared_type_is_the_class(bed: Bed):
    assert (await bed.client.classify(workload(workload_type="Training"))).workload_type == "Training"


async def test_telemetry_is_counted_in_the_metrics(bed: Bed):
    async def stream() -> AsyncIterator[pb.Telemetry]:
        yield pb.Telemetry(node="n1", at_s=NOW_S, devices=[pb.DeviceSample(uuid="GPU-1", activity=0.5)])
        yield pb.Telemetry(at_s=NOW_S, devices=[pb.DeviceSample(uuid="GPU-1")])

    reply = await bed.client.ingest(stream())
    assert (reply.accepted, dict(reply.rejected)) == (1, {"malformed": 1})
    bed.assessment = assessment([(POD, State.IDLE)], NOW_S, problem="an exporter is silent")
    metrics = await bed.client.get_metrics()
    assert (metrics.samples_accepted, dict(metrics.samples_rejected)) == (1, {"malformed": 1})
    assert (metrics.findings, metrics.source_problem, metrics.runs) == (1, "an exporter is silent", 1)


async def test_a_pod_is_explained_with_its_finding_and_prediction(bed: Bed):
    bed.assessment = assessment([(POD, State.IDLE)], NOW_S)
    for name in ("train-0", "train"):
        reply = await bed.client.explain("team", name)
        assert [each.pod for each in reply.findings] == ["train-0"]
        assert reply.prediction.is_known
    with pytest.raises(errors.NotFound, match="no GPU pod or workload"):
        await bed.client.explain("team", "nothing")


async def test_findings_before_the_first_judgement_are_none_at_an_unknown_time(bed: Bed):
    reply = await bed.client.list_findings()
    assert (list(reply.findings), reply.HasField("judged_s")) == ([], False)


async def test_findings_are_selected(bed: Bed):
    bed.assessment = assessment([(POD, State.IDLE)], NOW_S)
    assert len((await bed.client.list_findings("team", 50)).findings) == 1
    assert len((await bed.client.list_findings("other")).findings) == 0
    assert bed.looked_back == []


async def test_another_time_is_judged_again(bed: Bed):
    reply = await bed.client.list_findings(lookback_s=3600)
    assert (bed.looked_back, reply.findings[0].state) == ([3600], "idle-holding-memory")


@pytest.mark.parametrize("lookback_s", [-1.0, math.nan, math.inf, 8 * 86400.0, 1.0])
async def test_a_lookback_out_of_range_is_refused(bed: Bed, lookback_s):
    with pytest.raises(errors.Permanent, match="lookback_s"):
        await bed.client.list_findings(lookback_s=lookback_s)
    assert bed.looked_back == []


@pytest.mark.parametrize("score", [math.nan, -1.0, 101.0])
async def test_a_score_out_of_range_is_refused(bed: Bed, score):
    with pytest.raises(errors.Permanent, match="min_waste_score"):
        await bed.client.list_findings(min_waste_score=score)


def test_absent_values_of_a_finding_stay_absent():
    message = encode_finding(Assessed(POD, found(POD, Kind.IMBALANCE, score=None).finding))
    assert message.state == "imbalance"
    assert message.recommendation.action == "None"
    for name in ("waste_score", "activity", "memory", "cost_per_hour", "idle_s"):
        assert not message.HasField(name)


async def test_the_optimizer_names_its_cluster_and_a_command_refuses_that_of_another(bed: Bed, tmp_path, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "absent"))
    await optimizer_access.check_cluster(bed.client, "here:1")  # nothing to compare with
    assert (await bed.client.get_metrics()).cluster_uid == "uid-1"
    optimizer_access.compare_clusters("here:1", "uid-1", "uid-1")
    with pytest.raises(errors.Permanent, match=r"here:1 watches another cluster .* there: uid-1, here: uid-2"):
        optimizer_access.compare_clusters("here:1", "uid-1", "uid-2")
