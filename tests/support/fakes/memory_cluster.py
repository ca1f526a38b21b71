"""A cluster in memory: an API server, controllers of Jobs and Deployments, and kubelets that run bound pods."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import gc
import time
from typing import TYPE_CHECKING, Any, Self

from tests.support.fakes.memory_api import Change, MemoryApi, Refused
from tests.support.patience import PATIENCE_S

from kgwe.apps.scheduler.main import Scheduler
from kgwe.apps.scheduler.settings import Settings
from kgwe.kube.api import resources
from kgwe.kube.client.client import KubeClient

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from tests.support.fakes.memory_api import Obj

_HOSTS = ("kubernetes.io/hostname", "metadata.name")
_INDEX = "batch.kubernetes.io/job-completion-index"
_NOW = "2026-01-01T00:00:00Z"


class MemoryCluster:
    """Objects are changed through `client`; controllers react a moment later."""

    def __init__(self) -> None:
        kinds = [each for each in vars(resources).values() if isinstance(each, resources.Resource)]
        self.api = MemoryApi(kind for kind in kinds if kind.group in ("kgwe.nvidia.io", "gpu.warp.dev"))
        self.client = KubeClient(self.api)
        self._changed = asyncio.Event()
        self._made = 0
        self.api.on_change = self._react

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.close()

    @contextlib.asynccontextmanager
    async def scheduler(self, clock: Callable[[], float] = time.time, **settings: Any) -> AsyncIterator[Scheduler]:
        """A scheduler in this process, acting when the block begins; `clock`: of its budgets."""
        usual: dict[str, Any] = {
            "metrics_bind_address": "127.0.0.1:0",
            "status_settle_seconds": 0.05,
            "extender_bind_address": "",
        }
        made = Scheduler(Settings(**usual | settings), self.client, clock=clock)
        stop = asyncio.Event()
        running = asyncio.create_task(made.run(stop))
        try:
            async with asyncio.timeout(PATIENCE_S):
                while made.problem() is not None and not running.done():  # noqa: ASYNC110 -- as a probe asks
                    await asyncio.sleep(0.01)
            yield made
        finally:
            stop.set()
            await running
            # A scheduler gives back what was frozen after collection: the next one would look through all of it.
            gc.collect(1)
            gc.freeze()

    # --- doing ------------------------------------------------------------------------------------------

    async def node(self, name: str, gpus: int = 8, labels: dict[str, str] | None = None) -> None:
        offers = {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": str(gpus)}
        status = {"capacity": offers, "allocatable": offers, "conditions": [{"type": "Ready", "status": "True"}]}
        meta = {"name": name, "labels": {"kubernetes.io/hostname": name, **(labels or {})}}
        await self.client.create(resources.NODE, {"metadata": meta, "status": status})

    async def submit(self, body: dict[str, Any], namespace: str = "default") -> Any:
        return await self.client.create(resources.GPU_WORKLOAD, body, namespace)

    def end_pods(self, phase: str = "Succeeded") -> None:
        """Every pod that runs ends."""
        for pod in self.objects("/api/v1/pods"):
            if pod.get("status", {}).get("phase") == "Running":
                self._set_status(_path(pod, "pods"), {"phase": phase})

    # --- seeing -----------------------------------------------------------------------------------------

    def objects(self, path: str) -> list[Obj]:
        found: list[Obj] = self.api.call("GET", path)["items"]
        return found

    async def now(self, workload: Any) -> Any:
        meta = workload.metadata
        return await self.client.get(resources.GPU_WORKLOAD, meta.name, meta.namespace)

    async def until(self, true: Callable[[], object], timeout_s: float = PATIENCE_S) -> None:
        """Return when `true()` is, looked at after every change."""
        async with asyncio.timeout(timeout_s):
            while not true():
                self._changed.clear()
                await self._changed.wait()

    async def until_phase(self, workload: Any, phase: str) -> Any:
        meta = workload.metadata
        path = resources.GPU_WORKLOAD.path(namespace=meta.namespace, name=meta.name)
        await self.until(lambda: self.api.call("GET", path).get("status", {}).get("phase") == phase)
        return await self.now(workload)

    # --- controllers ------------------------------------------------------------------------------------

    def _react(self, change: Change) -> None:
        self._changed.set()
        loop = asyncio.get_running_loop()
        if change.collection == "apis/batch/v1/jobs" and change.type != "DELETED":
            loop.call_soon(self._sync_job, _path(change.obj, "jobs"))
        elif change.collection == "apis/apps/v1/deployments":
            loop.call_soon(self._sync_deployment, _path(change.obj, "deployments"), change.obj)
        elif change.collection == "api/v1/pods":
            if change.type != "DELETED":
                loop.call_soon(self._sync_pod, _path(change.obj, "pods"))
            for owner in change.obj["metadata"].get("ownerReferences") or ():
                if owner["kind"] == "Job":
                    loop.call_soon(self._sync_job, _path(change.obj, "jobs", owner["name"]))

    def _sync_job(self, path: str) -> None:
        with contextlib.suppress(Refused):  # it is gone
            job = self.api.call("GET", path)
            if job["metadata"].get("deletionTimestamp"):
                return
            pods = [pod for pod in self.objects(_pods_of(job)) if _owner(pod) == job["metadata"]["uid"]]
            phases = [pod.get("status", {}).get("phase") for pod in pods]
            done = phases.count("Succeeded")
            wanted = job["spec"].get("completions", 1)
            if done >= wanted:
                complete = [{"type": "Complete", "status": "True", "lastTransitionTime": _NOW}]
                self._set_status(path, {"succeeded": done, "conditions": complete, "completionTime": _NOW})
            elif not job["spec"].get("suspend"):
                self._create_pods(job, {pod["metadata"]["annotations"][_INDEX] for pod in pods})
                self._set_status(path, {"active": len(pods) - done, "succeeded": done, "startTime": _NOW})

    def _sync_deployment(self, path: str, last: Obj) -> None:
        """Create and delete pods until there are as many as the Deployment says; none of one that is gone."""
        wanted, labels = 0, last["spec"]["selector"]["matchLabels"]
        with contextlib.suppress(Refused):
            wanted = self.api.call("GET", path)["spec"]["replicas"]
        pods = [
            pod
            for pod in self.objects(_pods_of(last))
            if labels.items() <= (pod["metadata"].get("labels") or {}).items()
        ]
        for pod in pods[wanted:]:
            with contextlib.suppress(Refused):
                self.api.call("DELETE", _path(pod, "pods"))
        for _ in range(wanted - len(pods)):
            self._made += 1
            pod = copy.deepcopy(last["spec"]["template"])
            name = f"{last['metadata']['name']}-5d4f8c"
            pod["metadata"]["name"] = f"{name}-{self._made}"
            owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": name, "controller": True, "uid": name}
            pod["metadata"]["ownerReferences"] = [owner]
            self.api.call("POST", _pods_of(last), {**pod, "status": {"phase": "Pending"}})

    def _create_pods(self, job: Obj, existing: set[str]) -> None:
        for index in range(job["spec"].get("completions", 1)):
            if str(index) not in existing:
                pod = copy.deepcopy(job["spec"]["template"])
                meta = pod.setdefault("metadata", {})
                meta["name"] = f"{job['metadata']['name']}-{index}"
                meta["annotations"] = {**meta.get("annotations", {}), _INDEX: str(index)}
                labels = {"batch.kubernetes.io/job-name": job["metadata"]["name"], _INDEX: str(index)}
                meta["labels"] = {**meta.get("labels", {}), **labels}
                owner = {"apiVersion": "batch/v1", "kind": "Job", "name": job["metadata"]["name"], "controller": True}
                meta["ownerReferences"] = [{**owner, "uid": job["metadata"]["uid"]}]
                self.api.call("POST", _pods_of(job), {**pod, "status": {"phase": "Pending"}})

    def _sync_pod(self, path: str) -> None:
        with contextlib.suppress(Refused):  # it is gone
            pod = self.api.call("GET", path)
            node = pod["spec"].get("nodeName")
            if not node and not pod["spec"].get("schedulingGates") and (pins := list(_pins(pod["spec"]))):
                self.api.call("POST", f"{path}/binding", {"target": {"name": pins[0]}})
            elif node and pod.get("status", {}).get("phase") == "Pending":
                conditions = [{"type": kind, "status": "True"} for kind in ("PodScheduled", "Ready")]
                self._set_status(path, {"phase": "Running", "startTime": _NOW, "conditions": conditions})

    def _set_status(self, path: str, status: Obj) -> None:
        self.api.call("PATCH", f"{path}/status", {"status": status})


def _path(obj: Obj, plural: str, name: str = "") -> str:
    base = {"pods": "/api/v1", "deployments": "/apis/apps/v1"}.get(plural, "/apis/batch/v1")
    return f"{base}/namespaces/{obj['metadata']['namespace']}/{plural}/{name or obj['metadata']['name']}"


def _pods_of(job: Obj) -> str:
    return f"/api/v1/namespaces/{job['metadata']['namespace']}/pods"


def _owner(pod: Obj) -> str:
    return next((owner["uid"] for owner in pod["metadata"].get("ownerReferences") or ()), "")


def _pins(spec: Obj) -> Iterator[str]:
    """Nodes that the pod is limited to by name."""
    if host := (spec.get("nodeSelector") or {}).get(_HOSTS[0]):
        yield host
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    for term in (affinity.get(required) or {}).get("nodeSelectorTerms") or ():
        for line in (*term.get("matchExpressions", ()), *term.get("matchFields", ())):
            if line["key"] in _HOSTS and line["operator"] == "In":
                yield from line["values"]
