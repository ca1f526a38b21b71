"""The parts of the agent that features use."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kgwe.apps.agent.driver_supervisor import DriverSupervisor
    from kgwe.apps.agent.hooks import Hooks
    from kgwe.apps.agent.reporter import NodeReporter
    from kgwe.apps.agent.settings import Settings
    from kgwe.apps.agent.status.publisher import StatusPublisher
    from kgwe.apps.agent.tasks import SupervisedTasks
    from kgwe.apps.agent.telemetry_hub import TelemetryHub
    from kgwe.kube.api.kgwe import gpunode
    from kgwe.kube.client.client import KubeClient
    from kgwe.kube.client.informer import Informer


@dataclass(slots=True)
class Ports:
    """The ports that the agent listens on; 0 if not yet, or not at all."""

    grpc: int = 0
    exporter: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentServices:
    """The parts of each agent. Features read them, and add tasks and hooks."""

    settings: Settings
    hooks: Hooks
    tasks: SupervisedTasks
    supervisor: DriverSupervisor
    reporter: NodeReporter
    hub: TelemetryHub
    ports: Ports = field(default_factory=Ports)
    #: None without an API server, like the two below
    client: KubeClient | None = None
    publisher: StatusPublisher | None = None
    informer: Informer[gpunode.GPUNode] | None = None

    @property
    def node(self) -> str:
        return self.settings.node

    @property
    def problems(self) -> Sequence[str]:
        """Return the current problems, for operators."""
        found = [f"{name}: {why}" for name, why in self.tasks.problems.items()]
        if self.publisher is not None and self.publisher.problem:
            found.append(f"publisher: {self.publisher.problem}")
        return found
