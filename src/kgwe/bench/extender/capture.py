"""A server that records the calls of kube-scheduler to an extender, and binds nothing.

It returns all nodes, so that kube-scheduler also sends /prioritize. It refuses to bind, so that the pods stay
unchanged for the measurement.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import yaml

from kgwe.kube.translate import extender_wire, scheduler_config
from kgwe.telemetry.http import JSON, Reply

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kgwe.telemetry.http import Request


class _Meta(msgspec.Struct, frozen=True):
    name: str = ""


class _Pod(msgspec.Struct, frozen=True):
    metadata: _Meta = _Meta()


class _Call(msgspec.Struct, frozen=True):
    Pod: _Pod
    NodeNames: msgspec.Raw


class Payload(msgspec.Struct, frozen=True):
    """Both recorded calls about one pod."""

    filter: bytes
    prioritize: bytes


class Recorder:
    """The ASGI application that records calls."""

    def __init__(self) -> None:
        self._calls: dict[str, dict[str, bytes]] = {"/filter": {}, "/prioritize": {}}
        self._decoder = msgspec.json.Decoder(_Call)

    def __call__(self, request: Request) -> Reply:
        return Reply(200, self._answer(request.path, request.body), JSON)

    def _answer(self, path: str, body: bytes) -> bytes:
        calls = self._calls.get(path)
        if calls is None:
            return extender_wire.reply_to_bind("pods are not bound while calls are recorded")
        call = self._decoder.decode(body)
        calls[call.Pod.metadata.name] = body
        return b"[]" if path == "/prioritize" else b'{"NodeNames":' + bytes(call.NodeNames) + b"}"

    def payloads(self) -> Iterator[Payload]:
        """Return the calls of each pod for which both calls were recorded."""
        for pod, filtering in sorted(self._calls["/filter"].items()):
            if pod in self._calls["/prioritize"]:
                yield Payload(filtering, self._calls["/prioritize"][pod])


def build_configuration(url: str, percentage: int, tls: scheduler_config.ClientFiles | None = None) -> str:
    """Return a kube-scheduler configuration that calls `url` for each GPU pod, with this percentage of nodes (0:
    default).
    """
    document = scheduler_config.build_config(url, binds=True, tls=tls)
    if percentage:
        document["percentageOfNodesToScore"] = percentage
    return yaml.safe_dump(document, sort_keys=False)
