"""What kube-scheduler really sends to an extender: a server that takes every call down and lets nothing be bound.

It offers every node back, so that kube-scheduler goes on to ask for scores, and refuses to bind, so that the pods stay
as they are for whoever is measured with them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import yaml

from kgwe.kube import extender, scheduler_configuration

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator


class _Meta(msgspec.Struct, frozen=True):
    name: str = ""


class _Pod(msgspec.Struct, frozen=True):
    metadata: _Meta = _Meta()


class _Call(msgspec.Struct, frozen=True):
    Pod: _Pod
    NodeNames: msgspec.Raw


class Payload(msgspec.Struct, frozen=True):
    """Both calls about one pod, as they came."""

    filter: bytes
    prioritize: bytes


class Recorder:
    """The ASGI application."""

    def __init__(self) -> None:
        self._calls: dict[str, dict[str, bytes]] = {"/filter": {}, "/prioritize": {}}
        self._decoder = msgspec.json.Decoder(_Call)

    async def __call__(
        self, scope: dict[str, Any], receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]
    ) -> None:
        if scope["type"] != "http":
            return
        body = b""
        more = True
        while more:
            event = await receive()
            body += event.get("body", b"")
            more = event.get("more_body", False)
        reply = self._answer(scope["path"], body)
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(reply))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": reply})

    def _answer(self, path: str, body: bytes) -> bytes:
        calls = self._calls.get(path)
        if calls is None:
            return extender.bound("nothing is bound while calls are captured")
        call = self._decoder.decode(body)
        calls[call.Pod.metadata.name] = body
        return b"[]" if path == "/prioritize" else b'{"NodeNames":' + bytes(call.NodeNames) + b"}"

    def payloads(self) -> Iterator[Payload]:
        """Of every pod that was asked about twice over."""
        for pod, filtering in sorted(self._calls["/filter"].items()):
            if pod in self._calls["/prioritize"]:
                yield Payload(filtering, self._calls["/prioritize"][pod])


def configuration(url: str, percentage: int) -> str:
    """kube-scheduler asks at `url` about every GPU pod, with that share of all nodes (0: as many as it likes)."""
    document = scheduler_configuration.document(url, binds=True)
    if percentage:
        document["percentageOfNodesToScore"] = percentage
    return yaml.safe_dump(document, sort_keys=False)
