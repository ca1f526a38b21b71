"""Installs KGWE on a local cluster: CRDs, RBAC rules, the scheduler and the MIG controller."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

from kgwe import errors
from kgwe.kube.client import manifests
from kgwe.kube.crd import definitions
from kgwe.local.cluster import extender
from kgwe.local.cluster.cluster import service_account_kubeconfig
from kgwe.local.host import assets, ports

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kgwe.kube.client.client import KubeClient
    from kgwe.local.cluster.cluster import LocalCluster

SCHEDULER = "kgwe-scheduler"
MIG = "kgwe-mig"
NAMESPACE = "kgwe-system"


async def install(client: KubeClient) -> None:
    """Install CRDs, RBAC rules, and the admission policies that the API server supports."""
    await definitions.install(client)
    for rights in (
        "deploy/rbac.yaml",
        "deploy/mig.yaml",
        "deploy/roles.yaml",
        "deploy/warnings.yaml",
        "deploy/priority.yaml",
    ):
        await manifests.apply_manifest(client, manifests.load_manifests(assets.path(rights)))
    for policies in ("deploy/decisions.yaml", "deploy/admission.yaml"):
        with contextlib.suppress(errors.NotFound):
            await manifests.apply_manifest(client, manifests.load_manifests(assets.path(policies)))


def start_scheduler(cluster: LocalCluster, *, env: Mapping[str, str] | None = None) -> int:
    """Start the scheduler with the permissions of deploy/rbac.yaml, called by kube-scheduler; return its metrics
    port.
    """
    kubeconfig = service_account_kubeconfig(
        cluster, NAMESPACE, SCHEDULER, cluster.directory / f"{SCHEDULER}.kubeconfig"
    )
    port = ports.allocate(("metrics", "extender"))
    address = f"127.0.0.1:{port['extender']}"
    command = [sys.executable, "-m", "kgwe.cli", "scheduler", "--kubeconfig", str(kubeconfig)]
    command += ["--extender-bind-address", address, "--metrics-bind-address", f"127.0.0.1:{port['metrics']}"]
    cluster.start_sidecar(SCHEDULER, command, env={**extender.environment(cluster), **(env or {})})
    cluster.configure_scheduler(extender.configuration(cluster, port["extender"]))
    return port["metrics"]


def start_mig(cluster: LocalCluster) -> int:
    """Start the MIG controller with the permissions of deploy/mig.yaml; return its metrics port."""
    kubeconfig = service_account_kubeconfig(cluster, NAMESPACE, MIG, cluster.directory / f"{MIG}.kubeconfig")
    port = ports.allocate(("metrics",))["metrics"]
    command = [sys.executable, "-m", "kgwe.cli", "mig", "--kubeconfig", str(kubeconfig)]
    cluster.start_sidecar(MIG, [*command, "--metrics-bind-address", f"127.0.0.1:{port}"])
    return port
