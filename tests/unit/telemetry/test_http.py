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


async def test_a_taken_port_is_a_clear_error():
    app = probes.ProbeApp(prometheus_client.CollectorRegistry(), live=lambda: None, ready=lambda: None)
    async with http.serving(app, http.Address("127.0.0.1", 0)) as port:
        with pytest.raises(errors.Permanent, match="already in use"):
            async with http.serving(app, http.Address("127.0.0.1", port)):
                pass
