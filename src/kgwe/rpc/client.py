"""A gRPC client of one service at one address: one channel, a deadline for each call, certificates that are reloaded.

Errors are those of `kgwe.errors`: Transient if the server does not respond; NotFound, Conflict and Permanent from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import grpc

from kgwe import errors
from kgwe.rpc import tls

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterable

    from google.protobuf.message import Message

    from kgwe.rpc.tls import Files

Reply = TypeVar("Reply", bound="Message")

_ERRORS: Final = {
    grpc.StatusCode.NOT_FOUND: errors.NotFound,
    grpc.StatusCode.FAILED_PRECONDITION: errors.Conflict,
    grpc.StatusCode.INVALID_ARGUMENT: errors.Permanent,
    grpc.StatusCode.PERMISSION_DENIED: errors.Permanent,
    grpc.StatusCode.UNAUTHENTICATED: errors.Permanent,
    grpc.StatusCode.UNIMPLEMENTED: errors.Permanent,
}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A service, and how to connect to it."""

    name: str
    """What messages call the server, such as `agent`."""
    service: str
    address: str
    server_name: str
    """The name in the server's certificate."""
    files: Files | None = None
    """Certificates; None for a server on this machine."""
    deadline_s: float = 5.0
    largest_message: int = 4 << 20
    options: tuple[tuple[str, Any], ...] = ()


class RpcClient:
    """A client of one server. Close it, or use it as a context manager."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._stamp: tuple[tuple[int, int], ...] = ()
        self._channel: grpc.aio.Channel | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()

    async def _call(self, name: str, request: Message, reply: type[Reply], deadline_s: float | None = None) -> Reply:
        channel = await self._connect()
        method: Any = channel.unary_unary(
            f"/{self._endpoint.service}/{name}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=reply.FromString,
        )
        try:
            answer: Reply = await method(request, timeout=deadline_s or self._endpoint.deadline_s)
        except grpc.aio.AioRpcError as exc:
            raise self._translate_error(exc) from exc
        return answer

    async def _send(
        self, name: str, requests: AsyncIterable[Message], kind: type[Message], reply: type[Reply]
    ) -> Reply:
        """Send messages of a kind until the iterator ends; return the reply."""
        channel = await self._connect()
        method: Any = channel.stream_unary(
            f"/{self._endpoint.service}/{name}",
            request_serializer=kind.SerializeToString,
            response_deserializer=reply.FromString,
        )
        try:
            answer: Reply = await method(requests)
        except grpc.aio.AioRpcError as exc:
            raise self._translate_error(exc) from exc
        return answer

    async def _receive(self, name: str, request: Message, reply: type[Reply]) -> AsyncGenerator[Reply]:
        """Yield messages until the caller stops or the server ends the stream; raise Transient if it breaks."""
        channel = await self._connect()
        method: Any = channel.unary_stream(
            f"/{self._endpoint.service}/{name}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=reply.FromString,
        )
        call = method(request)
        try:
            async for message in call:
                yield message
        except grpc.aio.AioRpcError as exc:
            raise self._translate_error(exc) from exc
        finally:
            call.cancel()

    def _translate_error(self, exc: grpc.aio.AioRpcError) -> errors.KgweError:
        kind = _ERRORS.get(exc.code(), errors.Transient)
        return kind(f"{self._endpoint.name} {self._endpoint.address}: {exc.details() or exc.code().name}")

    async def _connect(self) -> grpc.aio.Channel:
        files = self._endpoint.files
        stamp = files.stamp() if files else ()
        if self._channel is not None and stamp != self._stamp:
            await self.close()
        if self._channel is None:
            self._stamp = stamp
            self._channel = self._open(files)
        return self._channel

    def _open(self, files: Files | None) -> grpc.aio.Channel:
        endpoint = self._endpoint
        options: list[tuple[str, Any]] = [
            ("grpc.max_receive_message_length", endpoint.largest_message),
            # Servers are in the same cluster, without a proxy in between.
            ("grpc.enable_http_proxy", 0),
            *endpoint.options,
        ]
        if files is None:
            return grpc.aio.insecure_channel(endpoint.address, options=options)
        options.append(("grpc.ssl_target_name_override", endpoint.server_name))
        return grpc.aio.secure_channel(endpoint.address, tls.channel_credentials(files), options=options)
