"""Builds the exporter, the metrics endpoint on :9400: GPU metrics, the agent's own, and those of other features."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kgwe.apps.agent.hooks import Feature, Task
from kgwe.apps.agent.metrics import sampler
from kgwe.apps.agent.metrics.exporter import Exporter, ExporterApp, render_labels
from kgwe.apps.agent.metrics.families import make_counter, make_gauge
from kgwe.apps.agent.metrics.node_context import NodeContext
from kgwe.apps.agent.metrics.sampler import Sampler
from kgwe.model.health import health
from kgwe.model.telemetry.sample import Sample
from kgwe.telemetry import http

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

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

    def __init__(
        self,
        services: AgentServices,
        kubelet: KubeletAccess | None,
        *,
        mps_servers: Callable[[], Mapping[int, Sequence[int]]] = dict,
        renderers: Sequence[Callable[[], bytes]] = (),
    ) -> None:
        """`renderers` return the lines of other features."""
        self._services = services
        self._renderers = (*renderers, self._render_own)
        settings = services.settings
        self._interval_s = settings.telemetry_interval_seconds
        self.exporter = Exporter(services.node, stale_after_s=max(30.0, self._interval_s * _STALE_INTERVALS))
        self._sampler = Sampler()
        self._sample = Sample(0.0)
        self._context = NodeContext(
            Path(settings.host_root) / "proc",
            machine=lambda: services.state.machine,
            pods=kubelet.pods if kubelet is not None else None,
            pod_resources=kubelet.pod_resources if kubelet is not None and settings.enable_pod_resources else None,
            mps_servers=mps_servers,
            dcgm_url=settings.dcgm_url,
        )

    def to_feature(self) -> Feature:
        return Feature(
            name="exporter",
            tasks=(
                Task("surroundings", lambda: self._context.run(self._interval_s)),
                Task("exporter", self._serve),
            ),
            series=self._list_series,
            on_machine=self.exporter.set_machine,
            on_readings=self._on_readings,
            on_status=self._on_status,
        )

    def _on_readings(self, readings: Sequence[Reading]) -> None:
        machine = self._services.state.machine
        if machine is not None:
            surroundings = self._context.take_surroundings(readings)
            self._sample = self._sampler.take(machine, readings, time.monotonic(), surroundings)
            self.exporter.set_sample(self._sample)

    def _list_series(self) -> dict[Series, float | None]:
        return sampler.list_series(self._sample)

    def _on_status(self, status: GPUNodeStatus) -> None:
        known = {each.uuid: each.health.state for each in status.gpus}
        unknown = health.HealthState.UNKNOWN
        self.exporter.set_health(
            {uuid: None if state == unknown else health.is_in_service(state) for uuid, state in known.items()}
        )

    def _render_own(self) -> bytes:
        """Return the agent's own metrics."""
        services, node = self._services, ("node", self._services.node)
        values = (
            (DRIVER_READY, int(services.supervisor.state.is_ready)),
            (PROBLEMS, len(services.problems)),
            (WATCHERS, len(services.hub)),
        )
        text = [f"{family.header}{family.name}{render_labels(node)}{value}\n" for family, value in values]
        for family, counts in ((WRITES, services.writes.writes), (WRITTEN, services.writes.written_bytes)):
            text.append(family.header)
            text += [
                f"{family.name}{render_labels(node, ('kind', kind))}{count}\n" for kind, count in sorted(counts.items())
            ]
        return "".join(text).encode()

    async def _serve(self) -> None:
        app = ExporterApp(self.exporter, more=lambda: b"".join(render() for render in self._renderers))
        address = http.Address.parse(self._services.settings.exporter_bind_address)
        async with http.serving(app, address) as listening:
            self._services.ports.exporter = listening
            await asyncio.Event().wait()


def build_exporter(
    services: AgentServices,
    kubelet: KubeletAccess | None,
    *,
    mps_servers: Callable[[], Mapping[int, Sequence[int]]],
    renderers: Sequence[Callable[[], bytes]],
) -> Feature:
    """Serve /metrics. `renderers` return the lines of other features."""
    return MetricsExport(services, kubelet, mps_servers=mps_servers, renderers=renderers).to_feature()
