"""A gRPC client of the optimizer: one channel, a deadline for each call, certificates that are reloaded.

Errors are those of `kgwe.errors`: Transient if the optimizer does not respond.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import grpc

from kgwe import errors
from kgwe.optimizerapi.calls import CALLS, SERVER_NAME, SERVICE
from kgwe.proto import optimizer_pb2 as pb
from kgwe.rpc import tls

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, Sequence

    from google.protobuf.message import Message

    from kgwe.rpc.tls import Files

Reply = TypeVar("Reply", bound="Message")

DEADLINE_S: Final = 5.0
_LARGEST_MESSAGE: Final = 16 << 20
#: Workloads in one request: a thousand predictions take well below a second.
MAX_BATCH: Final = 1000

_ERRORS: Final = {
    grpc.StatusCode.NOT_FOUND: errors.NotFound,
    grpc.StatusCode.FAILED_PRECONDITION: errors.Conflict,
    grpc.StatusCode.INVALID_ARGUMENT: errors.Permanent,
    grpc.StatusCode.PERMISSION_DENIED: errors.Permanent,
    grpc.StatusCode.UNAUTHENTICATED: errors.Permanent,
    grpc.StatusCode.UNIMPLEMENTED: errors.Permanent,
}


@dataclass(frozen=True, slots=True)
class Access:
    """How to connect to the optimizer."""

    address: str
    files: Files | None = None
    """Certificates; None for an optimizer on this machine."""
    server_name: str = SERVER_NAME
    """The name in the optimizer's certificate."""
    deadline_s: float = DEADLINE_S


class OptimizerClient:
    """A client of the optimizer. Close it, or use it as a context manager."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._stamp: tuple[tuple[int, int], ...] = ()
        self._channel: grpc.aio.Channel | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()

    async def predict(self, workloads: Sequence[pb.Workload]) -> list[pb.Prediction]:
        """Return one prediction for each workload, in order."""
        found: list[pb.Prediction] = []
        for first in range(0, len(workloads), MAX_BATCH):
            request = pb.PredictRequest(workloads=workloads[first : first + MAX_BATCH])
            reply = await self._call("PredictResources", request, pb.PredictReply)
            found += reply.predictions
        if len(found) != len(workloads):
            raise errors.Transient(f"optimizer: {len(found)} predictions for {len(workloads)} workloads")
        return found

    async def get_placement(self, request: pb.PlacementRequest) -> pb.PlacementReply:
        return await self._call("GetPlacement", request, pb.PlacementReply)

    async def get_metrics(self) -> pb.MetricsReply:
        return await self._call("GetMetrics", pb.MetricsRequest(), pb.MetricsReply)

    async def predict_demand(self, gpu_model: str = "") -> pb.DemandReply:
        return await self._call("PredictDemand", pb.DemandRequest(gpu_model=gpu_model), pb.DemandReply)

    async def classify(self, workload: pb.Workload) -> pb.ClassifyReply:
        return await self._call("Classify", pb.ClassifyRequest(workload=workload), pb.ClassifyReply)

    async def explain(self, namespace: str, name: str) -> pb.ExplainReply:
        return await self._call("Explain", pb.ExplainRequest(namespace=namespace, name=name), pb.ExplainReply)

    async def list_findings(
        self, namespace: str = "", min_waste_score: float = 0.0, lookback_s: float = 0.0
    ) -> pb.FindingsReply:
        request = pb.FindingsRequest(namespace=namespace, min_waste_score=min_waste_score, lookback_s=lookback_s)
        return await self._call("ListFindings", request, pb.FindingsReply)

    async def ingest(self, telemetry: AsyncIterable[pb.Telemetry]) -> pb.IngestReply:
        """Send samples until the iterator ends; return what the optimizer accepted."""
        channel = await self._connect()
        method: Any = channel.stream_unary(
            f"/{SERVICE}/IngestTelemetry",
            request_serializer=pb.Telemetry.SerializeToString,
            response_deserializer=pb.IngestReply.FromString,
        )
        try:
            reply: pb.IngestReply = await method(telemetry)
        except grpc.aio.AioRpcError as exc:
            raise self._translate_error(exc) from exc
        return reply

    async def _call(self, name: str, request: Message, reply: type[Reply]) -> Reply:
        channel = await self._connect()
        method: Any = channel.unary_unary(
            f"/{SERVICE}/{name}",
            request_serializer=CALLS[name].request.SerializeToString,
            response_deserializer=reply.FromString,
        )
        try:
            answer: Reply = await method(request, timeout=self._access.deadline_s)
        except grpc.aio.AioRpcError as exc:
            raise self._translate_error(exc) from exc
        return answer

    def _translate_error(self, exc: grpc.aio.AioRpcError) -> errors.KgweError:
        kind = _ERRORS.get(exc.code(), errors.Transient)
        return kind(f"optimizer {self._access.address}: {exc.details() or exc.code().name}")

    async def _connect(self) -> grpc.aio.Channel:
        files = self._access.files
        stamp = files.stamp() if files else ()
        if self._channel is not None and stamp != self._stamp:
            await self.close()
        if self._channel is None:
            self._stamp = stamp
            self._channel = self._open(files)
        return self._channel

    def _open(self, files: Files | None) -> grpc.aio.Channel:
        options: list[tuple[str, Any]] = [
            ("grpc.max_receive_message_length", _LARGEST_MESSAGE),
            ("grpc.enable_http_proxy", 0),
        ]
        if files is None:
            return grpc.aio.insecure_channel(self._access.address, options=options)
        options.append(("grpc.ssl_target_name_override", self._access.server_name))
        return grpc.aio.secure_channel(self._access.address, tls.channel_credentials(files), options=options)
