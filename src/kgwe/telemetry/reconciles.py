"""Errors and durations of the rounds of a controller, under the names that operators of other controllers know."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from prometheus_client import Counter, Histogram

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client import CollectorRegistry


class ReconcileMetrics:
    """`controller_reconcile_errors_total` and `controller_reconcile_duration_seconds` of one controller."""

    def __init__(self, registry: CollectorRegistry, controller: str) -> None:
        errors = Counter(
            "controller_reconcile_errors", "Rounds or reconciles that ended with an error", ["controller"],
            registry=registry,
        )  # fmt: skip
        seconds = Histogram(
            "controller_reconcile_duration_seconds", "Time of one round or reconcile", ["controller"],
            registry=registry, buckets=(0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300),
        )  # fmt: skip
        self._errors = errors.labels(controller)
        self._seconds = seconds.labels(controller)

    def observe(self, took_s: float) -> None:
        """Count a round."""
        self._seconds.observe(took_s)

    def count_error(self) -> None:
        """Count an error, also one that the round survived."""
        self._errors.inc()

    @contextlib.contextmanager
    def measure(self) -> Iterator[None]:
        """Measure a round; an error that leaves it is counted."""
        began = time.perf_counter()
        try:
            yield
        except Exception:
            self.count_error()
            raise
        finally:
            self.observe(time.perf_counter() - began)
