"""Builds the health feature: the monitor, and the writer of the Node's condition."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kgwe.apps.agent.health.monitor import HealthMonitor
from kgwe.apps.agent.hooks import Feature, Task

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kgwe.apps.agent.health.monitor import Change as HealthChange
    from kgwe.apps.agent.health.node_condition import NodeHealthWriter
    from kgwe.apps.agent.services import AgentServices
    from kgwe.kube.api.kgwe import gpunode
    from kgwe.kube.client.informer import Change


def build_health(services: AgentServices) -> Feature:
    """Monitor the health of the GPUs, report it, and write the Node's condition if there is an API server."""

    def on_change(changes: Sequence[HealthChange]) -> None:
        services.report()
        if writer is not None:
            writer.on_change(changes)

    def on_gpunode(change: Change[gpunode.GPUNode]) -> None:
        # Called before the first report: the publisher waits until the API was read.
        if change.new is not None:
            health.restore(change.new.status)
            if services.state.machine is not None:
                services.report()
            if writer is not None:
                writer.on_gpunode(change.new)

    health = HealthMonitor(on_change=on_change, boot_id=_read_boot_id(services.settings.host_root))
    writer = _build_writer(services, health)
    interval_s = services.settings.telemetry_interval_seconds
    writing = () if writer is None else (Task("node-health", writer.run),)
    return Feature(
        name="health",
        tasks=(Task("health", lambda: health.run(interval_s)), *writing),
        health_of=health.health_of,
        amend_status=health.amend_status,
        on_machine=health.on_machine,
        on_readings=health.on_readings,
        on_events=health.on_events,
        on_reset=health.on_reset,
        on_gpunode=on_gpunode,
    )


def _build_writer(services: AgentServices, health: HealthMonitor) -> NodeHealthWriter | None:
    if services.client is None:
        return None
    from kgwe.apps.agent.health.node_condition import NodeHealthWriter  # noqa: PLC0415 - not needed standalone

    return NodeHealthWriter(services.client, services.node, health, taint=services.settings.taint_unhealthy)


def _read_boot_id(host_root: str) -> str:
    try:
        return Path(host_root, "proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""
