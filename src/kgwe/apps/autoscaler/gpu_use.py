"""How much the GPUs of each node do, from Prometheus or from exporters. A node that is not known has no entry."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Final

import numpy as np
import structlog

from kgwe.apps import background, usage_source
from kgwe.metrics.embedded import EmbeddedSource, ScrapeSettings
from kgwe.metrics.settings import SourceSettings, open_source

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from kgwe.apps.autoscaler.settings import Settings
    from kgwe.metrics.source import MetricSource
    from kgwe.model.usage.window import UsageWindow

log = structlog.get_logger(__name__)

#: A device counts as known if so much of the window was measured.
_LEAST_KNOWN: Final = 0.5
_STEPS: Final = 10
_PATIENCE_S: Final = 20.0


class GpuUse:
    """The mean use of the last window. What is older than two windows is not known."""

    def __init__(self, source: MetricSource | None, window_s: float, clock: Callable[[], float] = time.time) -> None:
        self._source = source
        self._window_s = window_s
        self._clock = clock
        self._read_s = 0.0
        self._by_node: dict[str, float] = {}

    def by_node(self) -> dict[str, float]:
        """Return node -> mean use of its GPUs, 0 to 1."""
        is_fresh = abs(self._clock() - self._read_s) <= 2 * self._window_s
        return self._by_node if is_fresh else {}

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Read while the context is open, if there is a source."""
        source, tasks = self._source, []
        if source is not None:
            tasks.append(asyncio.create_task(background.keep_running("gpu_use", self._poll)))
        if isinstance(source, EmbeddedSource):
            tasks.append(asyncio.create_task(source.run()))
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if source is not None:
                await source.close()

    async def _poll(self) -> None:
        while True:
            await self.read()
            await asyncio.sleep(self._window_s / _STEPS)

    async def read(self) -> None:
        """Read the last window; an outage leaves what was known until it is too old."""
        if self._source is None:
            return
        now_s = self._clock()
        try:
            async with asyncio.timeout(_PATIENCE_S):
                window = await self._source.read_window(now_s, self._window_s, self._window_s / _STEPS)
        except TimeoutError:
            log.warning("gpu_use_not_read", reason=f"the source did not answer within {_PATIENCE_S:g} s")
            return
        self._by_node, self._read_s = average_by_node(window), now_s


def average_by_node(window: UsageWindow) -> dict[str, float]:
    """Return the mean activity of each node's devices; a node with a device that is not known is left out."""
    found: dict[str, list[float]] = {}
    unknown = set()
    for device, row in zip(window.devices, window.activity, strict=True):
        node, known = device.key.node, np.isfinite(row)
        if known.mean() < _LEAST_KNOWN:
            unknown.add(node)
        else:
            found.setdefault(node, []).append(float(row[known].mean()))
    return {node: sum(rows) / len(rows) for node, rows in found.items() if node not in unknown}


def open_gpu_use(settings: Settings) -> GpuUse:
    """Return the use of GPUs from the source that the settings name; without one nothing is known."""
    wanted = SourceSettings(
        prometheus=usage_source.read_prometheus(settings),
        exporters=settings.exporters,
        targets_url=settings.exporters_from,
        scrape=ScrapeSettings(interval_s=settings.scrape_seconds, keep_s=2 * settings.use_window_seconds),
    )
    is_named = wanted.prometheus is not None or wanted.exporters or wanted.targets_url
    return GpuUse(open_source(wanted) if is_named else None, settings.use_window_seconds)
