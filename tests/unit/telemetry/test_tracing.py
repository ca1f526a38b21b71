"""Spans reach a collector over OTLP/HTTP; none are made for decisions that are not sampled."""

from __future__ import annotations

import http.server
import threading
from typing import TYPE_CHECKING, Any

import pytest

from kgwe import errors
from kgwe.telemetry import tracing

if TYPE_CHECKING:
    from collections.abc import Iterator

trace_service = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")


class Collector(http.server.ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.bodies: list[bytes] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def spans(self) -> list[Any]:
        found = []
        for body in self.bodies:
            request = trace_service.ExportTraceServiceRequest.FromString(body)
            found += [s for r in request.resource_spans for scope in r.scope_spans for s in scope.spans]
        return found


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        self.server.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def collector() -> Iterator[Collector]:
    server = Collector()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


def test_a_decision_becomes_a_span_with_its_time_and_words(collector: Collector):
    tracer = tracing.make_tracer(collector.url, 1.0, service="kgwe-scheduler", instance="a")
    tracer.record("plan", 0.25, {"owner": "w1", "pods": 8, "placed": True})
    tracer.close()

    (span,) = collector.spans()
    assert span.name == "plan"
    assert span.end_time_unix_nano - span.start_time_unix_nano == 250_000_000
    assert {each.key for each in span.attributes} == {"owner", "pods", "placed"}


def test_only_the_share_that_was_asked_for_is_sent(collector: Collector):
    tracer = tracing.OtlpTracer(collector.url, 0.1, service="s", instance="a", seed=1)
    for _ in range(1000):
        tracer.record("plan", 0.0, {})
    tracer.close()

    assert 60 <= len(collector.spans()) <= 140


def test_without_an_endpoint_nothing_is_sent_and_nothing_breaks():
    tracer = tracing.make_tracer("", 1.0, service="s", instance="a")
    tracer.record("plan", 0.1, {})
    tracer.close()


def test_a_share_beyond_all_is_refused():
    with pytest.raises(errors.Permanent, match="0 to 1"):
        tracing.make_tracer("http://127.0.0.1:1", 1.5, service="s", instance="a")
