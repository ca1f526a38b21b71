"""Metrics and probes over HTTP."""

import httpx2
import prometheus_client
import pytest

from kgwe import errors
from kgwe.telemetry import http, probes


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [(":8080", "0.0.0.0", 8080), ("127.0.0.1:0", "127.0.0.1", 0), ("[::1]:9", "::1", 9)],  # noqa: S104 - what is parsed
)
def test_addresses_are_read_as_users_write_them(text, host, port):
    assert http.Address.parse(text) == http.Address(host, port)


@pytest.mark.parametrize("text", ["8080", "localhost", "localhost:http", ":99999", ""])
def test_a_bad_address_says_what_to_write(text):
    with pytest.raises(errors.Permanent, match="such as :8080"):
        http.Address.parse(text)


async def test_metrics_and_probes_answer_and_say_what_is_wrong():
    registry = prometheus_client.CollectorRegistry()
    prometheus_client.Counter("things", "Things", registry=registry).inc(3)
    problem: list[str] = []
    app = probes.ProbeApp(registry, live=lambda: None, ready=lambda: problem[0] if problem else None)
    async with http.serving(app, http.Address("127.0.0.1", 0)) as port, httpx2.AsyncClient() as client:
        base = f"http://127.0.0.1:{port}"
        metrics = await client.get(f"{base}/metrics")
        assert "things_total 3.0" in metrics.text
        assert metrics.headers["content-type"].startswith("text/plain")
        assert (await client.get(f"{base}/readyz")).status_code == 200
        problem.append("caches are cold")
        not_ready = await client.get(f"{base}/readyz")
        assert (not_ready.status_code, not_ready.text) == (503, "caches are cold\n")
        assert (await client.get(f"{base}/healthz")).status_code == 200
        assert (await client.get(f"{base}/other")).status_code == 404


def test_metrics_are_rendered_once_per_second_whatever_is_asked():
    registry = prometheus_client.CollectorRegistry()
    scrapes = prometheus_client.Counter("renderings", "Renderings", registry=registry)
    now_s = 100.0
    rendered: list[float] = []

    class Slow:
        def collect(self):
            rendered.append(now_s)
            scrapes.inc()
            return ()

    registry.register(Slow())
    app = probes.ProbeApp(registry, live=lambda: None, ready=lambda: None, clock=lambda: now_s)
    accepts = [b"", b"text/plain;version=1.0.0;escaping=dots", b"application/openmetrics-text; version=1.0.0"]
    rendered.clear()

    for step in range(1000):
        now_s = 100.0 + step / 100
        for number in range(3):
            accept = accepts[number] + b";version=1.%d.0" % step if accepts[number] else b""
            reply = app(http.Request("GET", "/metrics", [(b"Accept", accept)], b"", too_large=False))
            assert isinstance(reply, http.Reply)
            assert reply.content_type.startswith("application/openmetrics-text" if number == 2 else "text/plain")

    assert 10 <= len(rendered) <= 15, "ten in ten seconds, and five ahead"


def test_metrics_that_take_long_to_render_are_rendered_less_often():
    registry = prometheus_client.CollectorRegistry()
    now_s = 100.0
    rendered = 0

    class Slow:
        def collect(self):
            nonlocal now_s, rendered
            now_s += 0.5
            rendered += 1
            return ()

    registry.register(Slow())
    app = probes.ProbeApp(registry, live=lambda: None, ready=lambda: None, clock=lambda: now_s)
    rendered = 0
    while now_s < 200.0:
        now_s += 0.01
        app(http.Request("GET", "/metrics", [], b"", too_large=False))

    assert 9 <= rendered <= 11, "a twentieth of the time"


async def test_a_taken_port_is_a_clear_error():
    app = probes.ProbeApp(prometheus_client.CollectorRegistry(), live=lambda: None, ready=lambda: None)
    async with http.serving(app, http.Address("127.0.0.1", 0)) as port:
        with pytest.raises(errors.Permanent, match="already in use"):
            async with http.serving(app, http.Address("127.0.0.1", port)):
                pass
