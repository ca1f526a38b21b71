"""Which metric source a process uses: Prometheus if its URL is set, else exporters that KGWE scrapes."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import httpx2

from kgwe.metrics.embedded import EmbeddedSource, ScrapeSettings
from kgwe.metrics.prometheus import PrometheusSource
from kgwe.metrics.targets import CalledTargets, DiscoveredTargets, StaticTargets

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from kgwe.metrics.holdings import Holding
    from kgwe.metrics.prometheus_api import PrometheusSettings
    from kgwe.metrics.targets import TargetSource
    from kgwe.model.usage.window import PodKey, UsageWindow


@dataclass(frozen=True, slots=True)
class SourceSettings:
    """Where usage comes from."""

    prometheus: PrometheusSettings | None = None
    exporters: tuple[str, ...] = ()
    """URLs of exporters."""
    targets_url: str = ""
    """Lists exporters in the format of Prometheus' HTTP service discovery."""
    scrape: ScrapeSettings = field(default_factory=ScrapeSettings)


@dataclass(frozen=True, slots=True)
class SourceHooks:
    """What a source gets from its process."""

    list_exporters: Callable[[], Iterable[tuple[str, str]]] | None = None
    """Returns node names and URLs of the cluster's exporters."""
    on_minute: Callable[[UsageWindow], Awaitable[None]] | None = None
    holders: Callable[[], Iterable[Holding]] | None = None
    is_without_gpus: Callable[[PodKey], bool] = lambda _: False
    """Whether a pod of the cluster asked for no GPU."""
    now: Callable[[], float] = time.time


def open_source(settings: SourceSettings, hooks: SourceHooks | None = None) -> EmbeddedSource | PrometheusSource:
    """Return the source. An embedded source scrapes only while its `run` runs (`embedded.scraping`)."""
    hooks = hooks or SourceHooks()
    if settings.prometheus is not None:
        return PrometheusSource(settings.prometheus, is_without_gpus=hooks.is_without_gpus)
    client = httpx2.AsyncClient(
        trust_env=False,
        follow_redirects=False,
        # Exporters that failed have slots beside the others.
        limits=httpx2.Limits(max_connections=2 * settings.scrape.concurrency),
    )
    return EmbeddedSource(
        _choose_targets(settings, hooks, client),
        client,
        settings.scrape,
        now=hooks.now,
        on_minute=hooks.on_minute,
        holders=hooks.holders,
    )


def _choose_targets(settings: SourceSettings, hooks: SourceHooks, client: httpx2.AsyncClient) -> TargetSource:
    if settings.targets_url:
        return DiscoveredTargets(settings.targets_url, client)
    if settings.exporters or hooks.list_exporters is None:
        return StaticTargets(settings.exporters)
    return CalledTargets(hooks.list_exporters)
