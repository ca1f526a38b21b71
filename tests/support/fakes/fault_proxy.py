"""A proxy between one client and the API server that breaks what passes through it, on command.

It ends TLS on both sides and reads requests, so that it can answer in the API server's place. Faults:

    partition   nothing passes, on old connections and new ones, until `heal`; then all of it does
    half_open   nothing more passes on the connections there are, for ever; new ones work
    reset       the connections there are end without a word
    disturb     each request is answered by a function, delayed, or passed on
    garble      answers end in bytes that are no HTTP
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import ssl
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Self

import yaml

from kgwe.local.cluster import certificates, components

if TYPE_CHECKING:
    import random
    from collections.abc import Callable
    from pathlib import Path

    from kgwe.local.cluster.cluster import LocalCluster

_LARGEST_HEAD: Final = 1 << 20
_LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
NOISE: Final = b'\xff\x00)]}HTTP/9.9 \r\n\r\nzz\r\n{"kind":'


@dataclass(frozen=True)
class Disturbance:
    """What happens to one request: it waits, and is answered with this unless that is empty."""

    delay_s: float = 0.0
    answer: bytes = b""


@dataclass(eq=False)
class _Link:
    writers: list[asyncio.StreamWriter]
    flowing: asyncio.Event = field(default_factory=asyncio.Event)

    def abort(self) -> None:
        for writer in self.writers:
            writer.transport.abort()


class FaultProxy:
    """One client's way to the API server of a local cluster."""

    def __init__(self, cluster: LocalCluster) -> None:
        files = cluster.layout.certificates
        self._target = cluster.state().ports[components.APISERVER]
        self._far = ssl.create_default_context(cafile=str(files.authority))
        self._near = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        pair = files.pair(certificates.SERVER)
        self._near.load_cert_chain(pair.certificate, pair.key)
        self._server: asyncio.Server | None = None
        self._links: set[_Link] = set()
        self._open = asyncio.Event()
        self._open.set()
        self.disturb: Callable[[bytes], Disturbance | None] = lambda _head: None
        self.garble: Callable[[], bool] = lambda: False
        #: requests and answers that a fault held up or changed, and connections that one broke
        self.hits = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(
            self._serve, "127.0.0.1", 0, ssl=self._near, limit=_LARGEST_HEAD, ssl_shutdown_timeout=0.5
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.heal()
        self.reset()

    def kubeconfig(self, original: Path, path: Path) -> Path:
        """The same user of the same cluster, through this proxy."""
        assert self._server is not None
        document: dict[str, Any] = yaml.safe_load(original.read_text())
        port = self._server.sockets[0].getsockname()[1]
        document["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{port}"
        path.write_text(yaml.safe_dump(document))
        return path

    # --- faults -----------------------------------------------------------------------------------------

    def partition(self) -> None:
        self._open.clear()

    def half_open(self) -> None:
        for link in self._links:
            link.flowing.clear()
            self.hits += 1

    def reset(self) -> None:
        for link in list(self._links):
            link.abort()
            self.hits += 1

    def heal(self) -> None:
        """Pass everything on again, but what was half open."""
        self.disturb, self.garble = lambda _head: None, lambda: False
        self._open.set()

    # --- passing on -------------------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = _Link([writer])
        link.flowing.set()
        self._links.add(link)
        try:
            await self._open.wait()
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target, ssl=self._far)
            link.writers.append(far_writer)
            ways = [
                asyncio.ensure_future(self._requests(reader, far_writer, writer, link)),
                asyncio.ensure_future(self._answers(far_reader, writer, link)),
            ]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
        except OSError:
            pass
        finally:
            self._links.discard(link)
            link.abort()

    async def _passing(self, link: _Link) -> None:
        self.hits += not self._open.is_set()
        await self._open.wait()
        await link.flowing.wait()

    async def _requests(
        self, reader: asyncio.StreamReader, far: asyncio.StreamWriter, near: asyncio.StreamWriter, link: _Link
    ) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = _LENGTH.search(head)
                body = await reader.readexactly(int(length[1])) if length else b""
                await self._passing(link)
                disturbance = self.disturb(head) or Disturbance()
                self.hits += disturbance != Disturbance()
                await asyncio.sleep(disturbance.delay_s)
                if disturbance.answer:
                    near.write(disturbance.answer)
                    await near.drain()
                else:
                    far.write(head + body)
                    await far.drain()

    async def _answers(self, far: asyncio.StreamReader, near: asyncio.StreamWriter, link: _Link) -> None:
        with contextlib.suppress(OSError):
            while data := await far.read(65536):
                await self._passing(link)
                if self.garble():
                    self.hits += 1
                    near.write(NOISE)
                    await near.drain()
                    return
                near.write(data)
                await near.drain()


def status_answer(code: int, reason: str, *headers: str) -> bytes:
    """An error as the API server words it."""
    status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason}
    body = json.dumps({**status, "message": f"{reason}, says the test"}).encode()
    lines = [f"HTTP/1.1 {code} {reason}", "Content-Type: application/json", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


def overloaded(rng: random.Random) -> Callable[[bytes], Disturbance | None]:
    """An API server in trouble: of ten requests two get 429, two 500, three wait, and three pass."""

    def answer(_head: bytes) -> Disturbance | None:
        draw = rng.random()
        if draw < 0.2:
            return Disturbance(answer=status_answer(429, "TooManyRequests", "Retry-After: 1"))
        if draw < 0.4:
            return Disturbance(answer=status_answer(500, "InternalError"))
        return Disturbance(delay_s=rng.uniform(0.1, 1.5)) if draw < 0.7 else None

    return answer


def nonsense(rng: random.Random) -> Callable[[bytes], Disturbance | None]:
    """Of ten requests two get bytes that are no HTTP, and two a page for people."""
    page = b"<html>Welcome to the hotel network</html>"
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: %d\r\n\r\n" % len(page)

    def answer(_head: bytes) -> Disturbance | None:
        draw = rng.random()
        if draw < 0.2:
            return Disturbance(answer=rng.randbytes(64) + NOISE)
        return Disturbance(answer=head + page) if draw < 0.4 else None

    return answer
