"""Real agent processes for simulated nodes, on the C library that simulates the hardware.

    machine = AgentMachine(node, folder)          # a node of a fleet model
    machine.start(kubeconfig)                     # its agent, with the permissions of deploy/agent.yaml
    machine.hardware.set_link(0, 3, up=0)         # change the hardware

The machine is a directory and outlives its agent, as hardware does.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Final, Self

from kgwe.kube.client import manifests
from kgwe.kube.crd import definitions
from kgwe.local.cluster.cluster import service_account_kubeconfig
from kgwe.local.host import assets, paths, ports
from kgwe.local.nvml.hardware import Hardware

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from kgwe.kube.client.client import KubeClient
    from kgwe.local.cluster.cluster import LocalCluster
    from kgwe.model.simfleet.inventory import FleetNode

NAME: Final = "kgwe-agent"
NAMESPACE: Final = "kgwe-node"
_STOP_S: Final = 60.0
# Byte code is compiled once, as in an installation, and not at each start.
COMPILED: Final = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(paths.cache_root() / "bytecode")}


async def install(client: KubeClient) -> None:
    """Install the CRDs and RBAC rules of agents, without the DaemonSet: here agents are local processes."""
    await definitions.install(client)
    documents = manifests.load_manifests(assets.find_asset("deploy/agent.yaml"))
    await manifests.apply_manifest(client, [each for each in documents if each["kind"] != "DaemonSet"])


def write_kubeconfig(cluster: LocalCluster) -> Path:
    """Write a kubeconfig with the permissions of an agent."""
    return service_account_kubeconfig(cluster, NAMESPACE, NAME, cluster.directory / f"{NAME}.kubeconfig")


class AgentMachine:
    """One simulated machine and, while it runs, its agent."""

    def __init__(self, node: FleetNode, folder: Path) -> None:
        self.node = node
        self.hardware = Hardware.create(folder, node)
        self.log = folder / "agent.log"
        free = ports.allocate(("grpc", "metrics"))
        self.address = f"{ports.LOOPBACK}:{free['grpc']}"
        self.metrics_address = f"{ports.LOOPBACK}:{free['metrics']}"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.hardware.close()

    def environment(self, kubeconfig: Path | None, settings: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return the environment of this machine's agent; without a kubeconfig the agent runs standalone."""
        given = {
            "node_name": self.node.name,
            "standalone": "false" if kubeconfig else "true",
            "grpc_bind_address": self.address,
            "exporter_bind_address": self.metrics_address,
            # There is no kubelet with sockets here.
            "enable_pod_resources": "false",
            **(settings or {}),
        }
        env = {f"KGWE_AGENT_{key.upper()}": value for key, value in given.items()}
        if kubeconfig is not None:
            env["KUBECONFIG"] = str(kubeconfig)
        return {**COMPILED, **self.hardware.environment, **env}

    def start(self, kubeconfig: Path | None = None, **settings: str) -> subprocess.Popen[bytes]:
        """Start the agent as a separate process; `settings` has the names of `apps.agent.settings`."""
        env = {**os.environ, **self.environment(kubeconfig, settings)}
        with self.log.open("ab") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "kgwe.apps.agent"], env=env, stdout=out, stderr=out, stdin=subprocess.DEVNULL
            )
        return self._process

    @property
    def pid(self) -> int:
        return self._process.pid if self._process else 0

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def stop(self) -> int:
        """Stop the agent with SIGTERM and return its exit code."""
        if self._process is None:
            return 0
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(_STOP_S)

    def kill(self) -> None:
        """Kill the agent with SIGKILL, as a crash would."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            self._process.wait()
            self._process = None
