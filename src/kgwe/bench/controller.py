"""The controller under test: a process of its own, with the rights of its own service account and no more."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from kgwe import errors
from kgwe.kube import crds, manifests
from kgwe.local import assets
from kgwe.local.cluster import service_account_kubeconfig

if TYPE_CHECKING:
    from kgwe.kube.client import KubeClient
    from kgwe.local.cluster import LocalCluster
    from kgwe.local.processes import ProcessRecord

NAME = "kgwe-scheduler"
_NAMESPACE = "kgwe-system"


async def install(client: KubeClient) -> None:
    """The kinds and the rights."""
    await crds.install(client)
    await manifests.apply(client, manifests.load(assets.path("deploy/rbac.yaml")))


def start(cluster: LocalCluster, *, seed: int, profile: Path | None) -> ProcessRecord:
    """Start it beside the cluster, whose end will be its own."""
    kubeconfig = service_account_kubeconfig(cluster, _NAMESPACE, NAME, cluster.directory / "controller.kubeconfig")
    command = ["controller", "--metrics-bind-address", "127.0.0.1:0"]
    profiler = () if profile is None else ("-m", "cProfile", "-o", str(profile.resolve()))
    argv = [sys.executable, *profiler, "-m", "kgwe.cli", *command]
    env = {"KUBECONFIG": str(kubeconfig), "KGWE_SCHEDULER_RANDOM_SEED": str(seed)}
    return cluster.start_sidecar(NAME, argv, env=env)


def memory_mb(record: ProcessRecord, field: str) -> float:
    """`VmRSS` (now) or `VmHWM` (the most so far) of the process."""
    for line in Path("/proc", str(record.pid), "status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return round(int(line.split()[1]) * 1024 / 1e6, 1)
    raise errors.NotFound(f"the {record.name} process is gone; its log is {record.log}")
