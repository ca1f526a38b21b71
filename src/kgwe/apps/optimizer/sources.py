"""The metric source that the settings ask for, and the minutes that go to the history."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from kgwe.apps import usage_source
from kgwe.metrics.embedded import EmbeddedSource, ScrapeSettings
from kgwe.metrics.settings import SourceHooks, SourceSettings, open_source

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from kgwe.apps.optimizer.cluster_view import ClusterView
    from kgwe.apps.optimizer.settings import Settings
    from kgwe.metrics.prometheus import PrometheusSource
    from kgwe.metrics.source import MetricSource
    from kgwe.model.usage.window import UsageWindow

_MINUTE_S: Final = 60.0
# Prometheus has the last samples of a minute some seconds after it.
_DELAY_S: Final = 30.0
_MAX_MINUTES: Final = 30


def make_source(
    settings: Settings, cluster: ClusterView, on_minute: Callable[[UsageWindow], Awaitable[None]]
) -> EmbeddedSource | PrometheusSource:
    """Return Prometheus where its URL is set, else the source that scrapes exporters.

    Exporters are those named, those that a service lists, or one on each GPU node.
    """
    keep_s = max(2 * settings.waste_window_seconds, 1800.0)
    wanted = SourceSettings(
        prometheus=usage_source.read_prometheus(settings),
        exporters=settings.exporters,
        targets_url=settings.exporters_from,
        scrape=ScrapeSettings(interval_s=settings.scrape_seconds, keep_s=keep_s),
    )
    hooks = SourceHooks(
        list_exporters=lambda: cluster.list_exporters(settings.exporter_port, settings.exporter_path),
        on_minute=on_minute,
        holders=cluster.list_holdings,
        is_without_gpus=cluster.is_without_gpus,
    )
    return open_source(wanted, hooks)


class MinutePoller:
    """Reads finished minutes from a source that does not announce them."""

    def __init__(self, source: MetricSource, on_minute: Callable[[UsageWindow], Awaitable[None]]) -> None:
        self._source = source
        self._on_minute = on_minute
        self._read_s = 0.0

    async def poll(self, now_s: float) -> None:
        """Pass on the minutes that finished since the last call, at most half an hour of them."""
        end_s = math.floor((now_s - _DELAY_S) / _MINUTE_S) * _MINUTE_S
        minutes = min(round((end_s - self._read_s) / _MINUTE_S), _MAX_MINUTES) if self._read_s else 1
        if minutes < 1:
            # The clock was set back: go on from there.
            self._read_s = min(self._read_s, end_s)
            return
        window = await self._source.read_window(end_s, minutes * _MINUTE_S, _MINUTE_S)
        if window.devices:
            await self._on_minute(window)
        self._read_s = end_s
