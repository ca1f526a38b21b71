"""The gRPC server: errors as status codes, malformed requests, health, reflection and certificates."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from tests.support.fakes.pki import Authority
from tests.support.patience import PATIENCE_S

from kgwe import errors
from kgwe.optimizerapi.calls import CALLS, SERVER_NAME, SERVICE
from kgwe.optimizerapi.client import Access, OptimizerClient
from kgwe.proto import optimizer_pb2 as pb
from kgwe.rpc import server
from kgwe.rpc.server import Limits, Service


class Target:
    """Answers with the error that a name asks for."""

    def __init__(self):
        self.problem = None

    async def PredictResources(self, request, context):  # noqa: N802
        del context
        if self.problem is not None:
            raise self.problem
        return pb.PredictReply(predictions=[pb.Prediction(fingerprint=each.name) for each in request.workloads])

    async def IngestTelemetry(self, requests, context):  # noqa: N802
        del context
        return pb.IngestReply(accepted=sum([len(each.devices) async for each in requests]))

    async def _unused(self, request, context):
        raise NotImplementedError

    GetPlacement = GetMetrics = Classify = Explain = ListFindings = PredictDemand = _unused


@pytest.fixture
def target():
    return Target()


@pytest.fixture
async def address(target):
    async with server.serving([Service(SERVICE, CALLS, target)], "127.0.0.1:0", limits=Limits(1 << 16)) as port:
        yield f"127.0.0.1:{port}"


async def test_predictions_are_returned_in_order_and_in_batches(address, monkeypatch):
    monkeypatch.setattr("kgwe.optimizerapi.client.MAX_BATCH", 2)
    async with OptimizerClient(Access(address)) as client:
        found = await client.predict([pb.Workload(name=str(number)) for number in range(5)])
        assert [each.fingerprint for each in found] == ["0", "1", "2", "3", "4"]
        assert await client.predict([]) == []


@pytest.mark.parametrize(
    ("problem", "kind"),
    [
        (errors.NotFound("gone"), errors.NotFound),
        (errors.Conflict("taken"), errors.Conflict),
        (errors.Transient("later"), errors.Transient),
        (errors.Permanent("never"), errors.Permanent),
        (server.Exhausted("full"), errors.Transient),
    ],
)
async def test_errors_arrive_as_the_same_kind(address, target, problem, kind):
    target.problem = problem
    async with OptimizerClient(Access(address)) as client:
        with pytest.raises(kind, match=str(problem)):
            await client.predict([pb.Workload()])


async def test_a_malformed_request_is_an_invalid_argument(address):
    async with grpc.aio.insecure_channel(address) as channel:
        for name, call in CALLS.items():
            method = channel.stream_unary if call.is_client_stream else channel.unary_unary
            ask: Any = method(f"/{SERVICE}/{name}")
            payload = iter([b"\x0a\xff\xff\xff\xff\x0f"]) if call.is_client_stream else b"\x0a\xff\xff\xff\xff\x0f"
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await ask(payload)
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_stream_is_counted(address):
    async def send():
        for _ in range(3):
            yield pb.Telemetry(devices=[pb.DeviceSample(), pb.DeviceSample()])

    async with OptimizerClient(Access(address)) as client:
        assert (await client.ingest(send())).accepted == 6


async def test_health_and_reflection_know_the_service(address):
    async with grpc.aio.insecure_channel(address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        reply = await health.Check(health_pb2.HealthCheckRequest(service=SERVICE))
        assert reply.status == health_pb2.HealthCheckResponse.SERVING
        reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
        requests = iter([reflection_pb2.ServerReflectionRequest(list_services="")])
        found = [reply async for reply in reflection.ServerReflectionInfo(requests)]
        assert SERVICE in [each.name for each in found[0].list_services_response.service]


async def test_open_watches_leave_room_for_calls(target):
    limits = Limits(concurrent_calls=6, watches=2)
    request = health_pb2.HealthCheckRequest()
    async with (
        server.serving([Service(SERVICE, CALLS, target)], "127.0.0.1:0", limits=limits) as port,
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
        OptimizerClient(Access(f"127.0.0.1:{port}")) as client,
    ):
        health = health_pb2_grpc.HealthStub(channel)
        watches = []
        for _ in range(2):
            watches.append(health.Watch(request))
            assert (await watches[-1].read()).status == health_pb2.HealthCheckResponse.SERVING
        for _ in range(10):
            watches.append(health.Watch(request))
            with pytest.raises(grpc.aio.AioRpcError, match="which is the most") as caught:
                await watches[-1].read()
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
        names = iter([reflection_pb2.ServerReflectionRequest(list_services="")])
        with pytest.raises(grpc.aio.AioRpcError, match="which is the most"):
            await anext(aiter(reflection.ServerReflectionInfo(names)))
        assert len(await client.predict([pb.Workload()])) == 1
        assert (await health.Check(request)).status == health_pb2.HealthCheckResponse.SERVING
        for each in watches:
            each.cancel()
        async with asyncio.timeout(PATIENCE_S):
            while await _is_refused(health.Watch(request)):
                pass


async def _is_refused(watch):
    try:
        await watch.read()
    except grpc.aio.AioRpcError:
        return True
    watch.cancel()
    return False


async def test_one_connection_has_so_many_calls_at_a_time(target):
    limits = Limits(concurrent_calls=4, calls_per_connection=2)
    own = [("grpc.use_local_subchannel_pool", 1)]
    async with server.serving([Service(SERVICE, CALLS, target)], "127.0.0.1:0", limits=limits) as port:
        address = f"127.0.0.1:{port}"
        async with (
            grpc.aio.insecure_channel(address, options=own) as greedy,
            grpc.aio.insecure_channel(address, options=own) as other,
        ):
            first: Any = greedy.stream_unary(f"/{SERVICE}/IngestTelemetry")()
            await first.write(pb.Telemetry().SerializeToString())
            streams: list[Any] = [greedy.stream_unary(f"/{SERVICE}/IngestTelemetry")() for _ in range(9)]
            ask: Any = other.unary_unary(f"/{SERVICE}/PredictResources")
            for _ in range(20):
                await ask(b"", timeout=PATIENCE_S)
            for each in (first, *streams):
                each.cancel()


async def test_other_machines_need_certificates(target):
    with pytest.raises(errors.Permanent, match="needs certificates"):
        async with server.serving([Service(SERVICE, CALLS, target)], "0.0.0.0:0"):
            pass


async def test_clients_prove_their_name_with_certificates(target, tmp_path):
    authority, other = Authority(tmp_path), Authority(_make_folder(tmp_path, "other"))
    files = authority.issue("server", SERVER_NAME)
    async with server.serving([Service(SERVICE, CALLS, target)], "127.0.0.1:0", files=files) as port:
        address = f"127.0.0.1:{port}"
        async with OptimizerClient(Access(address, authority.issue("client"))) as client:
            assert len(await client.predict([pb.Workload()])) == 1
        stranger = Access(address, other.issue("stranger"), deadline_s=1.0)
        async with OptimizerClient(stranger) as client:
            with pytest.raises(errors.Transient):
                await client.predict([pb.Workload()])


def _make_folder(path, name):
    (path / name).mkdir()
    return path / name
