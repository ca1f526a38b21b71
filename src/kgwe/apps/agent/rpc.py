"""The gRPC service on :50052: topology, health, telemetry, MIG and MPS orders, and a ping.

All clients that can connect may read. Orders (ApplyMIG, ApplyMPS) need a certificate with a name of `tlsWriters`, so
an agent's certificate cannot order changes on another node. Without certificates only local clients can connect, and
only read.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import grpc
import structlog

from kgwe import errors
from kgwe.agentapi import messages
from kgwe.apps.agent import telemetry_hub
from kgwe.proto import agent_pb2 as pb
from kgwe.rpc import server, tls
from kgwe.rpc.server import Call, Exhausted, Limits, Service

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from kgwe.apps.agent.driver_supervisor import DriverState
    from kgwe.apps.agent.hooks import MigHandler, MpsHandler
    from kgwe.apps.agent.settings import Settings
    from kgwe.kube.api.kgwe.gpunode import GPUNodeStatus

log = structlog.get_logger(__name__)
T = TypeVar("T")

# Far more than any request needs.
_LARGEST_MESSAGE: Final = 1 << 20
# Maximum seconds between two messages of a stream: one day.
_LONGEST_INTERVAL_S: Final = 86_400.0


class AgentInfo(Protocol):
    """The agent as the service sees it."""

    version: str
    hub: telemetry_hub.TelemetryHub

    @property
    def node(self) -> str: ...

    @property
    def mig(self) -> MigHandler | None: ...

    @property
    def mps(self) -> MpsHandler | None: ...

    @property
    def driver(self) -> DriverState: ...

    @property
    def problems(self) -> Sequence[str]: ...

    async def topology(self, *, fresh: bool) -> tuple[GPUNodeStatus, float, Sequence[Sequence[str]]]:
        """Return (status, age in seconds, matrix of paths); raise Transient if nothing was read yet."""
        ...


class AgentService:
    """The gRPC service, with one method per call."""

    def __init__(self, known: AgentInfo, *, may_order: Callable[[Any], bool]) -> None:
        self._known = known
        self._may_order = may_order
        self._began = time.monotonic()

    async def Ping(self, request: pb.PingRequest, context: Any) -> pb.PingReply:  # noqa: N802 - the protocol's name
        del request, context
        known = self._known
        return pb.PingReply(
            node=known.node,
            version=known.version,
            uptime_s=time.monotonic() - self._began,
            driver_ready=known.driver.is_ready,
            driver_reason=known.driver.reason,
            driver_message=known.driver.message,
            problems=list(known.problems),
            unix_ms=int(time.time() * 1000),
        )

    async def GetTopology(self, request: pb.TopologyRequest, context: Any) -> pb.Topology:  # noqa: N802
        del context
        status, age_s, matrix = await self._known.topology(fresh=request.fresh)
        return messages.encode_topology(self._known.node, status, age_s=age_s, matrix=matrix)

    async def GetHealth(self, request: pb.HealthRequest, context: Any) -> pb.Health:  # noqa: N802
        del request, context
        status, _, _ = await self._known.topology(fresh=False)
        return messages.encode_health(self._known.node, status)

    async def WatchTelemetry(self, request: pb.TelemetryRequest, context: Any) -> AsyncIterator[pb.Telemetry]:  # noqa: N802
        del context
        wanted = frozenset(request.uuids)
        if not 0 <= request.interval_s <= _LONGEST_INTERVAL_S:  # also refuses NaN
            raise errors.Permanent(f"interval_s must be from 0 to {_LONGEST_INTERVAL_S:.0f}, not {request.interval_s}")
        try:
            with self._known.hub.open_watcher(request.interval_s, aggregates=request.aggregates) as watcher:
                while True:
                    sample, missed = await watcher.next()
                    yield messages.encode_telemetry(self._known.node, sample, missed, wanted)
        except telemetry_hub.TooManyWatchers as exc:
            raise Exhausted(str(exc)) from exc

    async def ApplyMIG(self, request: pb.MigRequest, context: Any) -> pb.MigReply:  # noqa: N802
        await self._check_order(context)
        handler = await _require_enabled(context, self._known.mig, "MIG is disabled on this agent (set enableMig)")
        cut = await handler.apply_layout(request.gpu_uuid, enabled=request.enabled, layout=list(request.layout))
        log.info("mig_layout_ordered", uuid=request.gpu_uuid, layout=list(request.layout), caller=_caller(context))
        return pb.MigReply(instances=messages.encode_instances(cut))

    async def ApplyMPS(self, request: pb.MpsRequest, context: Any) -> pb.MpsReply:  # noqa: N802
        await self._check_order(context)
        handler = await _require_enabled(context, self._known.mps, "MPS is disabled on this agent (set enableMps)")
        reply = await handler.apply_mps(request)
        log.info("mps_ordered", uuid=request.gpu_uuid, enabled=request.enabled, caller=_caller(context))
        return reply

    async def _check_order(self, context: Any) -> None:
        if not self._may_order(context):
            who = ", ".join(sorted(_caller(context))) or "a client without a certificate"
            await context.abort(
                grpc.StatusCode.PERMISSION_DENIED, f"{who} may not order changes; its name is not in tlsWriters"
            )


def _caller(context: Any) -> frozenset[str]:
    return tls.read_names(context.auth_context())


async def _require_enabled(context: Any, handler: T | None, otherwise: str) -> T:
    if handler is None:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, otherwise)
        raise errors.Permanent(otherwise)
    return handler


_CALLS: Final = {
    "Ping": Call(pb.PingRequest, pb.PingReply),
    "GetTopology": Call(pb.TopologyRequest, pb.Topology),
    "GetHealth": Call(pb.HealthRequest, pb.Health),
    "ApplyMIG": Call(pb.MigRequest, pb.MigReply),
    "ApplyMPS": Call(pb.MpsRequest, pb.MpsReply),
    "WatchTelemetry": Call(pb.TelemetryRequest, pb.Telemetry, is_server_stream=True),
}


def _authorize(settings: Settings) -> Callable[[Any], bool]:
    """Return which clients may order changes."""
    if settings.grpc_insecure:
        return lambda _context: True
    if not settings.tls_cert_file:
        return lambda _context: False
    writers = frozenset(settings.tls_writers)
    return lambda context: bool(writers & _caller(context))


@contextlib.asynccontextmanager
async def serving(known: AgentInfo, settings: Settings) -> AsyncIterator[int]:
    """Serve while the context is open; yield the port."""
    service = Service(messages.SERVICE, _CALLS, AgentService(known, may_order=_authorize(settings)))
    limits = Limits(_LARGEST_MESSAGE, settings.grpc_watchers * 2 + 16)
    files = tls.parse_files(settings.tls_cert_file, settings.tls_key_file, settings.tls_ca_file)
    address = _find_address(settings, is_secure=files is not None)
    async with server.run_server(server.make_server([service], limits), address, files) as port:
        yield port


def _find_address(settings: Settings, *, is_secure: bool) -> str:
    host, _, port = settings.grpc_bind_address.rpartition(":")
    if not is_secure and not settings.grpc_insecure:
        if host and not tls.is_loopback(host):
            raise errors.Permanent(
                f"gRPC on {settings.grpc_bind_address} needs certificates (tlsCertFile, tlsKeyFile, tlsCaFile); "
                "without them only an address of this machine such as 127.0.0.1:50052 is served"
            )
        host = host or "127.0.0.1"
    return f"{host or '[::]'}:{port}"


async def serve(known: AgentInfo, settings: Settings, on_port: Callable[[int], None] = lambda _: None) -> None:
    """Serve until cancelled, as a task of the agent."""
    async with serving(known, settings) as port:
        on_port(port)
        await asyncio.Event().wait()
