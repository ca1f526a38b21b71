"""gRPC over the kubelet's unix sockets.

A kubelet that restarts creates its sockets again and removes those of device plugins. A socket is therefore known by
its file, not by its path: `read_identity` changes when another process listens there.
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

# What a kubelet sends at most; its own client has the same limit.
_MOST_BYTES: Final = 16 * 1024 * 1024
# One thread suffices, and a kubelet that is back must be found within a second.
OPTIONS: Final[tuple[tuple[str, Any], ...]] = (
    ("grpc.max_receive_message_length", _MOST_BYTES),
    ("grpc.max_send_message_length", _MOST_BYTES),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.enable_http_proxy", 0),
    # One channel of ours must not give away the connection of another to a socket of the same path.
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
        # A kubelet says no more than this for most of what goes wrong.
        grpc.StatusCode.UNKNOWN,
    }
)


def socket_target(socket: Path) -> str:
    return f"unix:{socket}"


def open_channel(socket: Path) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(socket_target(socket), options=OPTIONS)


def read_identity(socket: Path) -> tuple[int, int, int] | None:
    """Return what changes when the socket is created again; None when it does not exist."""
    try:
        found = socket.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_ctime_ns


async def call(channel: grpc.aio.Channel, method: str, request: Message, reply: type[Any], *, deadline_s: float) -> Any:
    """One call; errors are those of `kgwe.errors`."""
    ask = channel.unary_unary(method, request_serializer=_serialised, response_deserializer=reply.FromString)
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


def _serialised(message: Message) -> bytes:
    return message.SerializeToString()
