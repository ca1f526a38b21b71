"""A gRPC client of the optimizer: one channel, a deadline for each call, certificates that are reloaded.

Errors are those of `kgwe.errors`: Transient if the optimizer does not respond.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kgwe import errors
from kgwe.optimizerapi.calls import SERVER_NAME, SERVICE
from kgwe.proto import optimizer_pb2 as pb
from kgwe.rpc.client import Endpoint, RpcClient

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, Sequence

    from kgwe.rpc.tls import Files

DEADLINE_S: Final = 5.0
_LARGEST_MESSAGE: Final = 16 << 20
#: Workloads in one request: a thousand predictions take well below a second.
MAX_BATCH: Final = 1000


@dataclass(frozen=True, slots=True)
class Access:
    """How to connect to the optimizer."""

    address: str
    files: Files | None = None
    """Certificates; None for an optimizer on this machine."""
    server_name: str = SERVER_NAME
    """The name in the optimizer's certificate."""
    deadline_s: float = DEADLINE_S


class OptimizerClient(RpcClient):
    """A client of the optimizer. Close it, or use it as a context manager."""

    def __init__(self, access: Access) -> None:
        super().__init__(
            Endpoint(
                "optimizer",
                SERVICE,
                access.address,
                access.server_name,
                access.files,
                access.deadline_s,
                _LARGEST_MESSAGE,
            )
        )

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
        return await self._send("IngestTelemetry", telemetry, pb.Telemetry, pb.IngestReply)
