"""Placement hints of waiting workloads, refreshed in the background.

A planning pass reads the table and never waits.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import TYPE_CHECKING, Final

import structlog

from kgwe import errors

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kgwe.apps.scheduler.deps import HintSource
    from kgwe.cluster.workload.workload import Workload
    from kgwe.model.usage.description import WorkloadDescription

log = structlog.get_logger(__name__)

# Workloads of one refresh: the others wait far behind.
_MAX_WORKLOADS: Final = 200
_MAX_LISTED: Final = 1000
# Hints say what runs beside a workload now: older ones are not used.
_KEEP_S: Final = 300.0


class HintRefresher:
    """Asks the source every few seconds about workloads of one pod that wait. Equal workloads are asked about once."""

    def __init__(
        self,
        source: HintSource,
        list_workloads: Callable[[], Mapping[str, Workload]],
        describe: Callable[[Workload], WorkloadDescription | None],
        *,
        every_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`list_workloads`: owner -> workload that waits. `describe` is called in a thread."""
        self._source = source
        self._list_workloads = list_workloads
        self._describe = describe
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
        listed = dict(itertools.islice(self._list_workloads().items(), _MAX_LISTED))
        known: dict[str, Mapping[str, float]] = {}
        found: dict[str, Mapping[str, float]] = {}
        try:
            for owner, key, workload in await asyncio.to_thread(self._describe_alone, listed):
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

    def _describe_alone(self, workloads: Mapping[str, Workload]) -> list[tuple[str, str, WorkloadDescription]]:
        """Return owner, fingerprint and description of workloads with one pod."""
        described = ((owner, self._describe(workload)) for owner, workload in workloads.items())
        alone = ((owner, each) for owner, each in described if each is not None and each.pods == 1)
        return [(owner, each.make_fingerprint().key, each) for owner, each in itertools.islice(alone, _MAX_WORKLOADS)]

    def _report_failure(self, problem: str) -> None:
        if not self._is_failing:
            log.warning("hints_unavailable", error=problem, next="workloads are placed without hints")
        self._is_failing = True
