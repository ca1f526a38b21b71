"""A cluster with a real node and KGWE's scheduler, for tests that need a kubelet."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from typing import TYPE_CHECKING, Any, Self

import pytest
from tests.support.patience import PATIENCE_S

from kgwe.errors import KgweError, NotFound
from kgwe.kube.client.client import KubeClient
from kgwe.local.cluster.cluster import ClusterOptions, LocalCluster
from kgwe.local.demo import install
from kgwe.local.host import processes
from kgwe.local.node import programs
from kgwe.local.node.node import NAME, RealNode
from kgwe.local.node.settings_files import BUSYBOX_IMAGE
from kgwe.local.toolchain import binaries
from kgwe.model.devices.assignment import parse_planned

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

WORKLOADS = "/apis/kgwe.nvidia.io/v1/namespaces/default/gpuworkloads"
PODS = "/api/v1/namespaces/default/pods"
#: prints its GPUs, and goes on for some seconds
SHOW = "echo GPUS=$NVIDIA_VISIBLE_DEVICES; sleep {seconds}"


def skip_without_node() -> None:
    """Skip where no node can run, and where its programs would have to be built, which takes minutes."""
    if problems := programs.find_problems():
        pytest.skip(problems[0])
    if programs.find_system_program("busybox") is None:
        pytest.skip("pods need an image: busybox-static is not installed")
    if programs.list_missing() and not os.environ.get("KGWE_REAL_NODE"):
        pytest.skip("the programs of a node are not built; KGWE_REAL_NODE=1 builds them")


class RealBed:
    """A cluster, its real node, and KGWE's scheduler."""

    def __init__(self, name: str, root: Path) -> None:
        self.cluster = LocalCluster.start(ClusterOptions(name, state_root=root))
        self.node = RealNode(self.cluster)
        self._kubectl = str(binaries.find().found["kubectl"].path)

    def __enter__(self) -> Self:
        asyncio.run(self._install())
        install.start_scheduler(self.cluster)
        return self

    def __exit__(self, *_: object) -> None:
        self.node.stop()
        self.cluster.stop(grace_s=2.0)

    async def _install(self) -> None:
        async with KubeClient.connect(self.cluster.kubeconfig, field_manager="tests") as client:
            await install.install(client)

    def request(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        with self.cluster.api() as api:
            return api.request(method, path, body)

    def kubectl(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self._kubectl, "--kubeconfig", str(self.cluster.kubeconfig), *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )

    def until(self, ask: Callable[[], Any], *, patience_s: float = PATIENCE_S) -> Any:
        """The first true answer. An API server that does not respond is asked again."""
        end = time.monotonic() + patience_s
        last: Any = None
        while time.monotonic() < end:
            try:
                if last := ask():
                    return last
            except KgweError as exc:
                last = exc
            time.sleep(0.2)
        pytest.fail(f"did not happen in {patience_s:.0f} s; last: {last}; {self._describe()}")

    def _describe(self) -> str:
        events = self.kubectl("get", "events", "--sort-by=.lastTimestamp").stdout.splitlines()[-30:]
        kinds = "gpuworkloads.kgwe.nvidia.io,jobs,pods"
        unfinished = [
            line
            for line in self.kubectl("get", kinds, "-o", "wide").stdout.splitlines()
            if "Succeeded" not in line and "Complete" not in line
        ]
        logs = [
            path.read_text(errors="replace")[-6000:]
            for name in ("kgwe-scheduler", "node", "node-agent")
            if (path := self.cluster.layout.log(name)).exists()
        ]
        return "\n".join([*unfinished, *events, *logs])

    # --- workloads --------------------------------------------------------------------------------------

    def submit(self, name: str, count: int, *, seconds: float = 0, **spec: Any) -> None:
        container = {"name": "main", "image": BUSYBOX_IMAGE, "command": ["sh", "-c", SHOW.format(seconds=seconds)]}
        body = {
            "apiVersion": "kgwe.nvidia.io/v1",
            "kind": "GPUWorkload",
            "metadata": {"name": name},
            "spec": {"gpuRequirements": {"count": count}, "podTemplate": {"spec": {"containers": [container]}}, **spec},
        }
        self.request("POST", WORKLOADS, body)

    def phases(self) -> dict[str, str]:
        items = self.request("GET", WORKLOADS)["items"]
        return {each["metadata"]["name"]: each.get("status", {}).get("phase", "") for each in items}

    def clear(self) -> None:
        """Delete all workloads and pods, and wait until the node holds nothing."""
        self.request("DELETE", WORKLOADS)
        self.request("DELETE", f"{PODS}?gracePeriodSeconds=1")
        self.until(lambda: not self.request("GET", PODS)["items"])

    def pods_of(self, workload: str) -> list[dict[str, Any]]:
        return list(self.request("GET", f"{PODS}?labelSelector=kgwe.nvidia.io/workload%3D{workload}")["items"])

    # --- devices ----------------------------------------------------------------------------------------

    def gpu_uuids(self) -> dict[int, str]:
        status = self.request("GET", f"/apis/kgwe.nvidia.io/v1/gpunodes/{NAME}")["status"]
        return {each["index"]: each["uuid"] for each in status["gpus"]}

    def planned_uuids(self, pod: dict[str, Any]) -> set[str]:
        names = self.gpu_uuids()
        return {names[number] for number in parse_planned(pod["metadata"].get("annotations", {})).numbers}

    def printed_uuids(self, pod: dict[str, Any]) -> set[str]:
        """The GPUs that the container printed: the environment that containerd gave it."""
        path = f"{PODS}/{pod['metadata']['name']}/log"

        def read_line() -> str:
            with self.cluster.api() as api:
                lines = api.text(path).splitlines()
            return next((line for line in lines if line.startswith("GPUS=")), "")

        return set(self.until(read_line).partition("=")[2].split(","))

    def published(self) -> set[str]:
        """Names of the devices that claims can have."""
        slices = self.request("GET", "/apis/resource.k8s.io/v1/resourceslices")["items"]
        return {device["name"] for each in slices for device in each["spec"]["devices"]}

    def request_sharing(self, replicas: int | None) -> None:
        """Order shares of each GPU, or whole GPUs."""
        with self.cluster.api() as api:
            sharing = None if replicas is None else {"replicas": replicas}
            api.merge(f"/apis/kgwe.nvidia.io/v1/gpunodes/{NAME}", {"spec": {"sharing": sharing}})

    def allocatable(self, resource: str = "nvidia.com/gpu") -> int:
        try:
            return int(self.request("GET", f"/api/v1/nodes/{NAME}")["status"]["allocatable"].get(resource, 0))
        except NotFound:
            return 0

    def kill(self, program: str) -> None:
        """Kill a program of the node; the node's first process starts it again."""
        record = self.until(lambda: self.node.find_process(program))
        processes.kill(record)
