"""Installs KGWE on a local cluster: CRDs, RBAC rules, the scheduler and the MIG controller."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

from kgwe import errors
from kgwe.kube.client import manifests
from kgwe.kube.crd import definitions
from kgwe.local.cluster import certificates, extender
from kgwe.local.cluster.cluster import service_account_kubeconfig
from kgwe.local.host import assets, ports

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from kgwe.kube.client.client import KubeClient
    from kgwe.local.cluster.cluster import LocalCluster

SCHEDULER = "kgwe-scheduler"
MIG = "kgwe-mig"
OPTIMIZER = "kgwe-optimizer"
AUTOSCALER = "kgwe-autoscaler"
COST_ENGINE = "kgwe-cost-engine"
COST_ACCOUNT = "kgwe-cost"
CONSOLE = "kgwe-console"
NAMESPACE = "kgwe-system"
_OPTIMIZER_PORT = 50051
_CONSOLE_PORT = 8443
# The link to sign in stays on the screen for as long as the demo runs.
_SIGN_IN_S = 86_400


async def install(client: KubeClient) -> None:
    """Install CRDs, RBAC rules, and the admission policies that the API server supports."""
    await definitions.install(client)
    for rights in (
        "deploy/rbac.yaml",
        "deploy/mig.yaml",
        "deploy/optimizer.yaml",
        "deploy/cost-engine.yaml",
        "deploy/autoscaler.yaml",
        "deploy/console.yaml",
        "deploy/roles.yaml",
        "deploy/priority.yaml",
    ):
        await manifests.apply_manifest(client, manifests.load_manifests(assets.find_asset(rights)))
    for policies in ("deploy/decisions.yaml", "deploy/rightsizing.yaml", "deploy/admission.yaml"):
        with contextlib.suppress(errors.NotFound):
            await manifests.apply_manifest(client, manifests.load_manifests(assets.find_asset(policies)))


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
    cluster.start_sidecar(SCHEDULER, command, env={**extender.build_environment(cluster), **(env or {})})
    cluster.configure_scheduler(extender.build_configuration(cluster, port["extender"]))
    return port["metrics"]


def start_mig(cluster: LocalCluster) -> int:
    """Start the MIG controller with the permissions of deploy/mig.yaml; return its metrics port."""
    kubeconfig = service_account_kubeconfig(cluster, NAMESPACE, MIG, cluster.directory / f"{MIG}.kubeconfig")
    port = ports.allocate(("metrics",))["metrics"]
    command = [sys.executable, "-m", "kgwe.cli", "mig", "--kubeconfig", str(kubeconfig)]
    cluster.start_sidecar(MIG, [*command, "--metrics-bind-address", f"127.0.0.1:{port}"])
    return port


def start_autoscaler(cluster: LocalCluster) -> int:
    """Start the autoscaler with the permissions of deploy/autoscaler.yaml; return its metrics port."""
    kubeconfig = service_account_kubeconfig(
        cluster, NAMESPACE, AUTOSCALER, cluster.directory / f"{AUTOSCALER}.kubeconfig"
    )
    port = ports.allocate(("metrics",))["metrics"]
    command = [sys.executable, "-m", "kgwe.cli", "autoscaler", "--kubeconfig", str(kubeconfig)]
    command += ["--reconcile-seconds", "2", "--metrics-bind-address", f"127.0.0.1:{port}"]
    cluster.start_sidecar(AUTOSCALER, command)
    return port


def start_optimizer(cluster: LocalCluster, exporter: str, config: Path | None = None) -> str:
    """Start the optimizer with the permissions of deploy/optimizer.yaml; return the address of its gRPC service.

    `exporter`: URL of the GPU metrics of the simulated fleet. `config`: its settings file.
    """
    kubeconfig = service_account_kubeconfig(
        cluster, NAMESPACE, OPTIMIZER, cluster.directory / f"{OPTIMIZER}.kubeconfig"
    )
    port = ports.allocate(("grpc", "metrics"), preferred={"grpc": _OPTIMIZER_PORT})
    address = f"{ports.LOOPBACK}:{port['grpc']}"
    command = [sys.executable, "-m", "kgwe.cli", "optimizer", "--kubeconfig", str(kubeconfig)]
    command += ["--store", str(cluster.directory / "optimizer.db"), "--exporters-from", f"{exporter}/targets"]
    command += ["--grpc-bind-address", address, "--metrics-bind-address", f"{ports.LOOPBACK}:{port['metrics']}"]
    if config is not None:
        command += ["--config", str(config)]
    cluster.start_sidecar(OPTIMIZER, command, env=_QUICK)
    return address


def start_cost_engine(cluster: LocalCluster) -> str:
    """Start the cost engine with the permissions of deploy/cost-engine.yaml; return the URL of its metrics."""
    kubeconfig = service_account_kubeconfig(
        cluster, NAMESPACE, COST_ACCOUNT, cluster.directory / f"{COST_ENGINE}.kubeconfig"
    )
    address = f"{ports.LOOPBACK}:{ports.allocate(('metrics',))['metrics']}"
    command = [sys.executable, "-m", "kgwe.cli", "cost-engine", "--kubeconfig", str(kubeconfig)]
    command += ["--store", str(cluster.directory / "cost.db"), "--metrics-bind-address", address]
    cluster.start_sidecar(COST_ENGINE, command, env={"KGWE_COST_TRACKING_SECONDS": "5"})
    return f"http://{address}"


def start_console(cluster: LocalCluster, optimizer: str = "", records: Path | None = None) -> str:
    """Start the console with the permissions of deploy/console.yaml; return its URL.

    Its certificate is of the cluster's authority, so that `kgwe console open` trusts it by the kubeconfig.
    """
    kubeconfig = service_account_kubeconfig(cluster, NAMESPACE, CONSOLE, cluster.directory / f"{CONSOLE}.kubeconfig")
    port = ports.allocate(("https", "metrics"), preferred={"https": _CONSOLE_PORT})
    address = f"{ports.LOOPBACK}:{port['https']}"
    pair = cluster.layout.certificates.pair(certificates.CONSOLE)
    command = [sys.executable, "-m", "kgwe.cli", "console", "--kubeconfig", str(kubeconfig)]
    command += ["--bind-address", address, "--metrics-bind-address", f"{ports.LOOPBACK}:{port['metrics']}"]
    command += ["--tls-cert-file", str(pair.certificate), "--tls-key-file", str(pair.key)]
    command += ["--cost-store", str(cluster.directory / "cost.db")]
    command += ["--optimizer-address", optimizer] if optimizer else []
    command += ["--record-directory", str(records)] if records is not None else []
    cluster.start_sidecar(CONSOLE, command, env={"KGWE_CONSOLE_SIGN_IN_SECONDS": str(_SIGN_IN_S)})
    return f"https://{address}"


# The demo judges the last minute instead of the last ten, so that findings appear while one watches.
_QUICK = {
    "KGWE_OPTIMIZER_SCRAPE_SECONDS": "5",
    "KGWE_OPTIMIZER_WASTE_WINDOW_SECONDS": "60",
    "KGWE_OPTIMIZER_WASTE_STEP_SECONDS": "10",
    "KGWE_OPTIMIZER_WASTE_UNDERUSED_SECONDS": "30",
    "KGWE_OPTIMIZER_WASTE_INTERVAL_SECONDS": "10",
    "KGWE_OPTIMIZER_VERIFY_AFTER_SECONDS": "60",
}
