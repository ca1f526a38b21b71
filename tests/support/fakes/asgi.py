"""Calls an ASGI application without a server."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


async def get(app: Any, url: str, headers: dict[str, str] | None = None, method: str = "GET") -> Answer:
    """Request a path with its query."""
    parts = urlsplit(url)
    raw = [(name.lower().encode(), value.encode()) for name, value in (headers or {}).items()]
    scope = {
        "type": "http", "method": method, "path": parts.path, "raw_path": parts.path.encode(), "root_path": "",
        "query_string": parts.query.encode(), "headers": raw, "client": ("127.0.0.1", 1), "scheme": "https",
        "http_version": "1.1", "server": ("127.0.0.1", 8443),
    }  # fmt: skip
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await app(scope, receive, send)
    start = sent[0]
    body = b"".join(each.get("body", b"") for each in sent[1:])
    return Answer(start["status"], {key.decode(): value.decode() for key, value in start["headers"]}, body)
