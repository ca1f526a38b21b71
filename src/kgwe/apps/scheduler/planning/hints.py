"""Placement hints of waiting workloads, refreshed in the background.

A planning pass reads the table and never waits.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

import structlog

from kgwe import errors

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kgwe.apps.scheduler.deps import HintSource
    from kgwe.model.usage.description import WorkloadDescription

log = structlog.get_logger(__name__)

# Workloads of one refresh: the others wait far behind.
_MAX_WORKLOADS: Final = 200
# Hints say what runs beside a workload now: older ones are not used.
_KEEP_S: Final = 300.0


class HintRefresher:
    """Asks the source every few seconds about workloads of one pod that wait. Equal workloads are asked about once."""

    def __init__(
        self,
        source: HintSource,
        list_workloads: Callable[[], Mapping[str, WorkloadDescription]],
        *,
        every_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`list_workloads`: owner -> workload that waits."""
        self._source = source
        self._list_workloads = list_workloads
        self._every_s = every_s
        self._clock = clock
        self._found: dict[str, Mapping[str, float]] = {}
        self._found_at = clock()
        self._is_failing = False

    def find(self, owner: str) -> Mapping[str, float]:
        """Return node -> points for an owner; empty if nothing is known, or if it is too old."""
        return self._found.get(owner, {}) if self._clock() - self._found_at < _KEEP_S else {}

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
        alone = {owner: each for owner, each in self._list_workloads().items() if each.pods == 1}
        known: dict[str, Mapping[str, float]] = {}
        found: dict[str, Mapping[str, float]] = {}
        try:
            for owner, workload in list(alone.items())[:_MAX_WORKLOADS]:
                key = workload.make_fingerprint().key
                if key not in known:
                    known[key] = await self._source.find_hint(workload)
                found[owner] = known[key]
        except errors.KgweError as exc:
            self._report_failure(str(exc))
            return
        except Exception as exc:  # a defect of the source must not stop the scheduler
            log.exception("hints_crashed")
            self._report_failure(f"{type(exc).__name__}: {exc}")
            return
        if self._is_failing:
            log.info("hints_back")
        self._is_failing = False
        self._found, self._found_at = found, self._clock()

    def _report_failure(self, problem: str) -> None:
        if not self._is_failing:
            log.warning("hints_unavailable", error=problem, next="workloads are placed without hints")
        self._is_failing = True
