"""A cluster with a metered fleet, the scheduler and optimizers as real processes with their own rights."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from typing import TYPE_CHECKING, Any, Final

import httpx2
import pytest
import yaml
from tests.support.clusters import fork_server
from tests.support.clusters.bed import ROOT
from tests.support.patience import PATIENCE_S

from kgwe import errors
from kgwe.apps.optimizer.manifests import describe_manifest
from kgwe.kube.api import resources
from kgwe.kube.api.resources import Resource
from kgwe.local.cluster.cluster import LocalCluster, service_account_kubeconfig
from kgwe.local.fleet import models
from kgwe.local.host import ports
from kgwe.optimizerapi.client import Access, OptimizerClient
from kgwe.optimizerapi.messages import encode_workload

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from tests.support.clusters.fork_server import ForkedProcess

    from kgwe.kube.api.kgwe.gpuworkload_status import Optimization
    from kgwe.kube.client.client import KubeClient
    from kgwe.proto import optimizer_pb2 as pb

FLEET: Final = models.load("mixed")
NODES: Final = 4
PODS: Resource[dict[str, Any]] = Resource("", "v1", "pods", "Pod", namespaced=True, type=dict[str, Any])
EVENTS: Resource[dict[str, Any]] = Resource(
    "events.k8s.io", "v1", "events", "Event", namespaced=True, type=dict[str, Any]
)
_STEP_S: Final = 0.1
# Ten seconds are judged instead of ten minutes, every second.
_QUICK: Final = {
    "KGWE_OPTIMIZER_SCRAPE_SECONDS": "1",
    "KGWE_OPTIMIZER_RECORD_SECONDS": "1",
    "KGWE_OPTIMIZER_WASTE_WINDOW_SECONDS": "10",
    "KGWE_OPTIMIZER_WASTE_STEP_SECONDS": "2",
    "KGWE_OPTIMIZER_WASTE_UNDERUSED_SECONDS": "5",
    "KGWE_OPTIMIZER_WASTE_INTERVAL_SECONDS": "1",
    "KGWE_OPTIMIZER_IDLE_AFTER_SECONDS": "2",
    "KGWE_OPTIMIZER_IDLE_GRACE_SECONDS": "4",
    "KGWE_OPTIMIZER_LEASE_DURATION_SECONDS": "5",
    "KGWE_OPTIMIZER_RENEW_DEADLINE_SECONDS": "3",
    "KGWE_OPTIMIZER_RETRY_PERIOD_SECONDS": "0.5",
    "KGWE_SCHEDULER_STATUS_SETTLE_SECONDS": "0.2",
    "KGWE_SCHEDULER_OPTIMIZER_REFRESH_SECONDS": "0.5",
}


class Process:
    """A process of KGWE with /metrics and /readyz."""

    def __init__(self, process: ForkedProcess, port: int, address: str, log: Path) -> None:
        self.process = process
        self.port = port
        self.address = address
        """Of gRPC."""
        self.log = log

    async def ask(self, path: str) -> str:
        """Return the text of a reply; empty if there is none."""
        try:
            async with httpx2.AsyncClient(timeout=PATIENCE_S, trust_env=False) as client:
                return (await client.get(f"http://127.0.0.1:{self.port}{path}")).text
        except httpx2.TransportError:
            return ""

    async def metric(self, name: str) -> float:
        """Return the value of a sample, labels included in `name`; 0 if there is none."""
        lines = (await self.ask("/metrics")).splitlines()
        return next((float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f"{name} ")), 0.0)

    def is_serving(self) -> bool:
        """Whether gRPC accepts connections."""
        host, _, port = self.address.rpartition(":")
        try:
            with socket.create_connection((host, int(port))):
                return True
        except OSError:
            return False

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class OptimizerBed:
    """What the tests ask of it."""

    def __init__(self, cluster: LocalCluster, client: KubeClient, folder: Path, namespace: str) -> None:
        self.cluster = cluster
        self.client = client
        self.folder = folder
        self.namespace = namespace
        self.targets = ""
        self.processes: list[Process] = []

    # --- processes --------------------------------------------------------------------------------------

    def optimizer(self, address: str = "", env: dict[str, str] | None = None) -> Process:
        """Start an optimizer on the same store as the others."""
        address = address or f"127.0.0.1:{ports.allocate(('grpc',))['grpc']}"
        store = ["--store", str(self.folder / "optimizer.db"), "--exporters-from", self.targets]
        return self._start("optimizer", address, [*store, "--grpc-bind-address", address], env or {})

    def cost_engine(self) -> Process:
        """Start a cost engine on the same ledger as the others. It counts every second."""
        env = {
            "KGWE_COST_TRACKING_SECONDS": "1",
            "KGWE_COST_GRACE_SECONDS": "60",
            "KGWE_COST_SPLIT_METHOD": "fixed",
            "KGWE_COST_LEASE_DURATION_SECONDS": "3",
            "KGWE_COST_RENEW_DEADLINE_SECONDS": "2",
            "KGWE_COST_RETRY_PERIOD_SECONDS": "0.5",
        }
        return self._start("cost", "", ["--store", str(self.folder / "cost.db")], env, "cost-engine")

    def scheduler(self, optimizer: str) -> Process:
        """Start a scheduler that asks this optimizer for run times."""
        return self._start(
            "scheduler",
            "",
            [],
            {"KGWE_SCHEDULER_OPTIMIZER_ADDRESS": optimizer, "KGWE_SCHEDULER_ENABLE_PREDICTIONS": "true"},
            "controller",
        )

    def _start(self, name: str, address: str, arguments: list[str], env: dict[str, str], command: str = "") -> Process:
        account = f"kgwe-{name}"
        path = self.folder / f"{account}.kubeconfig"
        kubeconfig = service_account_kubeconfig(self.cluster, "kgwe-system", account, path)
        port = ports.allocate(("metrics",))["metrics"]
        log = self.folder / f"{name}-{len(self.processes)}.log"
        common = ["--kubeconfig", str(kubeconfig), "--metrics-bind-address", f"127.0.0.1:{port}"]
        process = fork_server.shared().start([command or name, *common, *arguments], os.environ | _QUICK | env, log)
        self.processes.append(Process(process, port, address, log))
        return self.processes[-1]

    def connect(self, optimizer: Process) -> OptimizerClient:
        return OptimizerClient(Access(optimizer.address, deadline_s=PATIENCE_S))

    # --- workloads --------------------------------------------------------------------------------------

    async def submit(self, document: dict[str, Any]) -> None:
        await self.client.create(resources.GPU_WORKLOAD, document, self.namespace)

    async def describe(self, document: dict[str, Any]) -> pb.Workload:
        return encode_workload(describe_manifest(document, self.namespace, time.time()))

    async def list_pods(self, prefix: str = "") -> list[dict[str, Any]]:
        """Return the pods that run."""
        found = await self.client.list(PODS, self.namespace)
        return [
            pod
            for pod in found
            if pod["metadata"]["name"].startswith(prefix)
            and pod.get("status", {}).get("phase") == "Running"
            and "deletionTimestamp" not in pod["metadata"]
        ]

    async def read_advice(self, name: str) -> Optimization | None:
        """Return what the optimizer wrote on a GPUWorkload."""
        found = await self.client.get(resources.GPU_WORKLOAD, name, self.namespace)
        return found.status.optimization

    async def list_events(self, reason: str) -> list[dict[str, Any]]:
        found = await self.client.list(EVENTS, self.namespace)
        return [event for event in found if event.get("reason") == reason]

    async def until(self, holds: Callable[[], Awaitable[Any]], what: str) -> Any:
        """Return what `holds` returns once it is true; an optimizer that does not answer is asked again."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    try:
                        if found := await holds():
                            return found
                    except (errors.Transient, errors.NotFound):
                        pass
                    await asyncio.sleep(_STEP_S)
        except TimeoutError:
            told = "\n---\n".join(f"{each.log.name}: {each.log.read_text()[-4000:]}" for each in self.processes)
            pytest.fail(f"never: {what}\n{told}")


def load_example(name: str) -> dict[str, Any]:
    """Return a manifest of the folder `examples`."""
    return dict(yaml.safe_load((ROOT / "examples" / name).read_text(encoding="utf-8")))


def short_run(number: int) -> dict[str, Any]:
    """Return a GPUWorkload that ends after a second; those of other numbers are the same work."""
    template = {
        "metadata": {"annotations": {"kgwe.nvidia.io/simulated-duration": "1s"}},
        "spec": {"containers": [{"name": "main", "image": "example.com/short:1", "command": ["train"]}]},
    }
    spec = {"gpuRequirements": {"count": 1}, "workloadType": "Training", "podTemplate": template}
    return {
        "apiVersion": resources.GPU_WORKLOAD.api_version,
        "kind": "GPUWorkload",
        "metadata": {"name": f"short-{number:08x}"},  # as if generated
        "spec": spec,
    }
