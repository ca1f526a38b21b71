"""The five components of a local cluster: their command lines and health checks.

    etcd ── kube-apiserver ─┬─ kube-controller-manager
                            ├─ kube-scheduler
                            └─ kwok (replaces the kubelets)

All components listen on loopback only, use TLS, and have their own client certificates. Flags differ from a production
cluster only where that helps a single machine with few cores; a comment gives the reason.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kgwe.local.cluster import certificates
from kgwe.local.cluster.component_config import CLIENT_BURST, CLIENT_QPS
from kgwe.local.host.ports import LOOPBACK

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from kgwe.local.cluster.certificates import Certificates
    from kgwe.local.toolchain.binaries import Binaries

ETCD = "etcd"
APISERVER = "kube-apiserver"
CONTROLLER_MANAGER = "kube-controller-manager"
SCHEDULER = "kube-scheduler"
KWOK = "kwok"
# In starting order; stopping uses the reverse order.
NAMES = (ETCD, APISERVER, CONTROLLER_MANAGER, SCHEDULER, KWOK)
PORTS = (*NAMES, "etcd-peer")

SERVICE_RANGE = "10.96.0.0/16"
_ISSUER = "https://kubernetes.default.svc"


@dataclass(frozen=True, slots=True)
class Layout:
    """The paths of one cluster's files."""

    directory: Path

    @property
    def data(self) -> Path:
        return self.directory / "data"

    @property
    def certificates(self) -> Certificates:
        return certificates.Certificates(self.directory / "pki")

    @property
    def audit_log(self) -> Path:
        return self.directory / "audit" / "audit.log"

    @property
    def admin_kubeconfig(self) -> Path:
        return self.directory / "kubeconfig"

    def kubeconfig(self, component: str) -> Path:
        return self.directory / "kubeconfigs" / f"{component}.yaml"

    def setting(self, file: str) -> Path:
        return self.directory / "settings" / file

    def log(self, component: str) -> Path:
        return self.directory / "logs" / f"{component}.log"


@dataclass(frozen=True, slots=True)
class Features:
    """Kubernetes features that are off by default."""

    # Feature gates such as GangScheduling=true, for all components of Kubernetes.
    gates: tuple[str, ...] = ()
    # API versions such as scheduling.k8s.io/v1alpha2.
    api_versions: tuple[str, ...] = ()

    def flags(self, name: str) -> dict[str, object]:
        said: dict[str, object] = {}
        if self.gates and name in (APISERVER, CONTROLLER_MANAGER, SCHEDULER):
            said["feature-gates"] = ",".join(self.gates)
        if self.api_versions and name == APISERVER:
            said["runtime-config"] = ",".join(f"{version}=true" for version in self.api_versions)
        return said


NO_FEATURES = Features()


@dataclass(frozen=True, slots=True)
class Component:
    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)


def build_component(
    name: str, layout: Layout, ports: Mapping[str, int], binaries: Binaries, features: Features
) -> Component:
    """Return the command line and environment of one component."""
    flags = _FLAGS[name](layout, ports) | features.flags(name)
    argv = (str(binaries.find_binary(name)), *(f"--{flag}={value}" for flag, value in flags.items()))
    return Component(name, argv, _build_environment(name, layout))


def health_url(name: str, ports: Mapping[str, int]) -> str:
    return f"https://{LOOPBACK}:{ports[name]}{_HEALTH[name]}"


def _build_etcd(layout: Layout, ports: Mapping[str, int]) -> dict[str, object]:
    tls = layout.certificates.pair(certificates.SERVER)
    client_url = f"https://{LOOPBACK}:{ports[ETCD]}"
    peer_url = f"https://{LOOPBACK}:{ports['etcd-peer']}"
    return {
        "name": "kgwe",
        "data-dir": layout.data / "etcd",
        "listen-client-urls": client_url,
        "advertise-client-urls": client_url,
        "cert-file": tls.certificate,
        "key-file": tls.key,
        "trusted-ca-file": layout.certificates.authority,
        "client-cert-auth": "true",
        "listen-peer-urls": peer_url,
        "initial-advertise-peer-urls": peer_url,
        "initial-cluster": f"kgwe={peer_url}",
        "peer-cert-file": tls.certificate,
        "peer-key-file": tls.key,
        "peer-trusted-ca-file": layout.certificates.authority,
        "peer-client-cert-auth": "true",
        # Simulated data need not survive a power cut; a killed process loses nothing.
        "unsafe-no-fsync": "true",
        # A member without peers elects itself after this time; a short one saves a second at each start.
        "heartbeat-interval": 50,
        "election-timeout": 250,
        "quota-backend-bytes": 4 << 30,
        "auto-compaction-mode": "periodic",
        "auto-compaction-retention": "5m",
        "log-level": "warn",
    }


def _build_apiserver(layout: Layout, ports: Mapping[str, int]) -> dict[str, object]:
    tls = layout.certificates.pair(certificates.SERVER)
    etcd_client = layout.certificates.pair(certificates.ETCD_CLIENT)
    kubelet_client = layout.certificates.pair(certificates.KUBELET_CLIENT)
    return {
        "bind-address": LOOPBACK,
        "advertise-address": LOOPBACK,
        "secure-port": ports[APISERVER],
        # The kubernetes service accepts no loopback endpoints, and no process here uses it.
        "endpoint-reconciler-type": "none",
        "external-hostname": "localhost",
        "tls-cert-file": tls.certificate,
        "tls-private-key-file": tls.key,
        "client-ca-file": layout.certificates.authority,
        # There is no front proxy. Without this flag the other components log a warning every minute.
        "requestheader-client-ca-file": layout.certificates.authority,
        "requestheader-allowed-names": "front-proxy-client",
        "requestheader-username-headers": "X-Remote-User",
        "requestheader-group-headers": "X-Remote-Group",
        "requestheader-extra-headers-prefix": "X-Remote-Extra-",
        "anonymous-auth": "false",
        "authorization-mode": "Node,RBAC",
        "etcd-servers": f"https://{LOOPBACK}:{ports[ETCD]}",
        "etcd-cafile": layout.certificates.authority,
        "etcd-certfile": etcd_client.certificate,
        "etcd-keyfile": etcd_client.key,
        "etcd-compaction-interval": "5m",
        "service-cluster-ip-range": SERVICE_RANGE,
        "service-account-issuer": _ISSUER,
        "service-account-key-file": layout.certificates.service_account_key,
        "service-account-signing-key-file": layout.certificates.service_account_key,
        "allow-privileged": "true",
        # Logs and exec of pods on a real node. Its name does not resolve here, its address has a route.
        "kubelet-client-certificate": kubelet_client.certificate,
        "kubelet-client-key": kubelet_client.key,
        "kubelet-preferred-address-types": "InternalIP",
        "admission-control-config-file": layout.setting("admission.yaml"),
        "audit-policy-file": layout.setting("audit-policy.yaml"),
        "audit-log-path": layout.audit_log,
        "audit-log-format": "json",
        # Entries are written before the response is sent, so a killed process loses none and none is late.
        "audit-log-mode": "blocking",
        "audit-log-maxsize": 1024,
        "audit-log-maxbackup": 1,
        "profiling": "false",
        # There is only one user. Fair queuing costs CPU and returns 429 where waiting is better.
        "enable-priority-and-fairness": "false",
        "max-requests-inflight": 2000,
        "max-mutating-requests-inflight": 1000,
    }


def _controller_manager(layout: Layout, ports: Mapping[str, int]) -> dict[str, object]:
    return {
        **_secure_serving(CONTROLLER_MANAGER, layout, ports),
        "kubeconfig": layout.kubeconfig(CONTROLLER_MANAGER),
        # Each controller uses its own service account, with only its own permissions.
        "use-service-account-credentials": "true",
        "service-account-private-key-file": layout.certificates.service_account_key,
        "root-ca-file": layout.certificates.authority,
        "leader-elect": "false",
        "profiling": "false",
        "kube-api-qps": CLIENT_QPS,
        "kube-api-burst": CLIENT_BURST,
        "concurrent-job-syncs": 20,
        # Simulated nodes report every 10 to 20 minutes (stages/node-heartbeat.yaml).
        "node-monitor-grace-period": "1h",
        "node-monitor-period": "2s",
    }


def _build_scheduler(layout: Layout, ports: Mapping[str, int]) -> dict[str, object]:
    return {
        **_secure_serving(SCHEDULER, layout, ports),
        "config": layout.setting("scheduler.yaml"),
    }


def _build_kwok(layout: Layout, ports: Mapping[str, int]) -> dict[str, object]:
    tls = layout.certificates.pair(certificates.SERVER)
    return {
        "config": layout.setting("kwok.yaml"),
        "kubeconfig": layout.kubeconfig(KWOK),
        "server-address": f"{LOOPBACK}:{ports[KWOK]}",
        "tls-cert-file": tls.certificate,
        "tls-private-key-file": tls.key,
        "v": "WARN",  # at INFO it logs each patch
    }


def _secure_serving(name: str, layout: Layout, ports: Mapping[str, int]) -> dict[str, object]:
    tls = layout.certificates.pair(certificates.SERVER)
    return {
        "bind-address": LOOPBACK,
        "secure-port": ports[name],
        "tls-cert-file": tls.certificate,
        "tls-private-key-file": tls.key,
        "client-ca-file": layout.certificates.authority,
        "authentication-kubeconfig": layout.kubeconfig(name),
        "authorization-kubeconfig": layout.kubeconfig(name),
    }


_FLAGS = {
    ETCD: _build_etcd,
    APISERVER: _build_apiserver,
    CONTROLLER_MANAGER: _controller_manager,
    SCHEDULER: _build_scheduler,
    KWOK: _build_kwok,
}

_HEALTH = {
    ETCD: "/health",
    APISERVER: "/readyz",
    CONTROLLER_MANAGER: "/healthz",
    SCHEDULER: "/readyz",
    KWOK: "/healthz",
}


def _build_environment(name: str, layout: Layout) -> dict[str, str]:
    if name == KWOK:
        # Otherwise kwok reads the user's own configuration below ~/.kwok.
        return {"KWOK_WORKDIR": str(layout.directory / "kwok")}
    if name == APISERVER:
        # Garbage collection takes a sixth of its CPU; a two-core machine has spare memory, but no spare CPU.
        return {"GOGC": "300"}
    return {}
