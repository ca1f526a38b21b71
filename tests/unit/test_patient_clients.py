"""The client of cluster tests repeats what a busy server did not do, and nothing else."""

from __future__ import annotations

import httpx2
import pytest
from tests.support.clusters.clients import PatientTransport

from kgwe.kube.transport.httpx_transport import HttpxTransport

Answer = int | type[httpx2.TransportError]


async def outcome(monkeypatch: pytest.MonkeyPatch, method: str, path: str, *answers: Answer) -> tuple[object, int]:
    """The status or the error of a request, and how often it was sent; the last answer is given for ever."""
    monkeypatch.setattr("tests.support.clusters.clients._PAUSE_S", 0.0)
    sent = 0

    def answer(request: httpx2.Request) -> httpx2.Response:
        nonlocal sent
        sent += 1
        said = answers[min(sent, len(answers)) - 1]
        if isinstance(said, int):
            return httpx2.Response(said)
        raise said("busy", request=request)

    http = httpx2.AsyncClient(transport=httpx2.MockTransport(answer), base_url="https://cluster.example")
    transport = PatientTransport(HttpxTransport(http))
    try:
        return (await transport.request(method, path)).status_code, sent
    except httpx2.TransportError as exc:
        return type(exc), sent
    finally:
        await transport.close()


@pytest.mark.parametrize("answer", [httpx2.ReadTimeout, httpx2.RemoteProtocolError, httpx2.ConnectError, 429, 500, 504])
async def test_reads_are_repeated(monkeypatch: pytest.MonkeyPatch, answer: Answer):
    assert await outcome(monkeypatch, "GET", "/api/v1/pods", answer, answer, 200) == (200, 3)


@pytest.mark.parametrize("answer", [httpx2.ConnectError, httpx2.ConnectTimeout, 429])
async def test_writes_that_were_not_carried_out_are_repeated(monkeypatch: pytest.MonkeyPatch, answer: Answer):
    assert await outcome(monkeypatch, "POST", "/api/v1/pods", answer, 201) == (201, 2)


@pytest.mark.parametrize("answer", [httpx2.ReadTimeout, httpx2.RemoteProtocolError, 409, 500])
async def test_writes_that_may_have_been_carried_out_are_not(monkeypatch: pytest.MonkeyPatch, answer: Answer):
    assert await outcome(monkeypatch, "POST", "/api/v1/pods", answer, 201) == (answer, 1)


@pytest.mark.parametrize(("method", "path", "status"), [("POST", "/pods/a/eviction", 429), ("GET", "/pods/a", 404)])
async def test_an_answer_is_an_answer(monkeypatch: pytest.MonkeyPatch, method: str, path: str, status: int):
    assert await outcome(monkeypatch, method, path, status, 200) == (status, 1)
