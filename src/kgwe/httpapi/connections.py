"""Connections of the API: clients that send or read slowly keep no other client away.

A connection without a complete request is closed after some seconds, and so is one that does not take its reply. When
there are too many, the connection that has waited longest is closed: first of those that never sent a request, so a
client that sends its request at once is served.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Final

from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    import asyncio

#: connections that are open at the same time
MOST_CONNECTIONS: Final = 200
#: seconds for the next request of a connection; a client may need up to twice as long
REQUEST_S: Final = 10.0
# Looks at a connection, one for each REQUEST_S, until the client must have taken its reply.
_REPLY_LOOKS: Final = 6
_numbers = itertools.count()


class GuardedConnection(H11Protocol):
    """A connection that is closed if its client is too slow, or if others need its place."""

    request_s = REQUEST_S
    most = MOST_CONNECTIONS
    _timer: asyncio.TimerHandle | None = None
    _seen: Any = None
    _looks = 0
    _number = 0

    @property
    def is_answering(self) -> bool:
        """Whether a request is complete, and its reply is not."""
        cycle: Any = self.cycle  # None before the first request
        return cycle is not None and not cycle.response_complete

    @property
    def rank(self) -> tuple[bool, int]:
        """The lowest one is closed first."""
        return self.cycle is not None, self._number

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Make room for the connection, and watch it."""
        super().connection_made(transport)
        if (tls := transport.get_extra_info("ssl_object")) is not None and (peer := tls.getpeercert()):
            self.app_state = {**self.app_state, "peer": peer}
        self._number = next(_numbers)
        if len(self.connections) >= self.most:
            others = [each for each in self.connections if isinstance(each, GuardedConnection) and each is not self]
            waiting = [each for each in others if not each.is_answering and not each.transport.is_closing()]
            if waiting:
                min(waiting, key=lambda each: each.rank).transport.abort()
        self._timer = self.loop.call_later(self.request_s, self._look)

    @property
    def is_streaming(self) -> bool:
        """Whether the reply is a stream that never ends, and the client takes what is sent."""
        cycle: Any = self.cycle
        return cycle is not None and cycle.scope["state"].get("stream") and not self.transport.get_write_buffer_size()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop watching."""
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def _look(self) -> None:
        """Close the connection if nothing has happened since the last look."""
        if self.cycle is not self._seen or self.is_streaming:
            self._seen, self._looks = self.cycle, 0
        else:
            self._looks += 1
            if not self.is_answering or self._looks >= _REPLY_LOOKS:
                self.transport.abort()
                return
        self._timer = self.loop.call_later(self.request_s, self._look)
