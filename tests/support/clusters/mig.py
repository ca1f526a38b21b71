"""A cluster with the MIG controller, the scheduler and agents as real processes."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.clusters import fork_server
from tests.support.patience import PATIENCE_S

from kgwe.kube.api import resources
from kgwe.kube.client.informer import Informer
from kgwe.local.cluster.cluster import LocalCluster, service_account_kubeconfig
from kgwe.local.fleet import agents, models
from kgwe.local.fleet.agents import AgentMachine
from kgwe.local.host import ports
from kgwe.model.simfleet import inventory
from kgwe.model.units import amounts

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.clusters.fork_server import ForkedProcess

    from kgwe.kube.client.client import KubeClient


FLEET = models.load("hgx-a100")


QUICK = {
    "KGWE_MIG_GATHER_SECONDS": "0.2",
    "KGWE_MIG_INTERVAL_SECONDS": "2",
    "KGWE_MIG_COOLDOWN_SECONDS": "1",
    "KGWE_MIG_ENABLE_PREWARMING": "false",
    "KGWE_MIG_DRAIN_MIN_RUN_SECONDS": "0",
    "KGWE_MIG_DRAIN_PAUSE_SECONDS": "1",
    "KGWE_MIG_LEASE_DURATION_SECONDS": "5",
    "KGWE_MIG_RENEW_DEADLINE_SECONDS": "3",
    "KGWE_MIG_RETRY_PERIOD_SECONDS": "0.5",
}


QUICK_AGENT = {"telemetry_interval_seconds": "0.5", "discovery_interval_seconds": "1"}


class MigBed:
    """What the tests ask of it."""

    def __init__(self, cluster: LocalCluster, client: KubeClient, folder: Path) -> None:
        self.cluster = cluster
        self.client = client
        self.folder = folder
        self.machines: list[AgentMachine] = []
        self.processes: list[ForkedProcess] = []
        self.pods = Informer(client, resources.POD)
        self.workloads = Informer(client, resources.GPU_WORKLOAD)
        self.gpu_nodes = Informer(client, resources.GPU_NODE)
        self.nodes = Informer(client, resources.NODE)
        self.strategies = Informer(client, resources.MIG_STRATEGY)
        self._changed = asyncio.Event()
        self.informers: list[Informer[Any]] = [
            self.pods,
            self.workloads,
            self.gpu_nodes,
            self.nodes,
            self.strategies,
        ]
        for informer in self.informers:
            informer.on_change(lambda _: self._changed.set())

    # --- doing ------------------------------------------------------------------------------------------

    def run(self, command: str, account: str) -> ForkedProcess:
        """`kgwe COMMAND` with the rights of its service account."""
        path = self.folder / f"{account}.kubeconfig"
        kubeconfig = service_account_kubeconfig(self.cluster, "kgwe-system", account, path)
        port = ports.allocate(("metrics",))["metrics"]
        arguments = [command, "--kubeconfig", str(kubeconfig), "--metrics-bind-address", f"127.0.0.1:{port}"]
        process = fork_server.shared().start(arguments, os.environ | QUICK, self.folder / f"{command}.log")
        self.processes.append(process)
        return process

    def agent(self, node: str, **settings: str) -> AgentMachine:
        """A node of the fleet as hardware, with its agent running."""
        built = next(each for each in inventory.expand_fleet(FLEET, 16) if each.name == node)
        machine = AgentMachine(built, self.folder / node)
        self.machines.append(machine)
        machine.start(agents.write_kubeconfig(self.cluster), **QUICK_AGENT, **settings)
        return machine

    async def strategy(self, name: str, **spec: Any) -> None:
        await self.client.apply(resources.MIG_STRATEGY, {"metadata": {"name": name}, "spec": spec})

    async def workload(
        self,
        name: str,
        wants: dict[str, Any],
        annotations: dict[str, str] | None = None,
        spec: dict[str, Any] | None = None,
    ) -> Any:
        template = {
            "metadata": {"annotations": {"kgwe.nvidia.io/simulated-duration": "1h"}},
            "spec": {"containers": [{"name": "main", "image": "example.com/serve:1"}]},
        }
        meta = {"name": name, "annotations": annotations or {}}
        body = {"metadata": meta, "spec": {"gpuRequirements": wants, "podTemplate": template, **(spec or {})}}
        kind = {"apiVersion": resources.GPU_WORKLOAD.api_version, "kind": resources.GPU_WORKLOAD.kind}
        return await self.client.create(resources.GPU_WORKLOAD, {**kind, **body}, "default")

    async def pod(self, name: str, profile: str) -> None:
        """A plain pod, placed by kube-scheduler."""
        limits = {f"{amounts.MIG_PREFIX}{profile}": "1"}
        spec = {"containers": [{"name": "main", "image": "example.com/serve:1", "resources": {"limits": limits}}]}
        body = {
            "metadata": {"name": name, "annotations": {"kgwe.nvidia.io/simulated-duration": "1h"}},
            "spec": spec,
        }
        await self.client.create(resources.POD, body, "default")

    # --- seeing -----------------------------------------------------------------------------------------

    async def until(self, true: Callable[[], Any], timeout_s: float = PATIENCE_S) -> None:
        """Return when `true()` is, looked at after every change the API server reports."""
        try:
            async with asyncio.timeout(timeout_s):
                while not true():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            logs = [*self.folder.glob("*.log"), *self.folder.glob("*/agent.log")]
            told = "\n---\n".join(f"{log.name}: {log.read_text()[-2000:]}" for log in logs)
            cuts = {name: (self.cuts(name), obj.spec.cards) for name, obj in self.gpu_nodes.store.items()}
            pytest.fail(f"not true after {timeout_s} s\n{cuts}\n{told}")

    def cuts(self, node: str) -> list[str]:
        obj = self.gpu_nodes.store.get(node)
        return [
            " ".join(f"{each.profile}@{each.start}" for each in device.mig.instances) if device.mig.enabled else "whole"
            for device in (obj.status.gpus if obj else ())
        ]

    def wished(self, node: str) -> list[str]:
        """All instances asked of its cards."""
        obj = self.gpu_nodes.store.get(node)
        return [place for card in (obj.spec.cards if obj else ()) for place in card.mig.instances]

    def is_running(self, pod: str) -> bool:
        found = self.pods.store.get(f"default/{pod}")
        return found is not None and found.status.phase == "Running"

    def phase(self, workload: Any) -> str:
        found = self.workloads.store.get(workload.metadata.key)
        return found.status.phase if found else ""

    def running(self) -> dict[str, str]:
        """uid -> node of pods that run."""
        return {
            pod.metadata.uid: pod.spec.nodeName for pod in self.pods.store.values() if pod.status.phase == "Running"
        }

    def ready(self, strategy: str) -> str:
        found = self.strategies.store.get(strategy)
        return next((each.reason for each in found.status.conditions if each.type == "Ready"), "") if found else ""
