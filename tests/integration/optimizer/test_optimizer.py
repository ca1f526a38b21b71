"""The optimizer as a process: findings and actions, predictions for the scheduler, kills, and many clients."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any

import grpc
import msgspec
import pytest
from google.protobuf import descriptor_pool, json_format, message_factory
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from tests.support.clusters.optimizer import load_example, short_run
from tests.support.patience import PATIENCE_S

from kgwe.cluster.suspension import marks, named_owners
from kgwe.cluster.suspension.suspender import Result, Suspender
from kgwe.kube.api import resources
from kgwe.optimizerapi.client import Access, OptimizerClient

if TYPE_CHECKING:
    from tests.support.clusters.optimizer import OptimizerBed, Process

    from kgwe.rpc.tls import Files

pytestmark = pytest.mark.cluster

SERVICE = "kgwe.optimizer.v1.Optimizer"
ALONE = [("grpc.use_local_subchannel_pool", 1)]


async def read_notes(bed: OptimizerBed) -> dict[str, str]:
    workload = await bed.client.get(resources.GPU_WORKLOAD, "idle-notebook", bed.namespace)
    return dict(workload.metadata.annotations)


async def is_suspended(bed: OptimizerBed) -> bool:
    notes = await read_notes(bed)
    return marks.read_record(notes) is not None


async def wait_found(bed: OptimizerBed, client: OptimizerClient) -> Any:
    async def found() -> Any:
        return (await client.list_findings(bed.namespace)).findings

    return await bed.until(found, "a finding about the notebook")


async def test_an_idle_notebook_is_found_kept_suspended_and_restored(bed: OptimizerBed):
    optimizer = bed.optimizer()
    bed.scheduler(optimizer.address)
    await bed.submit(load_example("notebook.yaml"))
    async with bed.connect(optimizer) as client:
        (finding,) = await wait_found(bed, client)
        served = (await client.get_metrics()).cluster_uid
    cluster = msgspec.json.decode(await bed.client.request("GET", "/api/v1/namespaces/kube-system"))
    assert served == cluster["metadata"]["uid"], "by which commands know the optimizer of their cluster"
    assert (finding.owner_kind, finding.owner_name) == ("GPUWorkload", "idle-notebook")
    assert (finding.state, finding.recommendation.action) == ("idle-holding-memory", "Suspend")
    advice = await bed.until(lambda: bed.read_advice("idle-notebook"), "advice on the GPUWorkload")
    assert (advice.finding, advice.recommendation) == ("IdleHoldingMemory", "suspend it")
    await bed.until(lambda: bed.list_events("IdleHoldingMemory"), "an Event about the finding")
    await bed.until(lambda: bed.list_events("IdleGPU"), "an Event about the notice")

    owner = await named_owners.find_named(bed.client, "idle-notebook", bed.namespace)
    until_s = float(int(time.time()) + 5)
    await Suspender(bed.client, "kgwe-idle").keep(owner.kind, bed.namespace, "idle-notebook", until_s)
    await bed.until(lambda: is_suspended(bed), "the suspension")
    record = marks.read_record(await read_notes(bed))
    assert record is not None
    assert (marks.parse_time(record.at) or 0.0) > until_s
    assert await optimizer.metric('kgwe_idle_actions_total{action="notify"}') == 2

    async def has_no_pods() -> bool:
        return not await bed.list_pods()

    await bed.until(has_no_pods, "the end of the pods")
    owner = await named_owners.find_named(bed.client, "idle-notebook", bed.namespace, suspended=True)
    restored = await Suspender(bed.client, "kgwe-idle").restore(owner.kind, bed.namespace, "idle-notebook")
    assert restored.result is Result.RESTORED
    await bed.until(bed.list_pods, "pods that run again")

    async def counts_restore() -> bool:
        return await optimizer.metric('kgwe_idle_actions_total{action="restore"}') == 1

    await bed.until(counts_restore, "a restore in the metrics")


async def count_runs(client: OptimizerClient) -> int:
    return int((await client.get_metrics()).runs)


async def run_three(bed: OptimizerBed, client: OptimizerClient) -> None:
    """Run the same work three times, and wait until the optimizer knows it."""
    for number in range(3):
        await bed.submit(short_run(number))

    async def knows_three() -> bool:
        return await count_runs(client) == 3

    await bed.until(knows_three, "three runs in the history")


async def test_three_runs_make_a_prediction_that_the_scheduler_gets(bed: OptimizerBed):
    optimizer = bed.optimizer()
    scheduler = bed.scheduler(optimizer.address)
    async with bed.connect(optimizer) as client:
        await run_three(bed, client)
        (found,) = await client.predict([await bed.describe(short_run(7))])
        assert (found.is_known, found.runs) == (True, 3)
        assert 0 < found.expected_duration_seconds < PATIENCE_S
        await bed.submit(load_example("notebook.yaml"))

        async def refreshed() -> bool:
            return await scheduler.metric('kgwe_prediction_refreshes_total{outcome="success"}') > 0

        await bed.until(refreshed, "a prediction in the scheduler")


async def test_killed_and_started_again_it_knows_what_it_knew_and_the_scheduler_went_on(bed: OptimizerBed):
    optimizer = bed.optimizer()
    bed.scheduler(optimizer.address)
    async with bed.connect(optimizer) as client:
        await run_three(bed, client)
        await bed.client.request(
            "PATCH",
            f"/api/v1/namespaces/{bed.namespace}",
            body={"metadata": {"annotations": {"kgwe.nvidia.io/idle-action": None}}},
            content_type="application/merge-patch+json",
        )
        await bed.submit(load_example("notebook.yaml"))
        await wait_found(bed, client)
        await bed.until(lambda: bed.list_events("IdleHoldingMemory"), "an Event")
        advice = await bed.until(lambda: bed.read_advice("idle-notebook"), "advice on the GPUWorkload")
    optimizer.kill()

    await bed.submit(short_run(3))  # while no optimizer runs

    async def has_ended() -> bool:
        workload = await bed.client.get(resources.GPU_WORKLOAD, short_run(3)["metadata"]["name"], bed.namespace)
        return bool(workload.status.phase == "Succeeded")

    await bed.until(has_ended, "the scheduler plans without the optimizer")
    again = bed.optimizer(optimizer.address)
    async with bed.connect(again) as client:

        async def knows_four() -> bool:
            return await count_runs(client) == 4

        await bed.until(knows_four, "the runs of before, and the one in between")
        await wait_found(bed, client)
        (found,) = await client.predict([await bed.describe(short_run(7))])
        assert (found.is_known, found.runs) == (True, 4)
    assert await bed.read_advice("idle-notebook") == advice
    (event,) = await bed.list_events("IdleHoldingMemory")
    assert "series" not in event or not event["series"]


async def test_each_call_works_through_reflection(bed: OptimizerBed):
    optimizer = bed.optimizer()
    bed.scheduler(optimizer.address)
    await bed.submit(load_example("notebook.yaml"))
    async with bed.connect(optimizer) as client:
        (finding,) = await wait_found(bed, client)
    replies = await asyncio.to_thread(call_all, optimizer.address, bed.namespace, finding.pod)
    assert set(replies) == {
        "PredictResources",
        "GetPlacement",
        "IngestTelemetry",
        "GetMetrics",
        "Classify",
        "Explain",
        "ListFindings",
        "PredictDemand",
    }
    assert len(replies["PredictResources"]["predictions"]) == 1
    assert replies["IngestTelemetry"] == {"accepted": "1"}
    assert replies["Explain"]["findings"][0]["pod"] == finding.pod
    assert replies["ListFindings"]["findings"][0]["pod"] == finding.pod
    assert replies["Classify"]["workloadType"] == "Training"


def call_all(address: str, namespace: str, pod: str) -> dict[str, Any]:
    """Call every method of the service with what reflection says of it; return the replies as JSON."""
    workload = {"namespace": namespace, "name": "w", "workloadType": "Training", "pods": 1, "milliGpusPerPod": 1000}
    bodies: dict[str, dict[str, Any]] = {
        "PredictResources": {"workloads": [workload]},
        "GetPlacement": {"workload": workload},
        "IngestTelemetry": {"node": "pushed", "atS": time.time(), "devices": [{"uuid": "GPU-p", "activity": 0.5}]},
        "Classify": {"workload": workload},
        "Explain": {"namespace": namespace, "name": pod},
        "ListFindings": {"namespace": namespace},
    }
    with grpc.insecure_channel(address) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        assert SERVICE in database.get_services()
        service = descriptor_pool.DescriptorPool(database).FindServiceByName(SERVICE)
        return {each.name: call(channel, each, bodies.get(each.name, {})) for each in service.methods}


def call(channel: grpc.Channel, method: Any, body: dict[str, Any]) -> Any:
    request = json_format.ParseDict(body, message_factory.GetMessageClass(method.input_type)())
    reply_type = message_factory.GetMessageClass(method.output_type)
    path = f"/{SERVICE}/{method.name}"
    make: Any = channel.stream_unary if method.client_streaming else channel.unary_unary
    send = make(
        path,
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=reply_type.FromString,
    )
    reply = send(iter([request]) if method.client_streaming else request, timeout=PATIENCE_S)
    return json_format.MessageToDict(reply)


class SeparateClient(OptimizerClient):
    """A client with a connection of its own; gRPC shares those of one process."""

    def _open(self, files: Files | None) -> grpc.aio.Channel:
        assert files is None
        return grpc.aio.insecure_channel(self._endpoint.address, options=ALONE)


async def test_of_a_hundred_clients_ten_stall_and_the_others_get_answers(bed: OptimizerBed):
    optimizer = bed.optimizer()
    async with contextlib.AsyncExitStack() as stack:
        first = await stack.enter_async_context(bed.connect(optimizer))
        await bed.until(first.get_metrics, "an answer")
        for _ in range(5):
            await stall(stack, optimizer)
        clients = [
            await stack.enter_async_context(SeparateClient(Access(optimizer.address, deadline_s=PATIENCE_S)))
            for _ in range(90)
        ]
        work = await bed.describe(short_run(0))
        for _ in range(3):
            answers = await asyncio.gather(*(client.predict([work]) for client in clients))
            assert [len(each) for each in answers] == [1] * 90


async def stall(stack: contextlib.AsyncExitStack, optimizer: Process) -> None:
    """Open a stream of telemetry that sends nothing, and a connection that is half open."""
    channel = await stack.enter_async_context(grpc.aio.insecure_channel(optimizer.address, options=ALONE))
    stream: Any = channel.stream_unary(f"/{SERVICE}/IngestTelemetry")()
    await stream.wait_for_connection()
    stack.callback(stream.cancel)
    host, _, port = optimizer.address.rpartition(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"PRI * HTTP/2.0\r\n")  # the beginning of the preface
    await writer.drain()
    stack.callback(writer.close)


async def test_of_two_replicas_only_the_leader_serves_and_the_other_takes_over(bed: OptimizerBed):
    first = bed.optimizer()
    async with bed.connect(first) as client:
        await bed.until(client.get_metrics, "an answer of the first")
    second = bed.optimizer()

    async def stands_by() -> bool:
        return "standby" in await second.ask("/readyz")

    await bed.until(stands_by, "the second stands by")
    assert not second.is_serving()
    assert first.is_serving()
    first.kill()
    async with bed.connect(second) as client:
        await bed.until(client.get_metrics, "an answer of the second")
