"""Predicted run times of workloads that wait or run. Without an answer the last predictions stay in use."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from kgwe.apps.scheduler.deps import PredictionSource
    from kgwe.cluster.state.cluster_state import ClusterState
    from kgwe.cluster.workload.workload import Workload
    from kgwe.model.usage.description import WorkloadDescription
    from kgwe.placement.queue.workloads import RunTime


class PredictedRunTimes:
    """Asks about all workloads in one call, and passes the run times on."""

    topic: Final = "predictions"
    without: Final = "the last predictions stay in use"
    # More of them wait far behind those that backfill looks at.
    max_workloads: Final = 5000

    def __init__(
        self,
        source: PredictionSource,
        describe: Callable[[Workload], WorkloadDescription | None],
        apply: Callable[[Mapping[str, RunTime]], None],
    ) -> None:
        """`describe` is called in a thread: it takes longer than the event loop may pause."""
        self._source = source
        self._describe = describe
        self._apply = apply

    async def update(self, workloads: Mapping[str, Workload]) -> None:
        known = await asyncio.to_thread(self._describe_all, workloads)
        found = await self._source.predict(list(known.values())) if known else ()
        self._apply({owner: run_time for owner, run_time in zip(known, found, strict=True) if run_time is not None})

    async def close(self) -> None:
        await self._source.close()

    def _describe_all(self, workloads: Mapping[str, Workload]) -> dict[str, WorkloadDescription]:
        described = {owner: self._describe(workload) for owner, workload in workloads.items()}
        return {owner: each for owner, each in described.items() if each is not None}


def list_ending_workloads(state: ClusterState, waiting: Iterable[str]) -> dict[str, Workload]:
    """Return the workloads that wait or run and end by themselves: owner -> workload."""
    found = _find_workloads(state, (*waiting, *state.runs))
    return {owner: workload for owner, workload in found.items() if not workload.serves}


def list_waiting_workloads(state: ClusterState, waiting: Iterable[str]) -> dict[str, Workload]:
    """Return the workloads that wait, services too: owner -> workload."""
    return _find_workloads(state, waiting)


def _find_workloads(state: ClusterState, owners: Iterable[str]) -> dict[str, Workload]:
    """Return the workloads of the owners that have not finished."""
    found: dict[str, Workload] = {}
    for owner in owners:
        key = state.keys.get(owner)
        workload = state.workloads.get(key) if key is not None else None
        if workload is not None and not workload.finished:
            found[owner] = workload
    return found
