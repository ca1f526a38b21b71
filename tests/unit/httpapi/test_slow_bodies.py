"""Bodies that come slowly keep no other client away."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from kgwe.httpapi import app as api_app
from kgwe.httpapi.app import Api
from kgwe.httpapi.authentication import User
from kgwe.httpapi.limits import RateLimiter
from kgwe.httpapi.routes import NoQuery, Route

if TYPE_CHECKING:
    import pytest


class Body(msgspec.Struct):
    text: str = ""


class Strangers:
    async def authenticate(self, _request: Any) -> User:
        return User("")


async def answer(_user: User, _query: NoQuery, body: Body) -> Body:
    return body


def make_api() -> Api:
    route = Route("/in", "Sign in", NoQuery, Body, answer, method="POST", body=Body)
    return Api([route], Strangers(), title="t", version="1", strangers=RateLimiter(1000.0, 1000))


async def send_to(api: Api, body: bytes | None, address: str = "10.0.0.1") -> dict[str, Any]:
    """Send a request and return the start of its reply. None: the body never comes."""
    scope = {
        "type": "http", "method": "POST", "path": "/in", "raw_path": b"/in", "query_string": b"", "root_path": "",
        "headers": [(b"content-type", b"application/json")], "client": (address, 1), "scheme": "https",
        "http_version": "1.1", "server": ("127.0.0.1", 8443), "state": {},
    }  # fmt: skip
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        if body is None:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    await api.asgi(scope, receive, send)
    found: dict[str, Any] = sent[0]
    return found


async def test_half_sent_bodies_stop_no_other_sign_in() -> None:
    api = make_api()
    slow = [asyncio.create_task(send_to(api, None)) for _ in range(40)]
    for _ in range(3):
        await asyncio.sleep(0)
    assert (await send_to(api, b"{}", "10.0.0.2"))["status"] == 200
    done = [task.result()["status"] for task in slow if task.done()]
    assert set(done) <= {429}
    for task in slow:
        task.cancel()
    await asyncio.gather(*slow, return_exceptions=True)
    slow = [asyncio.create_task(send_to(api, None)) for _ in range(9)]
    await asyncio.sleep(0)
    assert (await send_to(api, b"{}"))["status"] == 200
    for task in slow:
        task.cancel()
    await asyncio.gather(*slow, return_exceptions=True)


async def test_a_body_that_does_not_come_ends_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_app, "_BODY_S", 0.01)
    start = await send_to(make_api(), None)
    assert start["status"] == 408
    assert (b"connection", b"close") in start["headers"]
