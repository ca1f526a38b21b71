"""Adds the metrics endpoint on :9400 to the agent: GPU metrics, and the agent's own."""

from __future__ import annotations

import asyncio
import collections
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kgwe.apps.agent.metrics import sampler
from kgwe.apps.agent.metrics.exporter import Exporter, ExporterApp, render_labels
from kgwe.apps.agent.metrics.families import make_counter, make_gauge
from kgwe.apps.agent.metrics.node_context import NodeContext
from kgwe.apps.agent.metrics.sampler import Sampler
from kgwe.model.health import health
from kgwe.model.telemetry.sample import Sample
from kgwe.telemetry import http

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kgwe.apps.agent.node_pods import KubeletAccess
    from kgwe.apps.agent.services import AgentServices
    from kgwe.kube.api.kgwe.gpunode import GPUNodeStatus
    from kgwe.model.gpu.driver_data import Reading
    from kgwe.model.telemetry.sample import Series

DRIVER_READY: Final = make_gauge("kgwe_agent_driver_ready", "1 if the driver responds, else 0.")
PROBLEMS: Final = make_gauge("kgwe_agent_problems", "Parts of the agent that are failing now.")
WATCHERS: Final = make_gauge("kgwe_agent_telemetry_watchers", "Clients that watch telemetry over gRPC.")
WRITES: Final = make_counter("kgwe_agent_api_writes_total", "Writes to the node's GPUNode, by kind.")
WRITTEN: Final = make_counter("kgwe_agent_api_written_bytes_total", "Bytes written to the node's GPUNode, by kind.")
# Intervals without a response after which the driver's gauges are no longer shown.
_STALE_INTERVALS: Final = 6


class MetricsExport:
    """Serves /metrics: GPU metrics, the agent's own, and those of other features."""

    def __init__(self, services: AgentServices, kubelet: KubeletAccess | None) -> None:
        self._services = services
        settings, hooks = services.settings, services.hooks
        step = settings.telemetry_interval_seconds
        self.exporter = Exporter(services.node, stale_after_s=max(30.0, step * _STALE_INTERVALS))
        self._sampler = Sampler()
        self._sample = Sample(0.0)
        self._context = NodeContext(
            Path(settings.host_root) / "proc",
            machine=lambda: services.reporter.machine,
            pods=kubelet.pods if kubelet is not None else None,
            pod_resources=kubelet.pod_resources if kubelet is not None and settings.enable_pod_resources else None,
            mps_servers=hooks.mps_servers,
            dcgm_url=settings.dcgm_url,
        )
        self._writes: collections.Counter[str] = collections.Counter()
        self._written: collections.Counter[str] = collections.Counter()
        hooks.series = self._series
        hooks.on_machine.append(self.exporter.set_machine)
        hooks.on_readings.append(self._on_readings)
        hooks.on_status.append(self._on_status)
        hooks.on_write.append(self._on_write)
        hooks.renderers.append(self._render_own)
        services.tasks.add("surroundings", lambda: self._context.run(step))
        services.tasks.add("exporter", self._serve)

    def _on_readings(self, readings: Sequence[Reading]) -> None:
        machine = self._services.reporter.machine
        if machine is not None:
            surroundings = self._context.take_surroundings(readings)
            self._sample = self._sampler.take(machine, readings, time.monotonic(), surroundings)
            self.exporter.set_sample(self._sample)

    def _series(self) -> dict[Series, float | None]:
        return sampler.list_series(self._sample)

    def _on_status(self, status: GPUNodeStatus) -> None:
        known = {each.uuid: each.health.state for each in status.gpus}
        unknown = health.HealthState.UNKNOWN
        self.exporter.set_health(
            {uuid: None if state == unknown else health.is_in_service(state) for uuid, state in known.items()}
        )

    def _on_write(self, kind: str, size: int) -> None:
        self._writes[kind] += 1
        self._written[kind] += size

    def _render_own(self) -> bytes:
        """Return the agent's own metrics."""
        services, node = self._services, ("node", self._services.node)
        values = (
            (DRIVER_READY, int(services.supervisor.state.is_ready)),
            (PROBLEMS, len(services.problems)),
            (WATCHERS, len(services.hub)),
        )
        text = [f"{family.header}{family.name}{render_labels(node)}{value}\n" for family, value in values]
        for family, counts in ((WRITES, self._writes), (WRITTEN, self._written)):
            text.append(family.header)
            text += [
                f"{family.name}{render_labels(node, ('kind', kind))}{count}\n" for kind, count in sorted(counts.items())
            ]
        return "".join(text).encode()

    async def _serve(self) -> None:
        app = ExporterApp(self.exporter, more=lambda: b"".join(render() for render in self._services.hooks.renderers))
        address = http.Address.parse(self._services.settings.exporter_bind_address)
        async with http.serving(app, address) as listening:
            self._services.ports.exporter = listening
            await asyncio.Event().wait()


def add(services: AgentServices, kubelet: KubeletAccess | None) -> MetricsExport:
    return MetricsExport(services, kubelet)
