"""Settings of the agent: one file, one tree, unknown keys refused with their path.

Order of precedence: flag, environment (KGWE_AGENT_<KEY>), file, default.
"""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from kgwe import errors
from kgwe.agentapi.tls import AGENT_NAME
from kgwe.apps import configuration
from kgwe.model.devices import shares

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

ENV_PREFIX = "KGWE_AGENT_"
# The DaemonSet fills it in; so do other agents'.
_NODE_NAME_ENV = "NODE_NAME"


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    # The Node this agent speaks for; empty: $NODE_NAME, else the host's name.
    node_name: str = ""
    # Without an API server: hardware, gRPC and metrics only.
    standalone: bool = False
    # The driver's library; empty: $KGWE_NVML_LIBRARY, else the one the system finds.
    nvml_library: str = ""
    # Where the machine's /sys, /proc and the kubelet's files are seen; other than / inside a container.
    host_root: str = "/"
    # A file with the output of `nvidia-smi topo -m`, or an NCCL topology (XML): it fills in NUMA nodes, PCIe places and
    # NVLinks where the driver does not tell them. Empty: none.
    topology_file: str = ""

    # Where gRPC is served; port 0 takes a free one, empty: not at all.
    grpc_bind_address: str = ":50052"
    # PEM files: the agent's own, and the authority whose certificates callers must show. Read again when they change.
    tls_cert_file: str = ""
    tls_key_file: str = ""
    tls_ca_file: str = ""
    # Names (CN or DNS) of callers that may cut GPUs and start daemons; empty: none. The name that all
    # agents carry is refused.
    tls_writers: tuple[str, ...] = ()
    # Serve without TLS to other machines, and take orders without it. Never outside a test bed.
    grpc_insecure: bool = False
    # Callers that may watch telemetry at the same time.
    grpc_watchers: int = 32

    # Where metrics are served; empty: not at all. dcgm-exporter has the same port on the same host network.
    exporter_bind_address: str = ":9400"
    # Where dcgm-exporter is asked for what NVML does not tell, such as http://127.0.0.1:9401/metrics; empty: nowhere.
    dcgm_url: str = ""

    # Seconds between two readings of the instruments, and between two looks at what is built in and how it is cut.
    telemetry_interval_seconds: float = 5.0
    discovery_interval_seconds: float = 30.0
    # Seconds between two signs of life in the GPUNode while nothing changes. A fleet writes this often all day long.
    heartbeat_interval_seconds: float = 300.0
    # Seconds until a driver that is not there is tried again: at first, and at most.
    driver_retry_seconds: float = 15.0
    driver_retry_max_seconds: float = 300.0

    # Parts that can be left out.
    enable_health: bool = True
    enable_mig: bool = True
    enable_mps: bool = False
    enable_device_plugin: bool = False
    enable_pod_resources: bool = True

    # Where pipes and logs of MPS daemons are.
    mps_directory: str = "/run/kgwe/mps"
    # Put whole cards that are shared by MPS into compute mode exclusive-process: no work gets past the daemon.
    mps_exclusive: bool = False
    # Where the kubelet keeps its sockets, below the host's root.
    kubelet_folder: str = "/var/lib/kubelet"
    # Vendor part of the resources our device plugin offers; another than nvidia.com runs beside NVIDIA's plugin.
    device_plugin_prefix: str = "nvidia.com"
    # Offer each card that is not cut as so many pieces (gpu.shared) for as many pods, and not whole; 0: not shared.
    device_plugin_replicas: int = 0
    # How containers are told of their devices: any of env, cdi, nodes.
    device_plugin_means: tuple[Literal["env", "cdi", "nodes"], ...] = ("env",)
    # Kind of the CDI names; as the node's CDI description calls them.
    cdi_kind: str = "nvidia.com/gpu"

    # Take unhealthy cards' nodes out of service by a taint.
    taint_unhealthy: bool = False
    log_level: str = "info"

    @property
    def node(self) -> str:
        return self.node_name or os.environ.get(_NODE_NAME_ENV, "") or socket.gethostname()


def load(path: Path | None = None, overrides: Mapping[str, Any] | None = None) -> Settings:
    """Read settings; Permanent with the path of the bad key when they do not make sense."""
    loaded = configuration.load(Settings, ENV_PREFIX, path, overrides)
    _check(loaded)
    return loaded


def _check(settings: Settings) -> None:
    for field in msgspec.structs.fields(Settings):
        if field.name.endswith("_seconds") and getattr(settings, field.name) <= 0:
            raise errors.Permanent(f"settings: {field.encode_name} must be more than 0")
    replicas = settings.device_plugin_replicas
    if replicas and not shares.FEWEST <= replicas <= shares.MOST:
        raise errors.Permanent(
            f"settings: devicePluginReplicas must be 0 or {shares.FEWEST} to {shares.MOST}, not {replicas}"
        )
    if AGENT_NAME in settings.tls_writers:
        raise errors.Permanent(
            f"settings: tlsWriters names {AGENT_NAME}, which is in the certificate of every agent: any node could then"
            " order changes on any other"
        )
    files = (settings.tls_cert_file, settings.tls_key_file, settings.tls_ca_file)
    if any(files) and not all(files):
        raise errors.Permanent(
            "settings: tlsCertFile, tlsKeyFile and tlsCaFile go together: both sides show certificates"
        )
