"""The gRPC server of a service: limits, malformed requests, errors as status codes, health and reflection.

A service is an object with one coroutine per call, and a table of the messages of each call. A request that cannot be
decoded ends with INVALID_ARGUMENT; gRPC itself would return UNKNOWN and log a traceback.
"""

from __future__ import annotations

import contextlib
import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import grpc
import structlog
from google.protobuf.message import DecodeError

from kgwe import errors
from kgwe.rpc import tls

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from google.protobuf.message import Message

log = structlog.get_logger(__name__)

# Seconds after which a vanished client is detected and its stream ended.
_KEEPALIVE_MS: Final = 60_000
_GRACE_S: Final = 1.0

_CODES: Final = (
    (errors.NotFound, grpc.StatusCode.NOT_FOUND),
    (errors.Conflict, grpc.StatusCode.FAILED_PRECONDITION),
    (errors.Transient, grpc.StatusCode.UNAVAILABLE),
    (errors.Permanent, grpc.StatusCode.INVALID_ARGUMENT),
)


class Exhausted(errors.Transient):
    """The server is at a limit; the client tries again later."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a service: the types of its messages."""

    request: type[Message]
    reply: type[Message]
    is_client_stream: bool = False
    is_server_stream: bool = False


@dataclass(frozen=True, slots=True)
class Service:
    """A service: its full name, its calls and the object that answers them."""

    name: str
    calls: Mapping[str, Call]
    target: object


@dataclass(frozen=True, slots=True)
class Limits:
    largest_message: int = 4 << 20
    concurrent_calls: int = 256
    calls_per_connection: int = 128
    """Calls of one connection; more of them wait at the client."""
    watches: int = 16
    """Streams of health and reflection, which stay open as long as the client likes."""


def _make_reader(kind: type[Message]) -> Callable[[bytes], Message | _Malformed]:
    def read(data: bytes) -> Message | _Malformed:
        try:
            return kind.FromString(data)
        except (DecodeError, UnicodeError, RecursionError, OverflowError, ValueError) as exc:
            return _Malformed(f"not a {kind.DESCRIPTOR.name}: {exc}")

    return read


class _Malformed:
    """Replaces a request that cannot be decoded."""

    def __init__(self, problem: str) -> None:
        self.problem = problem


def check_message(message: Message | _Malformed) -> Message:
    """Return the message; raise Permanent if it could not be decoded."""
    if isinstance(message, _Malformed):
        raise errors.Permanent(message.problem)
    return message


def find_code(exc: errors.KgweError) -> grpc.StatusCode:
    """Return the status code of an error."""
    if isinstance(exc, Exhausted):
        return grpc.StatusCode.RESOURCE_EXHAUSTED
    return next((code for kind, code in _CODES if isinstance(exc, kind)), grpc.StatusCode.INTERNAL)


def _answer_unary(handle: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    async def answer(request: Any, context: Any) -> Any:
        try:
            return await handle(check_message(request), context)
        except errors.KgweError as exc:
            await context.abort(find_code(exc), str(exc))

    return answer


def _answer_stream(handle: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    async def answer(requests: Any, context: Any) -> Any:
        async def checked() -> AsyncIterator[Message]:
            async for request in requests:
                yield check_message(request)

        try:
            return await handle(checked(), context)
        except errors.KgweError as exc:
            await context.abort(find_code(exc), str(exc))

    return answer


def _yield_answers(handle: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    async def answer(request: Any, context: Any) -> AsyncIterator[Any]:
        try:
            async with contextlib.aclosing(handle(check_message(request), context)) as replies:
                async for reply in replies:
                    yield reply
        except errors.KgweError as exc:
            await context.abort(find_code(exc), str(exc))

    return answer


def make_handlers(service: Service) -> grpc.GenericRpcHandler:
    """Return gRPC's handlers of a service."""
    methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}
    for name, call in service.calls.items():
        handle = getattr(service.target, name)
        reader, writer = _make_reader(call.request), call.reply.SerializeToString
        if call.is_server_stream:
            methods[name] = grpc.unary_stream_rpc_method_handler(
                _yield_answers(handle), request_deserializer=reader, response_serializer=writer
            )
        elif call.is_client_stream:
            methods[name] = grpc.stream_unary_rpc_method_handler(
                _answer_stream(handle), request_deserializer=reader, response_serializer=writer
            )
        else:
            methods[name] = grpc.unary_unary_rpc_method_handler(
                _answer_unary(handle), request_deserializer=reader, response_serializer=writer
            )
    return grpc.method_handlers_generic_handler(service.name, methods)


@contextlib.asynccontextmanager
async def serving(
    services: Sequence[Service], address: str, *, files: tls.Files | None = None, limits: Limits | None = None
) -> AsyncIterator[int]:
    """Serve while the context is open, with health and reflection; yield the port.

    With certificates every client needs one of the same authority. Without certificates only loopback is allowed.
    """
    from grpc_health.v1 import health, health_pb2, health_pb2_grpc  # noqa: PLC0415 - the agent has no such service
    from grpc_reflection.v1alpha import reflection  # noqa: PLC0415

    if files is None and not tls.is_loopback(address.rpartition(":")[0]):
        raise errors.Permanent(f"gRPC on {address} needs certificates: set tlsCertFile, tlsKeyFile and tlsCaFile")
    limits = limits or Limits()
    server = make_server(services, limits, [_WatchLimit(limits.watches)])
    states = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(states, server)
    names = [each.name for each in services]
    for name in ("", *names):
        await states.set(name, health_pb2.HealthCheckResponse.SERVING)
    reflection.enable_server_reflection((*names, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
    async with run_server(server, address, files) as port:
        try:
            yield port
        finally:
            await states.enter_graceful_shutdown()


class _WatchLimit(grpc.aio.ServerInterceptor):
    """Limits the streams of gRPC's own services, so that they leave room for calls."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._open = 0

    async def intercept_service(self, continuation: Callable[[Any], Any], details: Any) -> Any:
        handler = await continuation(details)
        if handler is None or not handler.response_streaming or not details.method.startswith("/grpc."):
            return handler
        name = "stream_stream" if handler.request_streaming else "unary_stream"
        return handler._replace(**{name: self._limit(getattr(handler, name))})

    def _limit(self, handle: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        async def answer(request: Any, context: Any) -> None:
            if self._open >= self._most:
                problem = f"{self._most} streams of health and reflection are open, which is the most"
                await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, problem)
            self._open += 1
            try:
                replies = handle(request, context)
                if inspect.isawaitable(replies):
                    await replies  # it writes by itself
                    return
                async with contextlib.aclosing(replies):
                    async for reply in replies:
                        await context.write(reply)
            finally:
                self._open -= 1

        return answer


def make_server(
    services: Sequence[Service], limits: Limits, interceptors: Sequence[grpc.aio.ServerInterceptor] = ()
) -> grpc.aio.Server:
    """Return a server of these services that does not listen yet."""
    server = grpc.aio.server(
        interceptors=interceptors,
        options=[
            ("grpc.max_receive_message_length", limits.largest_message),
            ("grpc.max_concurrent_streams", limits.calls_per_connection),
            ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
            ("grpc.keepalive_timeout_ms", _KEEPALIVE_MS // 3),
            ("grpc.so_reuseport", 0),
        ],
        maximum_concurrent_rpcs=limits.concurrent_calls,
    )
    server.add_generic_rpc_handlers(tuple(make_handlers(each) for each in services))
    return server


@contextlib.asynccontextmanager
async def run_server(server: grpc.aio.Server, address: str, files: tls.Files | None) -> AsyncIterator[int]:
    """Serve while the context is open; yield the port. Without certificates anyone who reaches the address may call."""
    try:
        if files is None:
            port = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, tls.server_credentials(files))
    except RuntimeError as exc:
        raise errors.Permanent(f"cannot serve gRPC on {address}: {exc}") from exc
    await server.start()
    log.info("grpc_serving", port=port, tls=files is not None)
    try:
        yield port
    finally:
        # Streams never end on their own.
        await server.stop(_GRACE_S)
