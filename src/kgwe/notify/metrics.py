"""Counters of notifications."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge

if TYPE_CHECKING:
    from collections.abc import Callable


class NotifyMetrics:
    """Metrics of one notifier. With `registry` they are exported by the process."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        registry = registry or CollectorRegistry()
        self._results = Counter(
            "kgwe_notifications",
            "Notifications by channel and result: sent, failed, duplicate, dropped (the queue was full) or refused",
            ["channel", "result"],
            registry=registry,
        )
        self._retries = Counter(
            "kgwe_notification_retries", "Deliveries that are tried again", ["channel"], registry=registry
        )
        self._waiting = Gauge(
            "kgwe_notifications_waiting", "Notifications in the queue", ["channel"], registry=registry
        )

    def count(self, channel: str, result: str) -> None:
        self._results.labels(channel, result).inc()

    def count_retry(self, channel: str) -> None:
        self._retries.labels(channel).inc()

    def watch_queue(self, channel: str, size: Callable[[], float]) -> None:
        self._waiting.labels(channel).set_function(size)

    def read(self, channel: str, result: str) -> int:
        """Return a count, for status pages and tests."""
        return int(self._results.labels(channel, result)._value.get())  # noqa: SLF001 -- the library has no reader
