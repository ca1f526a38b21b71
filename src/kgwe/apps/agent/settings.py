"""Settings of the agent: one file, one tree; unknown keys are refused with their path.

Order of precedence: flag, environment (KGWE_AGENT_<KEY>), file, default.
"""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from kgwe import errors
from kgwe.agentapi.messages import AGENT_NAME
from kgwe.apps import configuration
from kgwe.model.devices import shares

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

ENV_PREFIX = "KGWE_AGENT_"
# The DaemonSet sets it.
_NODE_NAME_ENV = "NODE_NAME"


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    # Name of the Node. Empty: $NODE_NAME, then the host name.
    node_name: str = ""
    # Run without an API server: hardware, gRPC and metrics only.
    standalone: bool = False
    # Path of the NVML library. Empty: $KGWE_NVML_LIBRARY, then the system's library.
    nvml_library: str = ""
    # Root of the host's /sys, /proc and kubelet files; inside a container not /.
    host_root: str = "/"
    # A file with the output of `nvidia-smi topo -m`, or an NCCL topology (XML). It adds NUMA nodes, PCIe positions
    # and NVLinks that the driver does not report. Empty: none.
    topology_file: str = ""

    # gRPC address; port 0 picks a free port, empty disables gRPC.
    grpc_bind_address: str = ":50052"
    # PEM files: the agent's certificate and key, and the authority of client certificates. Reloaded when they change.
    tls_cert_file: str = ""
    tls_key_file: str = ""
    tls_ca_file: str = ""
    # Names (CN or DNS) of clients that may order MIG and MPS changes; empty: none. The common name of all agents is
    # refused.
    tls_writers: tuple[str, ...] = ()
    # Serve other machines without TLS, and accept their orders. For test beds only.
    grpc_insecure: bool = False
    # Maximum number of concurrent telemetry watchers.
    grpc_watchers: int = 32

    # Metrics address; empty disables it. dcgm-exporter uses the same port on the host network.
    exporter_bind_address: str = ":9400"
    # URL of dcgm-exporter for values that NVML does not have, such as http://127.0.0.1:9401/metrics; empty: none.
    dcgm_url: str = ""

    # Seconds between two readings of the GPUs, and between two discoveries of GPUs and MIG layouts.
    telemetry_interval_seconds: float = 5.0
    discovery_interval_seconds: float = 30.0
    # Seconds between two heartbeats of an unchanged GPUNode. The whole fleet writes at this rate.
    heartbeat_interval_seconds: float = 300.0
    # Seconds until a missing driver is tried again: first and maximum.
    driver_retry_seconds: float = 15.0
    driver_retry_max_seconds: float = 300.0

    # Features that can be disabled.
    enable_health: bool = True
    enable_mig: bool = True
    enable_mps: bool = False
    enable_device_plugin: bool = False
    # Publish the GPUs for ResourceClaims and prepare them. Inactive while NVIDIA's DRA driver is on the node.
    enable_dra: bool = False
    enable_pod_resources: bool = True
    enable_checkpoints: bool = True

    # Cloud whose metadata service announces interruptions. auto: by the providerID of the Node.
    cloud: Literal["auto", "aws", "gcp", "azure", "none"] = "auto"
    # Another address of the metadata service; empty: the cloud's own.
    metadata_url: str = ""
    # Seconds between two readings of it.
    notice_interval_seconds: float = 5.0

    # Directory of pipes and logs of MPS daemons.
    mps_directory: str = "/run/kgwe/mps"
    # Set whole GPUs that MPS shares to compute mode exclusive-process, so that all processes use the daemon.
    mps_exclusive: bool = False
    # Directory of the kubelet's sockets, below the host's root.
    kubelet_folder: str = "/var/lib/kubelet"
    # Vendor part of the resources of KGWE's device plugin; one other than nvidia.com can run next to NVIDIA's plugin.
    device_plugin_prefix: str = "nvidia.com"
    # Advertise each unpartitioned GPU as this many shares (gpu.shared) instead of whole; 0: not shared.
    device_plugin_replicas: int = 0
    # How containers get access to devices of both kinds (device plugin and DRA): any of env, cdi, nodes.
    device_plugin_means: tuple[Literal["env", "cdi", "nodes"], ...] = ("env",)
    # Directory, below the host's root, where the container runtime looks for CDI descriptions.
    cdi_folder: str = "/var/run/cdi"
    # Kind of the CDI names in the node's CDI description.
    cdi_kind: str = "nvidia.com/gpu"

    # Taint nodes that have unhealthy GPUs.
    taint_unhealthy: bool = False
    log_level: str = "info"

    @property
    def node(self) -> str:
        return self.node_name or os.environ.get(_NODE_NAME_ENV, "") or socket.gethostname()


def load(path: Path | None = None, overrides: Mapping[str, Any] | None = None) -> Settings:
    """Read the settings; raise Permanent with the path of the invalid key."""
    loaded = configuration.load(Settings, ENV_PREFIX, path, overrides)
    _check(loaded)
    return loaded


def _check(settings: Settings) -> None:
    for field in msgspec.structs.fields(Settings):
        if field.name.endswith("_seconds") and getattr(settings, field.name) <= 0:
            raise errors.Permanent(f"settings: {field.encode_name} must be greater than 0")
    replicas = settings.device_plugin_replicas
    if replicas and not shares.FEWEST <= replicas <= shares.MOST:
        raise errors.Permanent(
            f"settings: devicePluginReplicas must be 0 or {shares.FEWEST} to {shares.MOST}, not {replicas}"
        )
    if AGENT_NAME in settings.tls_writers:
        raise errors.Permanent(
            f"settings: tlsWriters names {AGENT_NAME}, which is in the certificate of every agent; any node could then"
            " order changes on any other"
        )
    files = (settings.tls_cert_file, settings.tls_key_file, settings.tls_ca_file)
    if any(files) and not all(files):
        raise errors.Permanent("settings: tlsCertFile, tlsKeyFile and tlsCaFile must be set together")
