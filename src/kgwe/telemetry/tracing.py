"""One span per decision, sampled, over OTLP/HTTP.

A decision takes fractions of a millisecond. So sampling comes before any span is created, and spans are recorded
afterwards: the deciders have no tracing code. Without an endpoint nothing is imported.
"""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Any, Protocol

from kgwe import errors

if TYPE_CHECKING:
    from collections.abc import Mapping

Attribute = str | int | float | bool


class Tracer(Protocol):
    def record(self, name: str, took_s: float, attributes: Mapping[str, Attribute]) -> None:
        """Record a span of this duration that has just ended."""

    def close(self) -> None:
        """Send the remaining spans."""


class NoTracer:
    """Records nothing."""

    def record(self, name: str, took_s: float, attributes: Mapping[str, Attribute]) -> None:
        pass

    def close(self) -> None:
        pass


class OtlpTracer:
    """Sends spans in batches from its own thread; an unavailable collector costs only the spans."""

    def __init__(self, endpoint: str, share: float, *, service: str, instance: str, seed: int | None = None) -> None:
        """`share` is the sampled fraction of decisions, 0 to 1; `endpoint` that of the collector, such as
        http://collector:4318.
        """
        if not 0 <= share <= 1:
            raise errors.Permanent(f"the traced share of decisions must be from 0 to 1, not {share}")
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
            from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
            from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
            from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
        except ImportError as exc:
            raise errors.Permanent("tracing needs `pip install kgwe[tracing]`; otherwise remove the endpoint") from exc
        resource = Resource.create({"service.name": service, "service.instance.id": instance})
        self._provider: Any = TracerProvider(resource=resource)
        exporter = OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces", timeout=5)
        self._provider.add_span_processor(BatchSpanProcessor(exporter, max_queue_size=4096))
        self._tracer: Any = self._provider.get_tracer("kgwe")
        self._share = share
        self._rng = random.Random(seed)  # noqa: S311 - thins out telemetry, guards nothing

    def record(self, name: str, took_s: float, attributes: Mapping[str, Attribute]) -> None:
        if self._rng.random() >= self._share:
            return
        end = time.time_ns()
        span = self._tracer.start_span(name, start_time=end - int(took_s * 1e9), attributes=dict(attributes))
        span.end(end)

    def close(self) -> None:
        self._provider.shutdown()


def make_tracer(endpoint: str, share: float, *, service: str, instance: str) -> Tracer:
    return OtlpTracer(endpoint, share, service=service, instance=instance) if endpoint else NoTracer()
