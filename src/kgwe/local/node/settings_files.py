"""The settings files of the node's programs, as text. Pure: paths and addresses are arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
import yaml

from kgwe.local.node.addresses import DNS_ADDRESS, HOST_NAME

if TYPE_CHECKING:
    from pathlib import Path

    from kgwe.local.node.addresses import Addresses

CONTAINERD_SOCKET: Final = "/run/containerd/containerd.sock"
KUBELET_ROOT: Final = "/var/lib/kubelet"
CDI_FOLDER: Final = "/run/cdi"
PAUSE_IMAGE: Final = "kgwe.local/pause:1"
BUSYBOX_IMAGE: Final = "kgwe.local/busybox:1"
DNS_DOMAIN: Final = "cluster.local"


def kubelet_configuration(folder: Path, authority: Path, addresses: Addresses, cgroup: str) -> str:
    settings: dict[str, Any] = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": addresses.node,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(authority)},
        },
        "authorization": {"mode": "Webhook"},
        "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
        "cgroupDriver": "cgroupfs",
        # A group of its own, so that everything below it can be removed.
        "cgroupRoot": f"/{cgroup}",
        "enforceNodeAllocatable": [],
        "failCgroupV1": False,
        "failSwapOn": False,
        # A sandbox without CAP_SYS_RESOURCE cannot lower the score.
        "oomScoreAdj": 0,
        # The disk and memory belong to the machine; the node must not evict because of others.
        "evictionHard": {"memory.available": "32Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "makeIPTablesUtilChains": False,
        "nodeStatusUpdateFrequency": "2s",
        "clusterDNS": [DNS_ADDRESS],
        "clusterDomain": DNS_DOMAIN,
        "resolvConf": str(folder / "resolv.conf"),
        "volumePluginDir": str(folder / "volume-plugins"),
    }
    return yaml.safe_dump(settings, sort_keys=False)


def containerd_configuration(folder: Path, cni_programs: Path, runc: Path) -> str:
    """Return the configuration of containerd 2.x."""
    text = msgspec.json.encode
    return "\n".join(
        (
            "version = 3",
            f"root = {_quote(folder / 'containerd')}",
            'state = "/run/containerd"',
            "[grpc]",
            f"  address = {_quote(CONTAINERD_SOCKET)}",
            "[plugins.'io.containerd.internal.v1.opt']",
            f"  path = {_quote(folder / 'opt')}",
            "[plugins.'io.containerd.nri.v1.nri']",
            "  disable = true",
            "[plugins.'io.containerd.cri.v1.images'.pinned_images]",
            f"  sandbox = {_quote(PAUSE_IMAGE)}",
            "[plugins.'io.containerd.cri.v1.runtime']",
            "  restrict_oom_score_adj = true",
            "  enable_cdi = true",
            f"  cdi_spec_dirs = {text([CDI_FOLDER]).decode()}",
            "[plugins.'io.containerd.cri.v1.runtime'.cni]",
            f"  bin_dirs = {text([str(cni_programs)]).decode()}",
            f"  conf_dir = {_quote(folder / 'cni')}",
            "[plugins.'io.containerd.cri.v1.runtime'.containerd]",
            '  default_runtime_name = "runc"',
            "[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]",
            '  runtime_type = "io.containerd.runc.v2"',
            "[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]",
            "  SystemdCgroup = false",
            f"  BinaryName = {_quote(runc)}",
            "",
        )
    )


def cni_configuration(addresses: Addresses) -> str:
    """Return the pod network: one routed link per pod, so that no bridge hides Service traffic from iptables."""
    settings = {
        "cniVersion": "1.0.0",
        "name": "kgwe",
        "plugins": [
            {
                "type": "ptp",
                "ipam": {
                    "type": "host-local",
                    "dataDir": "/run/cni",
                    "ranges": [[{"subnet": addresses.pods}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            },
            {"type": "portmap", "capabilities": {"portMappings": True}},
        ],
    }
    return msgspec.json.format(msgspec.json.encode(settings), indent=2).decode()


def proxy_configuration(kubeconfig: Path, addresses: Addresses, node: str) -> str:
    settings = {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "iptables",
        "clientConnection": {"kubeconfig": str(kubeconfig)},
        "hostnameOverride": node,
        "bindAddress": addresses.node,
        "clusterCIDR": addresses.pods,
        "metricsBindAddress": "127.0.0.1:10249",
        # Limits of connection tracking belong to the host; a network namespace cannot set them.
        "conntrack": {
            "maxPerCore": 0,
            "min": 0,
            "tcpEstablishedTimeout": "0s",
            "tcpCloseWaitTimeout": "0s",
        },
    }
    return yaml.safe_dump(settings, sort_keys=False)


def corefile(kubeconfig: Path, addresses: Addresses) -> str:
    return f"""{DNS_DOMAIN}:53 in-addr.arpa:53 {{
    bind {addresses.node}
    errors
    ready 127.0.0.1:8181
    kubernetes {DNS_DOMAIN} in-addr.arpa {{
        kubeconfig {kubeconfig}
        pods insecure
    }}
    cache 5
}}
"""


def hosts_file(addresses: Addresses, node: str) -> str:
    return f"127.0.0.1 localhost\n::1 localhost\n{addresses.host} {HOST_NAME}\n{addresses.node} {node}\n"


def _quote(value: object) -> str:
    return msgspec.json.encode(str(value)).decode()
