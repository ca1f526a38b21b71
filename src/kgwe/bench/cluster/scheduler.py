"""The scheduler under test: a separate process with its own service account."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from kgwe import errors
from kgwe.kube.client import manifests
from kgwe.kube.crd import definitions
from kgwe.local.cluster import cluster_record, extender
from kgwe.local.cluster.cluster import LocalCluster, service_account_kubeconfig
from kgwe.local.host import assets, paths, ports

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kgwe.kube.client.client import KubeClient
    from kgwe.local.host.processes import ProcessRecord

NAME = "kgwe-scheduler"
_NAMESPACE = "kgwe-system"
USER = f"system:serviceaccount:{_NAMESPACE}:{NAME}"
# Byte code is compiled once, as in an installation, and not at each start.
_COMPILED = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(paths.cache_root() / "bytecode")}


def free_port(cluster: str) -> int:
    """Reserve a port for the cluster's extender. kube-scheduler's configuration needs it before KGWE listens."""
    return ports.allocate(["extender"], avoid=cluster_record.ports_of_others(cluster, None))["extender"]


def build_configuration(cluster: str, port: int) -> str:
    """Return a kube-scheduler configuration that calls KGWE on the port. The cluster need not run yet."""
    return extender.build_configuration(LocalCluster(cluster), port)


async def install(client: KubeClient, *, policies: bool = False) -> None:
    """Install the CRDs and the RBAC rules, and the admission `policies`, which only pods of Jobs need here."""
    await definitions.install(client)
    for name in ("deploy/rbac.yaml", *(("deploy/admission.yaml",) if policies else ())):
        await manifests.apply_manifest(client, manifests.load_manifests(assets.find_asset(name)))


def start(
    cluster: LocalCluster,
    port: int,
    *,
    profile: Path | None = None,
    name: str = NAME,
    probe_port: int = 0,
    tls: bool = True,
    env: Mapping[str, str] | None = None,
) -> ProcessRecord:
    """Start KGWE as a process of the cluster; it stops with the cluster.

    The leader serves the extender on `port`. With `tls`, kube-scheduler must present a client certificate there. `env`:
    further settings.
    """
    kubeconfig = service_account_kubeconfig(cluster, _NAMESPACE, NAME, cluster.directory / f"{NAME}.kubeconfig")
    addresses = {"--metrics-bind-address": probe_port, "--extender-bind-address": port}
    flags = [word for flag, each in addresses.items() for word in (flag, f"{ports.LOOPBACK}:{each}")]
    profiler = () if profile is None else ("-m", "cProfile", "-o", str(profile.resolve()))
    argv = [sys.executable, *profiler, "-m", "kgwe.cli", "scheduler", *flags]
    certificates = extender.build_environment(cluster) if tls else {}
    settings = {"KUBECONFIG": str(kubeconfig), **certificates, **_COMPILED, **(env or {})}
    return cluster.start_sidecar(name, argv, env=settings)


async def is_listening(port: int) -> bool:
    """Return whether KGWE leads: only the leader listens."""
    try:
        _, writer = await asyncio.open_connection(ports.LOOPBACK, port)
    except OSError:
        return False
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return True


def memory_mb(pid: int, field: str) -> float:
    """Return `VmRSS` (current) or `VmHWM` (peak) of a process, in MB."""
    try:
        text = Path("/proc", str(pid), "status").read_text()
    except OSError as exc:
        raise errors.NotFound(f"process {pid} does not exist") from exc
    for line in text.splitlines():
        if line.startswith(f"{field}:"):
            return round(int(line.split()[1]) * 1024 / 1e6, 1)
    raise errors.NotFound(f"process {pid} is exiting")
