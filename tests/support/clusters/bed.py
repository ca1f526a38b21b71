"""A private cluster with the controller's own rights, GPU nodes, and controllers as real processes.

Every controller runs as the service account of deploy/rbac.yaml, so a right that is missing there fails here.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import httpx2
import pytest
from tests.support.clusters import clients, fork_server
from tests.support.patience import PATIENCE_S

from kgwe.cluster.workload import metadata_keys
from kgwe.kube.api import resources
from kgwe.kube.client.informer import Informer
from kgwe.kube.translate import podspec
from kgwe.local.host import ports
from kgwe.model.units import amounts

if TYPE_CHECKING:
    from collections.abc import Callable

    from kgwe.kube.api.resources import Resource
    from kgwe.kube.client.client import KubeClient
    from kgwe.local.cluster.cluster import LocalCluster

ROOT = Path(__file__).parents[3]
KINDS: dict[str, Resource[Any]] = {
    "gpu.warp.dev": resources.WARP_GPU_WORKLOAD,
    "kgwe.nvidia.io": resources.GPU_WORKLOAD,
}

# Seconds that tests would otherwise spend waiting.
_QUICK = {"status_settle_seconds": "0.2"}


class Replica:
    """One controller process."""

    def __init__(self, kubeconfig: Path, log: Path, *, command: str = "controller", **settings: str) -> None:
        self.port = ports.allocate(("metrics",))["metrics"]
        self.log = log
        env = os.environ | {f"KGWE_SCHEDULER_{key.upper()}": value for key, value in settings.items()}
        arguments = [command, "--kubeconfig", str(kubeconfig), "--metrics-bind-address", f"127.0.0.1:{self.port}"]
        self.process = fork_server.shared().start(arguments, env, log)

    async def get(self, path: str) -> httpx2.Response:
        async with httpx2.AsyncClient(timeout=PATIENCE_S) as client:
            return await client.get(f"http://127.0.0.1:{self.port}{path}")

    async def ready(self, timeout_s: float = PATIENCE_S) -> Replica:
        """Itself, once it acts or stands by."""
        said = "nothing"
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    assert self.process.poll() is None, f"scheduler died: {self.log.read_text()[-3000:]}"
                    with contextlib.suppress(httpx2.TransportError):
                        reply = await self.get("/readyz")
                        said = reply.text
                        if reply.is_success or "standby" in said:
                            return self
                    await asyncio.sleep(0.05)
        except TimeoutError:
            pytest.fail(f"not ready after {timeout_s} s, it says {said!r} and writes:\n{self.log.read_text()[-3000:]}")

    async def metric(self, name: str) -> float:
        """The value of a sample, labels included in `name`; 0 when there is none."""
        for line in (await self.get("/metrics")).text.splitlines():
            if line.startswith(f"{name} "):
                return float(line.rsplit(" ", 1)[1])
        return 0.0

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def pause(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def stop(self, timeout_s: float = PATIENCE_S) -> int:
        self.process.terminate()
        return self.process.wait(timeout_s)


class Bed:
    """A cluster to try controllers on, with what tests ask of it."""

    def __init__(self, cluster: LocalCluster, client: KubeClient, kubeconfig: Path, logs: Path) -> None:
        self.cluster = cluster
        self.client = client
        self._kubeconfig = kubeconfig
        self._logs = logs
        self._replicas: list[Replica] = []
        self._changed = asyncio.Event()
        self.workloads: dict[str, Informer[Any]] = {group: Informer(client, kind) for group, kind in KINDS.items()}
        self.jobs = Informer(client, resources.JOB, label_selector=metadata_keys.SELECTOR)
        self.deployments = Informer(client, resources.DEPLOYMENT, label_selector=metadata_keys.SELECTOR)
        self.pods = Informer(client, resources.POD)
        self.nodes = Informer(client, resources.NODE)
        #: (uid, phase) in the order they were seen
        self.phases: list[tuple[str, str]] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        informers = [*self.workloads.values(), self.jobs, self.deployments, self.pods, self.nodes]
        for informer in informers:
            informer.on_change(lambda _: self._changed.set())
        for informer in self.workloads.values():
            informer.on_change(self._note_phase)
        self._tasks = [asyncio.create_task(informer.run()) for informer in informers]
        for informer in informers:
            await informer.synced.wait()
        return self

    async def __aexit__(self, *_: object) -> None:
        for replica in self._replicas:
            replica.resume()
            replica.kill()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _note_phase(self, change: Any) -> None:
        if change.new is not None and change.new.status.phase:
            entry = (change.new.metadata.uid, change.new.status.phase)
            if entry not in self.phases[-50:]:
                self.phases.append(entry)

    async def controller(self, **settings: str) -> Replica:
        log = self._logs / f"controller-{len(self._replicas)}.log"
        replica = Replica(self._kubeconfig, log, **_QUICK | settings)
        self._replicas.append(replica)
        return await replica.ready()

    # --- doing ------------------------------------------------------------------------------------------

    async def node(
        self, name: str, gpus: int = 8, *, labels: dict[str, str] | None = None, more: dict[str, str] | None = None
    ) -> None:
        offers = {"cpu": "64", "memory": "512Gi", "pods": "110", amounts.GPU: str(gpus)} | (more or {})
        meta = {
            "name": name,
            "annotations": {"kwok.x-k8s.io/node": "fake"},
            "labels": {"type": "kwok", "kubernetes.io/hostname": name} | (labels or {}),
        }
        await self.client.apply(resources.NODE, {"metadata": meta})
        status = {"status": {"capacity": offers, "allocatable": offers}}
        await self.client.patch(resources.NODE, name, status, subresource="status")
        await self.until(lambda: name in self.nodes.store and podspec.is_ready(self.nodes.store[name]))

    async def remove_nodes(self) -> None:
        for name in list(self.nodes.store):
            await self.client.delete(resources.NODE, name)
        await self.until(lambda: not self.nodes.store)

    async def submit(self, body: dict[str, Any], namespace: str = "default") -> Any:
        resource = KINDS[body["apiVersion"].partition("/")[0]]
        return await self.client.create(resource, body, namespace)

    async def delete(self, workload: Any) -> None:
        resource = self.resource_of(workload)
        await self.client.delete(resource, workload.metadata.name, workload.metadata.namespace)

    async def edit(self, workload: Any, spec: dict[str, Any]) -> None:
        resource = self.resource_of(workload)
        await self.client.patch(resource, workload.metadata.name, {"spec": spec}, workload.metadata.namespace)

    async def as_controller(self, path: str) -> bytes:
        """A GET with the rights of the controller."""
        async with clients.connect(self._kubeconfig) as limited:
            return await limited.request("GET", path)

    # --- seeing -----------------------------------------------------------------------------------------

    @staticmethod
    def resource_of(workload: Any) -> Any:
        return next(r for r in KINDS.values() if isinstance(workload, r.type))

    def now(self, workload: Any) -> Any:
        """The workload as it is now; None when it is gone."""
        informer = self.workloads[self.resource_of(workload).group]
        found = informer.store.get(workload.metadata.key)
        return found if found is not None and found.metadata.uid == workload.metadata.uid else None

    def phase(self, workload: Any) -> str:
        found = self.now(workload)
        return found.status.phase if found else "(gone)"

    def jobs_of(self, workload: Any) -> list[Any]:
        uid = workload.metadata.uid
        return [job for job in self.jobs.store.values() if job.metadata.labels.get(metadata_keys.UID_LABEL) == uid]

    async def until(self, true: Callable[[], Any], timeout_s: float = PATIENCE_S) -> None:
        """Return when `true()` is, looked at after every change the API server reports."""
        try:
            async with asyncio.timeout(timeout_s):
                while not true():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            told = [log.read_text()[-2000:] for log in sorted(self._logs.glob("controller-*.log"))[-2:]]
            pytest.fail(f"not true after {timeout_s} s; controllers say:\n" + "\n---\n".join(told))

    async def until_phase(self, workload: Any, *phases: str, timeout_s: float = PATIENCE_S) -> Any:
        await self.until(lambda: self.phase(workload) in phases, timeout_s)
        return self.now(workload)

    def pod_says(self, name: str) -> set[str]:
        """Phase and condition reasons of a pod; empty when it is not there (yet)."""
        pod = self.pods.store.get(f"default/{name}")
        return set() if pod is None else {pod.status.phase, *(c.reason for c in pod.status.conditions)}

    def gpus_bound(self) -> dict[str, int]:
        """Node -> GPUs that its non-terminal pods hold."""
        held: dict[str, int] = {}
        for pod in self.pods.store.values():
            if pod.spec.nodeName and not podspec.is_terminal(pod):
                gpus = podspec.sum_requests(pod.spec).get(amounts.GPU, 0)
                held[pod.spec.nodeName] = held.get(pod.spec.nodeName, 0) + gpus
        return held


def condition(workload: Any, type_: str) -> Any:
    return next(c for c in workload.status.conditions if c.type == type_)


def warp(name: str, gpus: int = 1, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "gpu.warp.dev/v1alpha1",
        "kind": "GPUWorkload",
        "metadata": {"name": name},
        "spec": {"modelName": "llama2", "gpuCount": gpus, **spec},
    }


def kgwe(
    name: str, gpus: int = 1, *, duration: str = "1h", pod: dict[str, Any] | None = None, **spec: Any
) -> dict[str, Any]:
    """A kgwe workload whose pod runs for `duration`; `pod` is merged into the pod's spec."""
    container = {"name": "main", "image": "example.com/train:1"}
    template = {
        "metadata": {"annotations": {"kgwe.nvidia.io/simulated-duration": duration}},
        "spec": {"containers": [container], **(pod or {})},
    }
    return {
        "apiVersion": "kgwe.nvidia.io/v1",
        "kind": "GPUWorkload",
        "metadata": {"name": name},
        "spec": {"gpuRequirements": {"count": gpus}, "podTemplate": template, **spec},
    }
