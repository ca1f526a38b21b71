"""The calls of the optimizer's service, with their messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kgwe.proto import optimizer_pb2 as pb
from kgwe.rpc.server import Call

if TYPE_CHECKING:
    from collections.abc import Mapping

#: full name of the gRPC service
SERVICE: Final = "kgwe.optimizer.v1.Optimizer"
#: DNS name in the optimizer's certificate
SERVER_NAME: Final = "kgwe-optimizer"
PORT: Final = 50051

CALLS: Final[Mapping[str, Call]] = {
    "PredictResources": Call(pb.PredictRequest, pb.PredictReply),
    "GetPlacement": Call(pb.PlacementRequest, pb.PlacementReply),
    "IngestTelemetry": Call(pb.Telemetry, pb.IngestReply, is_client_stream=True),
    "GetMetrics": Call(pb.MetricsRequest, pb.MetricsReply),
    "Classify": Call(pb.ClassifyRequest, pb.ClassifyReply),
    "Explain": Call(pb.ExplainRequest, pb.ExplainReply),
    "ListFindings": Call(pb.FindingsRequest, pb.FindingsReply),
    "PredictDemand": Call(pb.DemandRequest, pb.DemandReply),
}
