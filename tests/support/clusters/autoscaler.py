"""A cluster with the autoscaler as a real process, and the simulated cloud beside it."""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.clusters import fork_server
from tests.support.patience import PATIENCE_S

from kgwe import errors
from kgwe.cloud import kwok
from kgwe.kube.api import resources
from kgwe.kube.api.kgwe.autoscalingpolicy import AutoscalingPolicyStatus
from kgwe.kube.client.informer import Informer
from kgwe.local.cluster.cluster import service_account_kubeconfig
from kgwe.local.fleet import models
from kgwe.local.fleet.cloud import CloudRules, SimulatedCloud
from kgwe.local.host import ports

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping
    from pathlib import Path

    from tests.support.clusters.bed import Bed
    from tests.support.clusters.fork_server import ForkedProcess


POLICY = "fleet"
_QUICK = {
    "KGWE_AUTOSCALER_RECONCILE_SECONDS": "0.5",
    "KGWE_AUTOSCALER_GATHER_SECONDS": "0.1",
    "KGWE_AUTOSCALER_LEASE_DURATION_SECONDS": "3",
    "KGWE_AUTOSCALER_RENEW_DEADLINE_SECONDS": "2",
    "KGWE_AUTOSCALER_RETRY_PERIOD_SECONDS": "0.3",
}
QUICK_POLICY: dict[str, Any] = {
    "provider": "kwok",
    "pendingPodTimeoutSeconds": 0,
    "scaleUpCooldownSeconds": 0,
    "scaleDownCooldownSeconds": 0,
    "scaleDown": {"idleSeconds": 3600},
}
H100: dict[str, Any] = {
    "name": "h100",
    "gpuType": "H100",
    "gpusPerNode": 8,
    "cpu": "180",
    "memory": "1900Gi",
    "instanceTypes": ["p5.48xlarge"],
    "capacityType": "on-demand",
    "availabilityZones": ["us-east-1a"],
    "nodesPerLeaf": 16,
}


class ScalingCluster:
    """What the tests ask of it."""

    def __init__(self, bed: Bed, logs: Path, rules: CloudRules, env: Mapping[str, str] | None = None) -> None:
        self.bed = bed
        self.client = bed.client
        self.rules = rules
        self._env = dict(os.environ) | _QUICK | dict(env or {})
        self._logs = logs
        self._path = service_account_kubeconfig(
            bed.cluster, "kgwe-system", "kgwe-autoscaler", logs / "autoscaler.kubeconfig"
        )
        self.policies = Informer(bed.client, resources.AUTOSCALING_POLICY)
        self.orders = Informer(bed.client, kwok.CONFIG_MAP, namespace="kgwe-system", label_selector=kwok.ORDER_LABEL)
        self._changed = asyncio.Event()
        for informer in (self.policies, self.orders, bed.nodes, bed.pods):
            informer.on_change(lambda _: self._changed.set())
        self.process: ForkedProcess | None = None
        self._starts = 0

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[ScalingCluster]:
        cloud = SimulatedCloud(self.client, [models.load("mixed"), models.load("shared")], self.rules)
        tasks = [asyncio.create_task(each.run()) for each in (self.policies, self.orders)]
        async with cloud.run_in_background():
            try:
                self.start()
                yield self
            finally:
                self.kill()
                await self._clear()
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    def start(self) -> None:
        """Start the autoscaler with its own rights."""
        port = ports.allocate(("metrics",))["metrics"]
        arguments = ["autoscaler", "--kubeconfig", str(self._path), "--metrics-bind-address", f"127.0.0.1:{port}"]
        self._starts += 1
        log = self._logs / f"autoscaler-{self._starts}.log"
        self.process = fork_server.shared().start(arguments, self._env, log)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    async def _clear(self) -> None:
        for policy in await self.client.list(resources.AUTOSCALING_POLICY):
            with contextlib.suppress(errors.NotFound):
                await self.client.delete(resources.AUTOSCALING_POLICY, policy.metadata.name)
        for order in await self.client.list(kwok.CONFIG_MAP, "kgwe-system", labelSelector=kwok.ORDER_LABEL):
            with contextlib.suppress(errors.NotFound):
                await self.client.delete(kwok.CONFIG_MAP, order.metadata.name, "kgwe-system")

    # --- doing ------------------------------------------------------------------------------------------

    async def add_policy(self, *pools: Mapping[str, Any], **spec: Any) -> None:
        body = {
            "apiVersion": "kgwe.nvidia.io/v1",
            "kind": "AutoscalingPolicy",
            "metadata": {"name": POLICY},
            "spec": {**QUICK_POLICY, "nodePools": list(pools or (H100,)), **spec},
        }
        await self.client.create(resources.AUTOSCALING_POLICY, body)

    async def edit_policy(self, **spec: Any) -> None:
        await self.client.patch(resources.AUTOSCALING_POLICY, POLICY, {"spec": spec})

    async def add_pod(self, name: str, gpus: int = 1, *, resource: str = "nvidia.com/gpu", **more: Any) -> None:
        container = {"name": "c", "image": "example.com/i:1", "resources": {"limits": {resource: str(gpus)}}}
        meta = {"name": name, "annotations": more.pop("annotations", {}), "labels": more.pop("labels", {})}
        body = {"metadata": meta, "spec": {"containers": [container], **more}}
        await self.client.create(resources.POD, body, "default")

    # --- seeing -----------------------------------------------------------------------------------------

    @property
    def status(self) -> AutoscalingPolicyStatus:
        found = self.policies.store.get(POLICY)
        return found.status if found is not None else AutoscalingPolicyStatus()  # the watch has not shown it yet

    def count_bought(self) -> int:
        """Instances that the cloud has ever made."""
        return sum(len(kwok.read_order(each)[1].machines) for each in self.orders.store.values())

    def count_alive(self) -> int:
        return sum(
            machine.state != "gone"
            for each in self.orders.store.values()
            for machine in kwok.read_order(each)[1].machines
        )

    def list_running(self) -> set[str]:
        return {pod.metadata.name for pod in self.bed.pods.store.values() if pod.status.phase == "Running"}

    async def until(self, true: Callable[[], object], timeout_s: float = PATIENCE_S) -> None:
        """Return when `true()` is, looked at after every change."""
        try:
            async with asyncio.timeout(timeout_s):
                while not true():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            told = [log.read_text()[-3000:] for log in sorted(self._logs.glob("*.log"))[-3:]]
            status = self.policies.store.get(POLICY)
            pytest.fail(f"not true after {timeout_s} s; {status}\nprocesses say:\n" + "\n---\n".join(told))
