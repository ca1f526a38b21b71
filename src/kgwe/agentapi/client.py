"""A gRPC client of one agent: each call has a timeout, the connection is kept, certificates are reloaded.

Errors are those of `kgwe.errors`: Transient if the agent does not respond; NotFound, Conflict and Permanent from the
agent.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kgwe.agentapi import messages
from kgwe.proto import agent_pb2 as pb
from kgwe.rpc.client import Endpoint, RpcClient

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from kgwe.rpc.tls import Files

DEADLINE_S: Final = 5.0
# A MIG change waits for the driver, step by step.
ORDER_DEADLINE_S: Final = 120.0
# Many agents mean many connections: one each is enough, and idle ones are closed soon.
_OPTIONS: Final = (("grpc.use_local_subchannel_pool", 1), ("grpc.client_idle_timeout_ms", 300_000))


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


class AgentClient(RpcClient):
    """A client of one agent. Close it, or use it as a context manager."""

    def __init__(self, address: str, access: Access | None = None) -> None:
        access = access or Access()
        self.address = address
        name = access.server_name or messages.AGENT_NAME
        super().__init__(
            Endpoint("agent", messages.SERVICE, address, name, access.files, access.deadline_s, options=_OPTIONS)
        )

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

    def telemetry(self, request: pb.TelemetryRequest | None = None) -> AsyncGenerator[pb.Telemetry]:
        """Yield samples until the caller stops or the agent ends the stream; raise Transient if it breaks."""
        return self._receive("WatchTelemetry", request or pb.TelemetryRequest(), pb.Telemetry)
