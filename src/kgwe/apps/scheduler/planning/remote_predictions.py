"""Predicted run times and placement hints from the optimizer over gRPC. Imported only where its address is set."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kgwe.optimizerapi import messages
from kgwe.optimizerapi.client import OptimizerClient
from kgwe.placement.queue.ask import run_time_from_quantiles
from kgwe.proto import optimizer_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kgwe.model.usage.description import WorkloadDescription
    from kgwe.optimizerapi.client import Access
    from kgwe.placement.queue.workloads import RunTime


class RemotePredictions:
    """The optimizer as a source of predictions and hints."""

    def __init__(self, access: Access) -> None:
        self._client = OptimizerClient(access)

    async def predict(self, workloads: Sequence[WorkloadDescription]) -> Sequence[RunTime | None]:
        replies = await self._client.predict([messages.encode_workload(each) for each in workloads])
        return [read_run_time(each) for each in replies]

    async def find_hint(self, workload: WorkloadDescription) -> Mapping[str, float]:
        reply = await self._client.get_placement(pb.PlacementRequest(workload=messages.encode_workload(workload)))
        return {each.node: each.points for each in reply.hints if math.isfinite(each.points)}

    async def close(self) -> None:
        await self._client.close()


def read_run_time(prediction: pb.Prediction) -> RunTime | None:
    """Return median and 95th percentile of a prediction, or the latest time it names; None if it is unknown."""
    if not prediction.is_known or not prediction.HasField("expected_duration_seconds"):
        return None
    quantiles = {round(each.q, 3): each.seconds for each in prediction.duration_quantiles}
    # The upper end of an interval is exceeded by half of what the interval leaves out.
    upper = 1.0 - (1.0 - min(max(prediction.coverage, 0.01), 0.98)) / 2
    ends = {0.5: prediction.expected_duration_seconds, upper: prediction.duration_upper_seconds}
    return run_time_from_quantiles({**ends, **quantiles})
