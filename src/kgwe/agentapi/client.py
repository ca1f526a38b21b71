"""A gRPC client of one agent: each call has a timeout, the connection is kept, certificates are reloaded.

Errors are those of `kgwe.errors`: Transient if the agent does not respond; NotFound, Conflict and Permanent from the
agent.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import grpc

from kgwe import errors
from kgwe.agentapi import messages
from kgwe.proto import agent_pb2 as pb
from kgwe.rpc import tls

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from google.protobuf.message import Message

    from kgwe.rpc.tls import Files

Reply = TypeVar("Reply", bound="Message")

DEADLINE_S: Final = 5.0
# A MIG change waits for the driver, step by step.
ORDER_DEADLINE_S: Final = 120.0
_LARGEST_MESSAGE: Final = 4 << 20

_ERRORS: Final = {
    grpc.StatusCode.NOT_FOUND: errors.NotFound,
    grpc.StatusCode.FAILED_PRECONDITION: errors.Conflict,
    grpc.StatusCode.INVALID_ARGUMENT: errors.Permanent,
    grpc.StatusCode.PERMISSION_DENIED: errors.Permanent,
    grpc.StatusCode.UNAUTHENTICATED: errors.Permanent,
    grpc.StatusCode.UNIMPLEMENTED: errors.Permanent,
}


@dataclass(frozen=True, slots=True)
class Access:
    """The access to agents."""

    files: Files | None = None
    """Certificates; None for agents on this machine."""
    server_name: str = ""
    """The name in the agents' certificates, which do not list addresses. Empty: the name of the node if known, else
    the common name of all agents.
    """
    deadline_s: float = DEADLINE_S

    def to_node(self, node: str) -> Access:
        """Return the access to the agent of one node: the certificate of another node's agent is refused."""
        return self if self.server_name else dataclasses.replace(self, server_name=node)


class AgentClient:
    """A client of one agent. Close it, or use it as a context manager."""

    def __init__(self, address: str, access: Access | None = None) -> None:
        self.address = address
        self._access = access or Access()
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

    # --- asking -----------------------------------------------------------------------------------------

    async def ping(self) -> pb.PingReply:
        return await self._call("Ping", pb.PingRequest(), pb.PingReply)

    async def topology(self, *, fresh: bool = False) -> pb.Topology:
        return await self._call("GetTopology", pb.TopologyRequest(fresh=fresh), pb.Topology)

    async def health(self) -> pb.Health:
        return await self._call("GetHealth", pb.HealthRequest(), pb.Health)

    async def apply_mig(self, request: pb.MigRequest) -> pb.MigReply:
        return await self._call("ApplyMIG", request, pb.MigReply, ORDER_DEADLINE_S)

    async def apply_mps(self, request: pb.MpsRequest) -> pb.MpsReply:
        return await self._call("ApplyMPS", request, pb.MpsReply, ORDER_DEADLINE_S)

    async def telemetry(self, request: pb.TelemetryRequest | None = None) -> AsyncGenerator[pb.Telemetry]:
        """Yield samples until the caller stops or the agent ends the stream; raise Transient if it breaks."""
        channel = await self._connect()
        method = channel.unary_stream(
            f"/{messages.SERVICE}/WatchTelemetry",
            request_serializer=pb.TelemetryRequest.SerializeToString,
            response_deserializer=pb.Telemetry.FromString,
        )
        call = method(request or pb.TelemetryRequest())
        try:
            async for message in call:
                yield message
        except grpc.aio.AioRpcError as exc:
            raise self._translate_error(exc) from exc
        finally:
            call.cancel()

    async def _call(self, name: str, request: Message, reply: type[Reply], deadline_s: float | None = None) -> Reply:
        channel = await self._connect()
        method: Any = channel.unary_unary(
            f"/{messages.SERVICE}/{name}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=reply.FromString,
        )
        try:
            answer: Reply = await method(request, timeout=deadline_s or self._access.deadline_s)
        except grpc.aio.AioRpcError as exc:
            raise self._translate_error(exc) from exc
        return answer

    def _translate_error(self, exc: grpc.aio.AioRpcError) -> errors.KgweError:
        kind = _ERRORS.get(exc.code(), errors.Transient)
        return kind(f"agent {self.address}: {exc.details() or exc.code().name}")

    async def _connect(self) -> grpc.aio.Channel:
        source = self._access.files
        stamp = source.stamp() if source else ()
        if self._channel is not None and stamp != self._stamp:
            await self.close()
        if self._channel is None:
            self._stamp = stamp
            self._channel = self._open(source)
        return self._channel

    def _open(self, source: Files | None) -> grpc.aio.Channel:
        options: list[tuple[str, Any]] = [
            ("grpc.max_receive_message_length", _LARGEST_MESSAGE),
            # Many agents mean many connections: one each is enough, and idle ones are closed soon.
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.client_idle_timeout_ms", 300_000),
            # Agents are in the same cluster, without a proxy in between.
            ("grpc.enable_http_proxy", 0),
        ]
        if source is None:
            return grpc.aio.insecure_channel(self.address, options=options)
        options.append(("grpc.ssl_target_name_override", self._access.server_name or messages.AGENT_NAME))
        return grpc.aio.secure_channel(self.address, tls.channel_credentials(source), options=options)
