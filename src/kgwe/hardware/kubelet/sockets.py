"""gRPC over the kubelet's unix sockets.

A restarting kubelet recreates its sockets and removes those of device plugins. So a socket is identified by its file,
not its path: `read_identity` changes when another process listens there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import grpc
import grpc.aio

from kgwe import errors

if TYPE_CHECKING:
    from collections.abc import Awaitable
    from pathlib import Path

    from google.protobuf.message import Message

# Maximum size of a response; the kubelet's own client has the same limit.
_MOST_BYTES: Final = 16 * 1024 * 1024
# One thread is enough, and a restarted kubelet must be found within a second.
OPTIONS: Final[tuple[tuple[str, Any], ...]] = (
    ("grpc.max_receive_message_length", _MOST_BYTES),
    ("grpc.max_send_message_length", _MOST_BYTES),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.enable_http_proxy", 0),
    # Channels must not share a connection to a socket with the same path.
    ("grpc.use_local_subchannel_pool", 1),
)

_NOT_NOW: Final = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.INTERNAL,
        # The code that the kubelet returns for most errors.
        grpc.StatusCode.UNKNOWN,
    }
)


def socket_target(socket: Path) -> str:
    return f"unix:{socket}"


def open_channel(socket: Path) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(socket_target(socket), options=OPTIONS)


def read_identity(socket: Path) -> tuple[int, int, int] | None:
    """Return a value that changes when the socket is recreated; None if it does not exist."""
    try:
        found = socket.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_ctime_ns


async def call(channel: grpc.aio.Channel, method: str, request: Message, reply: type[Any], *, deadline_s: float) -> Any:
    """Make one call; errors are those of `kgwe.errors`."""
    ask = channel.unary_unary(method, request_serializer=_serialize, response_deserializer=reply.FromString)
    answer: Awaitable[Any] = ask(request, timeout=deadline_s)
    try:
        return await answer
    except grpc.aio.AioRpcError as exc:
        message = f"{method}: {exc.code().name}: {exc.details()}"
        if exc.code() is grpc.StatusCode.NOT_FOUND:
            raise errors.NotFound(message) from exc
        if exc.code() in _NOT_NOW:
            raise errors.Transient(message) from exc
        raise errors.Permanent(message) from exc


def _serialize(message: Message) -> bytes:
    return message.SerializeToString()
