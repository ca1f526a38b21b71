"""Use of GPUs for the cost engine: from Prometheus, or from exporters that it scrapes itself."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

import structlog

from kgwe.apps import holdings, usage_source
from kgwe.metrics.embedded import EmbeddedSource, ScrapeSettings
from kgwe.metrics.settings import SourceHooks, SourceSettings, open_source

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from kgwe.apps.cost.cluster_view import ClusterView
    from kgwe.apps.cost.settings import Settings
    from kgwe.metrics.source import MetricSource
    from kgwe.model.usage.window import UsageWindow

log = structlog.get_logger(__name__)

#: Seconds of a step in which use is averaged.
STEP_S: Final = 30
# A source has the samples of a step some seconds after it.
_DELAY_S: Final = 15
_MOST_S: Final = 3600
_PATIENCE_S: Final = 20.0


def open_usage(settings: Settings, cluster: ClusterView, clock: Callable[[], float]) -> MetricSource | None:
    """Return the source that the settings ask for; None: use is not measured."""
    wanted = SourceSettings(
        prometheus=usage_source.read_prometheus(settings),
        exporters=settings.exporters,
        targets_url=settings.exporters_from,
        scrape=ScrapeSettings(interval_s=settings.scrape_seconds, keep_s=float(_MOST_S)),
    )
    if wanted.prometheus is None and not (wanted.exporters or wanted.targets_url or settings.scrape_nodes):
        return None
    hooks = SourceHooks(
        list_exporters=lambda: usage_source.list_exporters(
            cluster.list_nodes(), settings.exporter_port, settings.exporter_path
        ),
        holders=lambda: holdings.list_holdings(cluster.list_gpu_nodes()),
        now=clock,
    )
    return open_source(wanted, hooks)


class UsageFeed:
    """Reads the steps that may still be counted. Reading never delays counting for long: what is late stays unknown."""

    def __init__(self, source: MetricSource | None) -> None:
        self._source = source

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Scrape while the context is open, if the source scrapes."""
        source = self._source
        task = asyncio.create_task(source.run()) if isinstance(source, EmbeddedSource) else None
        try:
            yield
        finally:
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            if source is not None:
                await source.close()

    def problem(self) -> str | None:
        """Return why use is unknown; None if it is measured, or not asked for."""
        return self._source.problem() if self._source is not None else None

    async def read(self, settled_s: int, now_s: int) -> UsageWindow | None:
        """Return the use since the settled time; None if there is nothing to read."""
        end_s = (now_s - _DELAY_S) // STEP_S * STEP_S
        start_s = max(settled_s // STEP_S * STEP_S, end_s - _MOST_S)
        if self._source is None or start_s >= end_s:
            return None
        try:
            async with asyncio.timeout(_PATIENCE_S):
                return await self._source.read_window(end_s, end_s - start_s, STEP_S)
        except TimeoutError:
            log.warning("usage_not_read", reason=f"the source did not answer within {_PATIENCE_S:g} s")
            return None
