"""Prometheus as a source: few queries, gaps stay gaps, and every failure says what to do."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import httpx2
import numpy as np
import pytest

from kgwe import errors
from kgwe.metrics.prometheus import PrometheusSource
from kgwe.metrics.prometheus_api import PrometheusSettings
from kgwe.model.usage.window import PodKey
from kgwe.telemetry import http
from kgwe.telemetry.messages import JSON, Reply

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from kgwe.telemetry.messages import Request

END = 1_800_000_600.0
LABELS = {"UUID": "GPU-1", "Hostname": "n1", "namespace": "team", "pod": "a", "container": "main"}
A = PodKey("team", "a")

Values = list[list[Any]]


def series(labels: dict[str, str], *values: tuple[float, str]) -> dict[str, Any]:
    """A series with values at seconds before the end of the window."""
    return {"metric": labels, "values": [[END - before, text] for before, text in values]}


def success(*found: dict[str, Any], **more: Any) -> Reply:
    body = {"status": "success", "data": {"resultType": "matrix", "result": list(found)}, **more}
    return Reply(200, json.dumps(body).encode(), JSON)


def failure(status: int, text: str) -> Reply:
    return Reply(status, json.dumps({"status": "error", "errorType": "execution", "error": text}).encode(), JSON)


@dataclass
class Server:
    """Responds to range queries by what they ask for."""

    respond: Callable[[str, float, float], Reply]
    queries: list[tuple[str, float, float]] = field(default_factory=list)
    requests: list[httpx2.Request] = field(default_factory=list)

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        assert request.url.path == "/prometheus/api/v1/query_range"
        self.requests.append(request)
        asked = request.url.params
        query, first_s, last_s = asked["query"], float(asked["start"]), float(asked["end"])
        self.queries.append((query, first_s, last_s))
        reply = self.respond(query, first_s, last_s)
        return httpx2.Response(reply.status, content=reply.body)


@contextlib.asynccontextmanager
async def asking(
    respond: Callable[[str, float, float], Reply], **settings: Any
) -> AsyncIterator[tuple[PrometheusSource, Server]]:
    server = Server(respond)
    async with httpx2.AsyncClient(transport=httpx2.MockTransport(server)) as client:
        yield PrometheusSource(PrometheusSettings("http://mimir/prometheus/", **settings), client), server


def engine_only(*found: dict[str, Any]) -> Callable[[str, float, float], Reply]:
    return lambda query, *_: success(*found) if "GR_ENGINE" in query else success()


async def test_seven_queries_cover_the_cluster():
    def respond(*_: object) -> Reply:
        return success(*(series({**LABELS, "UUID": f"GPU-{n}"}, (0, "0.5")) for n in range(500)))

    async with asking(respond) as (source, server):
        found = await source.read_window(END, 600, 60)
    assert len(found.devices) == 500
    assert len(server.queries) == 7
    assert {(first_s, last_s) for _, first_s, last_s in server.queries} == {(END - 540, END)}
    assert all("pod=" not in query for query, _, _ in server.queries)


async def test_absent_steps_stay_unknown():
    async with asking(engine_only(series(LABELS, (540, "0.5"), (0, "0.25")))) as (source, _):
        found = await source.read_window(END, 600, 60)
    (row,) = found.find_rows(A)
    assert found.activity[row, [0, 9]].tolist() == [0.5, 0.25]
    assert np.isnan(found.activity[row, 1:9]).all()
    assert np.isnan(found.power_w).all()


async def test_bad_samples_are_counted_and_skipped():
    bad = series(
        LABELS,
        (540, "NaN"),
        (480, "-1"),
        (420, "7"),
        (360, "1e999"),
        (360, "0.5"),
        (300, "0.5"),
        (330, "0.1"),
        (0, "x"),
    )
    twin = series({**LABELS, "instance": "other:9400"}, (300, "0.9"))
    nameless = series({"Hostname": "n1"}, (0, "0.5"))
    async with asking(engine_only(bad, twin, nameless)) as (source, _):
        found = await source.read_window(END, 600, 60)
    assert found.rejected == {
        "nan": 1,
        "malformed": 2,
        "negative": 1,
        "out_of_range": 2,
        "duplicate": 2,
        "out_of_order": 1,
    }
    (row,) = found.find_rows(A)
    assert [n for n, value in enumerate(found.activity[row]) if not np.isnan(value)] == [4]
    assert found.activity[row, 4] == 0.5


async def test_renamed_labels_name_the_pods_and_not_the_exporter():
    exporter = {"pod": "metrics-1", "namespace": "monitoring"}
    busy = {"UUID": "GPU-1", "Hostname": "n1", **exporter, "exported_pod": "a", "exported_namespace": "team"}
    idle = {"UUID": "GPU-2", "Hostname": "n1", **exporter}
    async with asking(engine_only(series(idle, (0, "0")), series(busy, (0, "0.5")))) as (source, server):
        found = await source.read_window(END, 600, 60)
        assert {device.key.uuid: device.key.pod for device in found.devices} == {"GPU-1": A, "GPU-2": None}
        server.respond = engine_only(series(idle, (0, "0")))
        later = await source.read_window(END, 600, 60)
    assert [device.key.pod for device in later.devices] == [None]  # remembered, although no series shows it now


async def test_the_exporters_own_pod_is_known_by_asking_for_no_gpu_and_not_by_its_name():
    own = {"pod": "metrics-1", "namespace": "monitoring"}
    forged = {"pod": "dcgm-exporter-1", "namespace": "team"}
    respond = engine_only(
        series({"UUID": "GPU-1", "Hostname": "n1", **own}, (0, "0")),
        series({"UUID": "GPU-2", "Hostname": "n1", **forged}, (0, "0")),
    )
    async with httpx2.AsyncClient(transport=httpx2.MockTransport(Server(respond))) as client:
        source = PrometheusSource(
            PrometheusSettings("http://mimir/prometheus/"),
            client,
            is_without_gpus=PodKey("monitoring", "metrics-1").__eq__,
        )
        found = await source.read_window(END, 600, 60)
    assert {device.key.uuid: device.key.pod for device in found.devices} == {
        "GPU-1": None,
        "GPU-2": PodKey("team", "dcgm-exporter-1"),
    }


async def test_a_query_that_reads_too_much_is_asked_in_parts():
    def respond(_: str, first_s: float, last_s: float) -> Reply:
        if last_s - first_s > 200:
            return failure(422, "query processing would load too many samples into memory in query execution")
        times = np.arange(first_s, last_s + 1, 60)
        return success({"metric": LABELS, "values": [[at_s, "0.5"] for at_s in times.tolist()]})

    async with asking(respond) as (source, server):
        found = await source.read_window(END, 600, 60)
        assert source.problem() is None
    assert not np.isnan(found.activity).any()
    assert len(server.queries) == 7 * 7  # 10 steps, 5 + 5, 3 + 2 + 3 + 2


async def test_a_query_that_is_always_too_much_is_a_problem():
    async with asking(lambda *_: failure(422, "too many samples")) as (source, _):
        assert (await source.read_window(END, 600, 60)).devices == ()
        assert "too many samples" in (source.problem() or "")


async def test_a_part_of_the_data_is_unknown():
    found = series(LABELS, (0, "0"))
    async with asking(lambda *_: success(found, warnings=["no StoreAPIs matched for this query"])) as (source, server):
        assert (await source.read_window(END, 600, 60)).devices == ()
        assert source.problem() == "Prometheus returned a part of the data: no StoreAPIs matched for this query"
        server.respond = lambda *_: success(found, warnings=["PromQL warning: mixed"], infos=["PromQL info: x"])
        assert len((await source.read_window(END, 600, 60)).devices) == 1
        assert source.problem() is None


async def test_one_failed_query_leaves_the_other_quantities_known():
    def respond(query: str, *_: float) -> Reply:
        return failure(503, "query queue full") if "TENSOR" in query else success(series(LABELS, (0, "0.5")))

    async with asking(respond) as (source, _):
        found = await source.read_window(END, 600, 60)
        assert "query queue full" in (source.problem() or "")
    assert found.activity[0, 9] == 0.5
    assert np.isnan(found.tensor).all()


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (Reply(401, b"Unauthorized"), "status 401 and no result; check the token file"),
        (Reply(403, b"<html>"), "check the permissions"),
        (Reply(404, b"404 page not found"), "check the path of the URL"),
        (Reply(302, b""), "a login proxy redirects"),
        (Reply(200, b"<html>"), "is not a query API"),
        (Reply(200, b'{"status":"success","data":{"resultType":"vector","result":[]}}'), "returned a vector"),
        (Reply(200, b'{"status":"success","data":{"resultType":"matrix","result":[{"metric":3}]}}'), "no result"),
        (Reply(200, b'{"status":"success"'), "no result"),
        (failure(400, "parse error"), "status 400: parse error"),
    ],
)
async def test_a_reply_without_data_is_a_problem_with_advice(reply, words):
    async with asking(lambda *_: reply) as (source, _):
        assert (await source.read_window(END, 600, 60)).devices == ()
        assert words in (source.problem() or "")


async def test_no_server_is_a_problem_and_a_window_without_devices():
    source = PrometheusSource(PrometheusSettings("http://user:secret@127.0.0.1:1"))
    assert source.problem() == "Prometheus has not been asked yet"
    assert (await source.read_window(END, 600, 60)).devices == ()
    assert "Prometheus at http://127.0.0.1:1 does not respond" in (source.problem() or "")
    assert "secret" not in (source.problem() or "")
    await source.close()


async def test_a_server_that_hangs_is_a_problem_after_the_deadline():
    released = asyncio.Event()

    async def hang(_: Request) -> Reply:
        await released.wait()
        return success()

    async with http.serving(hang, http.Address("127.0.0.1", 0)) as port:
        source = PrometheusSource(PrometheusSettings(f"http://127.0.0.1:{port}", timeout_s=0.05))
        await source.read_window(END, 600, 60)
        assert "took longer than 0.05 s" in (source.problem() or "")
        released.set()
        await source.close()


async def test_no_series_and_old_series_are_problems():
    async with asking(lambda *_: success()) as (source, server):
        await source.read_window(END, 600, 60)
        assert "has no GPU metrics in the window" in (source.problem() or "")
        server.respond = engine_only(series(LABELS, (300, "0.5")))
        await source.read_window(END, 600, 60)
        assert source.problem() == "the newest GPU metrics in Prometheus are 300 s old"


async def test_a_token_is_read_again_when_it_changes(tmp_path: Path):
    token = tmp_path / "token"
    token.write_text("first\n")
    async with asking(lambda *_: success(), token_file=token, tenant="team-a") as (source, server):
        await source.read_window(END, 600, 60)
        assert {request.headers["authorization"] for request in server.requests} == {"Bearer first"}
        assert {request.headers["x-scope-orgid"] for request in server.requests} == {"team-a"}
        server.requests.clear()
        token.write_text("second\n")
        await source.read_window(END, 600, 60)
        assert {request.headers["authorization"] for request in server.requests} == {"Bearer second"}
        token.unlink()
        await source.read_window(END, 600, 60)
        assert "cannot read" in (source.problem() or "")


async def test_a_user_logs_in_with_the_password_in_a_file(tmp_path: Path):
    (tmp_path / "password").write_text("s3cret\n")
    settings = {"username": "kgwe", "password_file": tmp_path / "password"}
    async with asking(lambda *_: success(), **settings) as (source, server):
        await source.read_window(END, 600, 60)
    expected = "Basic " + base64.b64encode(b"kgwe:s3cret").decode()
    assert {request.headers["authorization"] for request in server.requests} == {expected}


def test_wrong_settings_are_refused_with_an_example(tmp_path: Path):
    with pytest.raises(errors.Permanent, match="write it as http://HOST:9090"):
        PrometheusSource(PrometheusSettings("prometheus:9090"))
    with pytest.raises(errors.Permanent, match="cannot read the certificate authority"):
        PrometheusSource(PrometheusSettings("https://prometheus", ca_file=tmp_path / "none.pem"))
    with pytest.raises(errors.Permanent, match="are not label matchers"):
        PrometheusSource(PrometheusSettings("http://prometheus", matchers='a="b"}) or vector(1'))
