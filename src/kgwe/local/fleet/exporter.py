"""GPU metrics of the whole simulated fleet over HTTP.

    /metrics                all GPUs of all nodes
    /nodes/NAME/metrics     one node, as its dcgm-exporter would respond (also /metrics/NAME)
    /targets                all nodes as targets, for Prometheus' http_sd_configs
    /healthz  /readyz

A node that is down returns 503 and is absent from /metrics; its metrics are unknown, not zero.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import TYPE_CHECKING, Any, Final

import httpx2
import msgspec
import structlog

from kgwe import errors
from kgwe.hardware.dcgm import metrics
from kgwe.local.fleet.simulator import Simulator
from kgwe.local.host import ports, processes
from kgwe.telemetry import http
from kgwe.telemetry.http import JSON, Reply

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kgwe.kube.client.client import KubeClient
    from kgwe.local.cluster.cluster import LocalCluster
    from kgwe.local.host.processes import ProcessRecord
    from kgwe.telemetry.http import Request

log = structlog.get_logger(__name__)

PORT: Final = 9400  # the port of dcgm-exporter
SIDECAR: Final = "gpu-metrics"
_USAGE: Final = b"try /metrics, /nodes/NAME/metrics, /targets or /healthz\n"
# Node labels that are copied to its target.
_TARGET_LABELS: Final = {
    "node": "kubernetes.io/hostname",
    "zone": "topology.kubernetes.io/zone",
    "instance_type": "node.kubernetes.io/instance-type",
}


class ExporterApp:
    """The ASGI application of the exporter."""

    def __init__(self, simulator: Simulator) -> None:
        self._simulator = simulator

    def __call__(self, request: Request) -> Reply:
        return self._respond(request.path, request.header(b"host") or f"127.0.0.1:{PORT}")

    def _respond(self, path: str, host: str) -> Reply:
        match path.strip("/").split("/"):
            case ["metrics"]:
                return self._respond_metrics(self._simulator.node_names())
            case ["metrics", name] | ["nodes", name, "metrics"]:
                return self._respond_node(name)
            case ["targets"]:
                return Reply(200, msgspec.json.encode(self._list_targets(host)), JSON)
            case ["healthz"] | ["readyz"]:
                return Reply(200, b"ok\n")
        return Reply(404, _USAGE)

    def _respond_metrics(self, names: list[str]) -> Reply:
        return Reply(200, metrics.render_metrics(self._simulator.rows(names)), metrics.CONTENT_TYPE)

    def _respond_node(self, name: str) -> Reply:
        if self._simulator.is_responding(name):
            return self._respond_metrics([name])
        if name in self._simulator.node_names():
            return Reply(503, f"node {name} is down\n".encode())
        return Reply(404, f"no simulated node {name}\n".encode())

    def _list_targets(self, host: str) -> list[dict[str, Any]]:
        found = []
        for name in self._simulator.node_names():
            labels = self._simulator.node_labels(name)
            found.append(
                {
                    "targets": [host],
                    "labels": {
                        "__metrics_path__": f"/nodes/{name}/metrics",
                        "instance": f"{name}:{PORT}",
                        **{ours: labels[theirs] for ours, theirs in _TARGET_LABELS.items() if theirs in labels},
                    },
                }
            )
        return found


def start(cluster: LocalCluster) -> str:
    """Start the exporter as a sidecar of a cluster, on dcgm-exporter's port if it is free; return its URL."""
    known = cluster.state().sidecars.get(SIDECAR)
    listen = _listen_of(known) if known is not None and processes.is_alive(known) else ""
    if not listen:
        listen = f"{ports.LOOPBACK}:{ports.allocate((SIDECAR,), preferred={SIDECAR: PORT})[SIDECAR]}"
        command = [sys.executable, "-m", "kgwe.cli", "local", "metrics", "--kubeconfig", str(cluster.kubeconfig)]
        command += ["--listen", listen, "--memory", str(cluster.directory / "cards.json")]
        cluster.start_sidecar(SIDECAR, command)
        _await_answer(f"http://{listen}/healthz")
    return f"http://{listen}"


def _await_answer(url: str) -> None:
    # Retry after 0.5, 1, 2, … seconds, for about half a minute in total.
    with httpx2.Client(transport=httpx2.HTTPTransport(retries=6), trust_env=False) as client:
        try:
            client.get(url).raise_for_status()
        except httpx2.HTTPError as exc:
            raise errors.Transient(
                f"the GPU metrics server at {url} does not respond: {exc}; see `kgwe local logs {SIDECAR}`"
            ) from exc


def _listen_of(record: ProcessRecord) -> str:
    arguments = list(record.argv)
    return arguments[arguments.index("--listen") + 1] if "--listen" in arguments else ""


async def serve(
    client: KubeClient,
    address: http.Address,
    *,
    memory: Path | None = None,
    ready: Callable[[int], None] | None = None,
) -> None:
    """Simulate the fleet and serve its metrics until SIGINT or SIGTERM; call `ready` with the port."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    simulator = Simulator(client, memory=memory)
    async with simulator.run_in_background(), http.serving(ExporterApp(simulator), address) as port:
        if ready is not None:
            ready(port)
        log.info("exporter_serving", address=f"{address.host}:{port}", nodes=len(simulator.node_names()))
        await stop.wait()
