"""Predicted run times in this process, from workloads that have ended and are still in the API.

Used where no optimizer is set. There are no models and no history beyond what the cluster still shows. The predictor
works in a thread, because the event loop answers kube-scheduler meanwhile.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from kgwe import errors
from kgwe.cluster.workload.description import describe_workload
from kgwe.forecast.runtime import replays
from kgwe.kube.api import timestamp
from kgwe.kube.api.kgwe.gpuworkload_status import Phase
from kgwe.model.usage.history import Run
from kgwe.placement.queue.ask import run_time_from_quantiles

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kgwe.cluster.state.cluster_state import ClusterState
    from kgwe.cluster.workload.workload import Workload
    from kgwe.forecast.runtime.predictor import Predictor
    from kgwe.model.usage.description import WorkloadDescription
    from kgwe.model.usage.fingerprint import Fingerprint
    from kgwe.placement.queue.workloads import RunTime

# The newest ended workloads that are read: enough for quantiles, and bounded.
_MAX_RUNS: Final = 5000


class LocalPredictions:
    """A predictor over the ended workloads of the cluster. It is built again when another one has ended."""

    def __init__(self, state: ClusterState, default_image: str, now: Callable[[], float]) -> None:
        self._state = state
        self._default_image = default_image
        self._now = now
        # Uid of an ended workload -> its run, read once; None: its times are not known.
        self._read: dict[str, tuple[Run, Fingerprint] | None] = {}
        self._predictor: Predictor | None = None

    async def predict(self, workloads: Sequence[WorkloadDescription]) -> Sequence[RunTime | None]:
        ended = [each for each in self._state.workloads.values() if each.status.phase == Phase.SUCCEEDED]
        return await asyncio.to_thread(self._predict_now, ended, workloads)

    async def close(self) -> None:
        self._predictor, self._read = None, {}

    def _predict_now(
        self, ended: Sequence[Workload], workloads: Sequence[WorkloadDescription]
    ) -> Sequence[RunTime | None]:
        self._refresh(ended)
        predictor, now_s = self._predictor, self._now()
        return [None if predictor is None else _predict_one(predictor, each, now_s) for each in workloads]

    def _refresh(self, ended: Sequence[Workload]) -> None:
        """Build the predictor again if other workloads have ended; there is none without an ended workload."""
        newest = sorted(ended, key=lambda each: each.status.completion_time or "", reverse=True)[:_MAX_RUNS]
        if self._read.keys() == {each.meta.uid for each in newest}:
            return
        self._read = {
            each.meta.uid: self._read[each.meta.uid]
            if each.meta.uid in self._read
            else _read_run(each, self._default_image)
            for each in newest
        }
        known = [found for found in self._read.values() if found is not None]
        fingerprints = {fingerprint.key: fingerprint for _, fingerprint in known}
        runs = [run for run, _ in known]
        self._predictor = replays.build_predictor(runs, fingerprints, now_s=self._now()) if runs else None


def _read_run(workload: Workload, default_image: str) -> tuple[Run, Fingerprint] | None:
    """Return the run of a workload that has ended; None if its times are not known."""
    described = describe_workload(workload, default_image)
    try:
        started_s = timestamp.epoch_seconds(workload.status.start_time or "")
        ended_s = timestamp.epoch_seconds(workload.status.completion_time or "")
    except (ValueError, OverflowError, errors.KgweError):
        return None
    if described is None or not 0 < started_s <= ended_s:
        return None
    fingerprint = described.make_fingerprint()
    run = Run(
        uid=workload.meta.uid,
        fingerprint=fingerprint.key,
        submitted_s=described.submitted_s,
        started_s=started_s,
        ended_s=ended_s,
        seen_s=ended_s,
        succeeded=True,
        user=described.user,
        version=fingerprint.version,
        gpus=described.gpus,
        pods=described.pods,
    )
    return run, fingerprint


def _predict_one(predictor: Predictor, workload: WorkloadDescription, now_s: float) -> RunTime | None:
    query = replays.make_query(
        workload.make_fingerprint(), now_s=now_s, user=workload.user, gpus=workload.gpus, pods=workload.pods
    )
    found = predictor.predict(query, now_s)
    return run_time_from_quantiles(found.quantiles) if found.is_known else None
