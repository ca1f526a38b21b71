"""An autoscaler on an API server in memory, with the simulated cloud. Time moves only when a test says so."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import itertools
from typing import TYPE_CHECKING, Any

from tests.support.fakes.memory_api import MemoryApi

from kgwe.apps.autoscaler.cluster_view import ClusterView
from kgwe.apps.autoscaler.controller import Controller
from kgwe.apps.autoscaler.metrics import Metrics
from kgwe.cloud.kwok import KwokProvider
from kgwe.kube.api import autoscaling, resources, timestamp
from kgwe.kube.client.client import KubeClient
from kgwe.local.fleet import models
from kgwe.local.fleet.cloud import CloudRules, SimulatedCloud
from kgwe.placement.planning.plan import Plan
from kgwe.placement.planning.planner import make_plan
from kgwe.store.ledger.price_files import load_book

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from kgwe.kube.api.kgwe.autoscalingpolicy import AutoscalingPolicyStatus

_START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC).timestamp()
_TURNS = 25

H100: dict[str, Any] = {
    "name": "h100",
    "gpuType": "H100",
    "gpusPerNode": 8,
    "cpu": "184",
    "memory": "1900Gi",
    "instanceTypes": ["p5.48xlarge"],
    "capacityType": "on-demand",
    "availabilityZones": ["us-east-1a"],
    "nodesPerLeaf": 16,
}
FAST: dict[str, Any] = {
    "provider": "kwok",
    "pendingPodTimeoutSeconds": 120,
    "scaleUpCooldownSeconds": 0,
    "scaleDownCooldownSeconds": 0,
}


class ScalingBed:
    """Create objects through `api`; `round` lets the autoscaler act once, `wait` lets time pass for the cloud."""

    def __init__(self, rules: CloudRules) -> None:
        kinds = [each for each in vars(resources).values() if isinstance(each, resources.Resource)]
        own = [kind for kind in kinds if kind.group in ("kgwe.nvidia.io", "gpu.warp.dev")]
        self.api = MemoryApi([*own, autoscaling.PROVISIONING_REQUESTS[0], autoscaling.CAPACITY_BUFFERS[0]])
        self.client = KubeClient(self.api)
        self.now_s = _START
        self.rules = rules
        self.cloud = SimulatedCloud(self.client, [models.load("mixed")], rules, clock=lambda: self.now_s)
        self.provider = KwokProvider(self.client, answer_s=2.0)
        self.providers: dict[str, Any] = {"kwok": self.provider}
        self.timeout_s = 30.0
        self.cluster = ClusterView(self.client)
        self.metrics = Metrics()
        self.uses: dict[str, float] = {}
        self.events: list[Any] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._numbers = itertools.count()
        self.controller = self.make_controller()

    def make_controller(self) -> Controller:
        """Return the controller of a new process: nothing is remembered."""
        return Controller(
            self.client, self.cluster, self.providers, load_book(()), self.metrics,
            record=self.events.append, uses=lambda: self.uses, timeout_s=self.timeout_s, clock=lambda: self.now_s,
        )  # fmt: skip

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[ScalingBed]:
        await self.cluster.watch()
        self._tasks = [asyncio.create_task(each.run()) for each in self.cluster.informers]
        async with self.cloud.run_in_background():
            await self.settle()
            try:
                yield self
            finally:
                for task in self._tasks:
                    task.cancel()
                await asyncio.gather(*self._tasks, return_exceptions=True)

    async def settle(self) -> None:
        for _ in range(_TURNS):
            await asyncio.sleep(0)

    # --- doing ------------------------------------------------------------------------------------------

    async def add_policy(self, *pools: Mapping[str, Any], name: str = "fleet", **spec: Any) -> None:
        body = {"metadata": {"name": name}, "spec": {**FAST, "nodePools": list(pools or (H100,)), **spec}}
        await self.client.create(resources.AUTOSCALING_POLICY, body)
        await self.settle()

    async def add_pod(self, gpus: int = 1, *, resource: str = "nvidia.com/gpu", **more: Any) -> str:
        """Create a pod that no scheduler could place."""
        name = f"p{next(self._numbers)}"
        container = {"name": "c", "resources": {"limits": {resource: str(gpus)}}}
        meta: dict[str, Any] = {"name": name, "annotations": more.pop("annotations", {})}
        if owner := more.pop("owner", "ReplicaSet"):
            reference = {"apiVersion": "apps/v1", "kind": owner, "name": "o", "uid": f"o-{name}", "controller": True}
            meta["ownerReferences"] = [reference]
        meta["labels"] = more.pop("labels", {})
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
        self.api.now = timestamp.format_time(self.now_s)
        body = {
            "metadata": meta,
            "spec": {"containers": [container], **more},
            "status": {"phase": "Pending", "conditions": [condition]},
        }
        await self.client.create(resources.POD, body, "default")
        await self.settle()
        return name

    async def add_gang(self, pods: int, gpus: int = 8, *, required: str = "") -> str:
        """Create a GPUWorkload of several pods."""
        name = f"g{next(self._numbers)}"
        self.api.now = timestamp.format_time(self.now_s)
        spec: dict[str, Any] = {
            "gpuRequirements": {"count": pods * gpus},
            "gpusPerPod": gpus,
            "distributedConfig": {"strategy": "DataParallel", "worldSize": pods},
        }
        if required:
            spec["gpuRequirements"]["topology"] = {"requiredLevel": required}
        await self.client.create(resources.GPU_WORKLOAD, {"metadata": {"name": name}, "spec": spec}, "default")
        await self.settle()
        return name

    async def round(self, wait_s: float = 0.0) -> AutoscalingPolicyStatus:
        """Let time pass, let the cloud act, and let the autoscaler act once."""
        await self.wait(wait_s)
        await self.controller.reconcile()
        await self.settle()
        return await self.status()

    async def wait(self, seconds: float) -> None:
        self.now_s += seconds
        await self.cloud.step()
        await self.settle()
        await self.cloud.step()
        await self.settle()

    async def schedule(self) -> int:
        """Bind every pod that the engine can place, as the scheduler would. Returns how many."""
        view = self.cluster.view
        view.find_waiting()
        bound = 0
        for ask in sorted(view.asks.values(), key=lambda each: each.sort_key()):
            pod = view.state.pods.get(ask.owner)
            found = make_plan(view.fleet, ask)
            if pod is None or not isinstance(found, Plan):
                continue
            body = {"spec": {"nodeName": found.seats[0].node}}
            await self.client.patch(resources.POD, pod.metadata.name, body, "default")
            running = {"status": {"phase": "Running", "conditions": [], "startTime": timestamp.format_time(self.now_s)}}
            await self.client.patch(resources.POD, pod.metadata.name, running, "default", subresource="status")
            await self.settle()
            bound += 1
        return bound

    async def delete_pod(self, name: str) -> None:
        await self.client.delete(resources.POD, name, "default", grace_s=0)
        await self.settle()

    async def take_back(self, name: str) -> None:
        """Let the cloud end an instance and its node, as a spot interruption does."""
        for each in await self._orders():
            answer = each.data["answer"].replace('"running"', '"gone"')
            path = f"/api/v1/namespaces/kgwe-system/configmaps/{each.metadata.name}"
            self.api.call("PATCH", path, {"data": {"answer": answer}})
        await self.client.delete(resources.NODE, name)
        await self.settle()

    # --- seeing -----------------------------------------------------------------------------------------

    async def status(self, name: str = "fleet") -> AutoscalingPolicyStatus:
        return (await self.client.get(resources.AUTOSCALING_POLICY, name)).status

    def nodes(self) -> list[str]:
        return sorted(self.cluster.nodes)

    async def count_bought(self) -> int:
        """Instances that the cloud has ever made."""
        return sum(len(each.data.get("answer", "").split('"name"')) - 1 for each in await self._orders())

    async def _orders(self) -> list[Any]:
        from kgwe.cloud.kwok import CONFIG_MAP  # noqa: PLC0415

        return await self.client.list(CONFIG_MAP, "kgwe-system")
