"""A loopback server that replies to each request with one pod, and to a watch with events.

It runs in a separate process and prints its port, so its CPU time is not counted as the client's.
"""

from __future__ import annotations

import asyncio
import signal
import sys

import httptools
import msgspec

from kgwe.bench.loop import loop_factory
from kgwe.bench.nodes.informer import build_pod
from kgwe.local.host.ports import LOOPBACK

#: Seconds between two watch events. Each event arrives alone, as on a live cluster.
_EVENT_EVERY_S = 0.002

_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
_STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"


class _Connection(asyncio.Protocol):
    def __init__(self) -> None:
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._url = b""
        body = msgspec.json.encode(build_pod(0))
        event = b'{"type":"MODIFIED","object":' + body + b"}\n"
        self._reply = _HEAD % len(body) + body
        self._event = b"%x\r\n%b\r\n" % (len(event), event)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment] # a Transport
        self._send(b"")

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._transport = None

    def on_message_begin(self) -> None:
        self._url = b""

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_message_complete(self) -> None:
        if b"watch=" in self._url:
            self._send(_STREAM_HEAD)
            self._watch()
        else:
            self._send(self._reply)

    def _watch(self) -> None:
        if self._transport is not None:
            self._send(self._event)
            asyncio.get_running_loop().call_later(_EVENT_EVERY_S, self._watch)

    def _send(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)


async def serve() -> None:
    """Serve until SIGTERM. The port is the only line on stdout."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    server = await loop.create_server(_Connection, LOOPBACK, 0)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await stop.wait()
    server.close()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(serve())
