"""Adds the health monitor to the agent's hooks and tasks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kgwe.apps.agent.health.monitor import HealthMonitor

if TYPE_CHECKING:
    from kgwe.apps.agent.services import AgentServices
    from kgwe.kube.api.kgwe import gpunode
    from kgwe.kube.client.informer import Change


def add(services: AgentServices) -> HealthMonitor:
    """Monitor the health of the GPUs, report it, and write the Node's condition if there is an API server."""
    health = HealthMonitor(
        on_change=lambda _: services.reporter.report(), boot_id=_read_boot_id(services.settings.host_root)
    )
    hooks = services.hooks
    hooks.health_of = health.health_of
    hooks.amend_status.append(health.amend_status)
    hooks.on_machine.append(health.on_machine)
    hooks.on_readings.append(health.on_readings)
    hooks.on_events.append(health.on_events)
    hooks.on_reset.append(health.on_reset)
    services.tasks.add("health", lambda: health.run(services.settings.telemetry_interval_seconds))
    _add_node_condition(services, health)
    return health


def _add_node_condition(services: AgentServices, health: HealthMonitor) -> None:
    if services.informer is None or services.client is None:
        return
    from kgwe.apps.agent.health.node_condition import NodeHealthWriter  # noqa: PLC0415 - not needed standalone

    node = NodeHealthWriter(services.client, services.node, health, taint=services.settings.taint_unhealthy)

    def on_gpunode(change: Change[gpunode.GPUNode]) -> None:
        # Called before the first report: the publisher waits until the API was read.
        if change.new is not None:
            health.restore(change.new.status)
            if services.reporter.machine is not None:
                services.reporter.report()
            node.on_gpunode(change.new)

    services.informer.on_change(on_gpunode)
    health.listen(node.on_change)
    services.tasks.add("node-health", node.run)


def _read_boot_id(host_root: str) -> str:
    try:
        return Path(host_root, "proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""
