"""Asks a source about workloads in the background, every few seconds: run times or placement hints.

Planning passes read the last answers and never wait. A source that is down changes nothing else.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Protocol

import structlog

from kgwe import errors

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kgwe.cluster.workload.workload import Workload

log = structlog.get_logger(__name__)


class Forecast(Protocol):
    """What is asked of a source, and the answers that are kept."""

    @property
    def topic(self) -> str:
        """What log events name: `hints` or `predictions`."""

    @property
    def without(self) -> str:
        """What the scheduler does while the source is down."""

    @property
    def max_workloads(self) -> int:
        """Workloads that are listed in one refresh; the others wait far behind."""

    async def update(self, workloads: Mapping[str, Workload]) -> None:
        """Ask about these workloads, by owner, and keep the answers; an error leaves the last ones."""

    async def close(self) -> None:
        """Close the source."""


class Refresher:
    """Updates one forecast until it is cancelled."""

    def __init__(
        self,
        forecast: Forecast,
        list_workloads: Callable[[], Mapping[str, Workload]],
        *,
        every_s: float,
        on_result: Callable[[str], None] = lambda _outcome: None,
    ) -> None:
        """`list_workloads`: owner -> workload; `on_result`: called with `success` or `failure` of each refresh."""
        self._forecast = forecast
        self._list_workloads = list_workloads
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
            await self._forecast.close()

    async def refresh(self) -> None:
        """Ask once. An error is logged when it begins and when it ends, and changes nothing else."""
        listed = dict(itertools.islice(self._list_workloads().items(), self._forecast.max_workloads))
        try:
            await self._forecast.update(listed)
        except errors.KgweError as exc:
            self._report_failure(str(exc))
            return
        except Exception as exc:  # a defect of the source must not stop the scheduler
            log.exception("forecast_crashed", topic=self._forecast.topic)
            self._report_failure(f"{type(exc).__name__}: {exc}")
            return
        if self._is_failing:
            log.info("forecast_back", topic=self._forecast.topic)
        self._is_failing = False
        self._on_result("success")

    def _report_failure(self, problem: str) -> None:
        if not self._is_failing:
            what, then = self._forecast.topic, self._forecast.without
            log.warning("forecast_unavailable", topic=what, error=problem, next=then)
        self._is_failing = True
        self._on_result("failure")
