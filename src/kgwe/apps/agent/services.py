"""The parts of the agent that features use."""

from __future__ import annotations

import collections
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kgwe.kube.api.kgwe import gpunode

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    from kgwe.apps.agent.driver_supervisor import DriverSupervisor
    from kgwe.apps.agent.settings import Settings
    from kgwe.apps.agent.status.publisher import StatusPublisher
    from kgwe.apps.agent.telemetry_hub import TelemetryHub
    from kgwe.kube.client.client import KubeClient
    from kgwe.model.gpu.driver_data import Machine


@dataclass(slots=True)
class Ports:
    """The ports that the agent listens on; 0 if not yet, or not at all."""

    grpc: int = 0
    exporter: int = 0


@dataclass(slots=True)
class NodeState:
    """The machine as last read. The reporter sets it; features read it."""

    #: values that cannot be read keep their previous value; None before the first reading
    machine: Machine | None = None


@dataclass(frozen=True, slots=True)
class WriteCounts:
    """Writes of the GPUNode to the API server, by kind."""

    writes: collections.Counter[str] = field(default_factory=collections.Counter)
    written_bytes: collections.Counter[str] = field(default_factory=collections.Counter)

    def count_write(self, kind: str, size: int) -> None:
        self.writes[kind] += 1
        self.written_bytes[kind] += size


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentServices:
    """The parts of each agent that do not depend on its features."""

    settings: Settings
    supervisor: DriverSupervisor
    hub: TelemetryHub
    #: reports the current state; features call it after a change of their part
    report: Callable[[], None]
    #: set: the machine is read now instead of at the next interval
    wake: asyncio.Event
    state: NodeState = field(default_factory=NodeState)
    writes: WriteCounts = field(default_factory=WriteCounts)
    ports: Ports = field(default_factory=Ports)
    #: part of the agent -> why it fails now
    failures: dict[str, str] = field(default_factory=dict)
    #: None without an API server, like the publisher
    client: KubeClient | None = None
    publisher: StatusPublisher | None = None

    @property
    def node(self) -> str:
        return self.settings.node

    def read_spec(self) -> gpunode.GPUNodeSpec | None:
        """Return the spec of the GPUNode; None: the API has not been read yet."""
        if self.publisher is None:
            return gpunode.GPUNodeSpec()
        return None if self.publisher.stored is None else self.publisher.stored.spec

    def request_discovery(self) -> None:
        """Read the machine now instead of at the next interval."""
        self.wake.set()

    @property
    def problems(self) -> Sequence[str]:
        """Return the current problems, for operators."""
        found = [f"{name}: {why}" for name, why in self.failures.items()]
        if self.publisher is not None and self.publisher.problem:
            found.append(f"publisher: {self.publisher.problem}")
        return found
