"""Limits over all connections of one server: their number, and the bytes of their bodies.

A full server closes the connection that is least important. That is the oldest one without a certificate or a
complete request; otherwise the longest idle one of the peer with the most connections. A connection with a pending
reply is never closed. So half-sent requests do not block other clients, even from the same address.

The total bytes of bodies in memory are bounded. Above the bound, the connection with the largest incomplete body is
refused.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

import structlog

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kgwe.telemetry.messages import App
    from kgwe.telemetry.tls import ReloadingContext

log = structlog.get_logger(__name__)

# Seconds for pending replies when the server stops.
_GRACE_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Limits:
    #: maximum bytes of one body
    body: int = 1 << 20
    #: maximum bytes of all unanswered bodies together
    bodies: int = 64 << 20
    connections: int = 256
    #: maximum connections from one address
    per_peer: int = 128


class LimitedConnection(Protocol):
    """A connection as the limiter sees it; `Connection` implements it."""

    peer: str
    #: its number among the admitted connections
    arrival: int
    #: the client presented a certificate, or has sent a complete request
    is_proven: bool
    #: a request has begun and is incomplete
    is_open: bool
    #: time at which its last request began
    active_at: float
    closed: asyncio.Future[None]

    @property
    def is_answering(self) -> bool: ...

    @property
    def body_size(self) -> int: ...

    def refuse_body(self) -> None: ...

    def stop(self) -> None: ...

    def abort(self) -> None: ...

    def connection_lost(self, exc: Exception | None) -> None: ...


class ConnectionLimiter:
    """All connections of one server."""

    def __init__(self, app: App, limits: Limits, tls: ReloadingContext | None) -> None:
        self.app = app
        self.limits = limits
        self.tls = tls
        self.connections: set[LimitedConnection] = set()
        self.tasks: set[asyncio.Task[None]] = set()  # pending replies and handshakes
        self.stopping = False
        self._peers: Counter[str] = Counter()
        self._arrivals = itertools.count(1)
        self._held = 0  # bytes of bodies
        self._strangers: set[frozenset[str]] = set()  # refused names

    # --- coming and going -------------------------------------------------------------------------------

    def admit(self, connection: LimitedConnection) -> bool:
        """Admit the connection, possibly after closing another; return whether there is room."""
        peer = connection.peer
        if self.stopping or not self._make_room(peer):
            return False
        self.connections.add(connection)
        connection.arrival = next(self._arrivals)
        self._peers[peer] += 1
        return True

    def remove(self, connection: LimitedConnection) -> None:
        if connection not in self.connections:
            return
        self.connections.remove(connection)
        self._peers[connection.peer] -= 1
        if not self._peers[connection.peer]:
            del self._peers[connection.peer]

    def _make_room(self, peer: str) -> bool:
        if self._peers[peer] >= self.limits.per_peer:
            return self._close_one(each for each in self.connections if each.peer == peer)
        if len(self.connections) < self.limits.connections:
            return True
        if self._close_one(each for each in self.connections if not each.is_proven):
            return True
        largest = max(self._peers, key=self._peers.__getitem__)
        return self._close_one(each for each in self.connections if each.peer == largest)

    def _close_one(self, among: Iterable[LimitedConnection]) -> bool:
        idle = [each for each in among if not each.is_answering]
        if not idle:
            return False
        # uvloop's clock has milliseconds: among equally idle connections the first to arrive is closed.
        least = min(idle, key=lambda each: (each.is_proven, each.active_at, each.arrival))
        self.remove(least)
        least.abort()
        return True

    # --- bodies -----------------------------------------------------------------------------------------

    def reserve_body(self, size: int) -> None:
        """Count more (or, if negative, fewer) bytes of bodies in memory."""
        self._held += size
        if self._held > self.limits.bodies:
            open_ = [each for each in self.connections if each.is_open]
            if open_:
                max(open_, key=lambda each: each.body_size).refuse_body()

    # --- clients ----------------------------------------------------------------------------------------

    def log_refused_client(self, names: frozenset[str], peer: str) -> None:
        """Log a client whose valid certificate has another name, once: it may be a configuration error."""
        if names not in self._strangers and len(self._strangers) < 100:  # noqa: PLR2004 - a bound for the set
            self._strangers.add(names)
            wanted = sorted(self.tls.files.names) if self.tls else []
            log.warning("client_refused", peer=peer, names=sorted(names), allowed=wanted)

    # --- the end ----------------------------------------------------------------------------------------

    async def finish(self) -> None:
        """Close idle connections at once, and wait a limited time for pending replies."""
        self.stopping = True
        for connection in list(self.connections):
            connection.stop()
        left: list[asyncio.Future[None]] = [connection.closed for connection in self.connections]
        left += self.tasks
        if left:
            await asyncio.wait(left, timeout=_GRACE_S)
        for connection in list(self.connections):
            connection.abort()
            connection.connection_lost(None)
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    def run(self, task: asyncio.Task[None]) -> None:
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
