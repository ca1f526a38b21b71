"""Refreshes predicted run times in the background. Without an answer the last predictions stay in use."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Final

import structlog

from kgwe import errors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from kgwe.apps.scheduler.deps import PredictionSource
    from kgwe.cluster.state.cluster_state import ClusterState
    from kgwe.cluster.workload.workload import Workload
    from kgwe.model.usage.description import WorkloadDescription
    from kgwe.placement.queue.workloads import RunTime

log = structlog.get_logger(__name__)

# Workloads of one refresh: more of them wait far behind those that backfill looks at.
_MAX_WORKLOADS: Final = 5000


class PredictionRefresher:
    """Asks the source every few seconds about all workloads that wait or run."""

    def __init__(
        self,
        source: PredictionSource,
        list_workloads: Callable[[], Mapping[str, Workload]],
        describe: Callable[[Workload], WorkloadDescription | None],
        apply: Callable[[Mapping[str, RunTime]], None],
        *,
        every_s: float,
        on_result: Callable[[str], None] = lambda _outcome: None,
    ) -> None:
        """`list_workloads`: owner -> workload; `on_result`: called with `success` or `failure` of each refresh.

        `describe` is called in a thread: it takes longer than the event loop may pause.
        """
        self._source = source
        self._list_workloads = list_workloads
        self._describe = describe
        self._apply = apply
        self._every_s = every_s
        self._on_result = on_result
        self._is_failing = False

    async def run(self) -> None:
        """Refresh until cancelled."""
        try:
            while True:
                await self.refresh()
                await asyncio.sleep(self._every_s)
        finally:
            await self._source.close()

    async def refresh(self) -> None:
        """Ask once. An error is logged when it begins and when it ends, and changes nothing else."""
        listed = dict(itertools.islice(self._list_workloads().items(), _MAX_WORKLOADS))
        try:
            known = await asyncio.to_thread(self._describe_all, listed)
            found = await self._source.predict(list(known.values())) if known else ()
        except errors.KgweError as exc:
            self._report_failure(str(exc))
            return
        except Exception as exc:  # a defect of the source must not stop the scheduler
            log.exception("predictions_crashed")
            self._report_failure(f"{type(exc).__name__}: {exc}")
            return
        if self._is_failing:
            log.info("predictions_back")
        self._is_failing = False
        self._on_result("success")
        self._apply({owner: run_time for owner, run_time in zip(known, found, strict=True) if run_time is not None})

    def _describe_all(self, workloads: Mapping[str, Workload]) -> dict[str, WorkloadDescription]:
        described = {owner: self._describe(workload) for owner, workload in workloads.items()}
        return {owner: each for owner, each in described.items() if each is not None}

    def _report_failure(self, problem: str) -> None:
        if not self._is_failing:
            log.warning("predictions_unavailable", error=problem, next="the last predictions stay in use")
        self._is_failing = True
        self._on_result("failure")


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
