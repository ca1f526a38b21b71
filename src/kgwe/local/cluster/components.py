"""The five programs of a local cluster: how each is started and how it says that it is ready.

    etcd ── kube-apiserver ─┬─ kube-controller-manager
                            ├─ kube-scheduler
                            └─ kwok (stands in for the kubelets)

Everything listens on loopback only, speaks TLS, and authenticates with a certificate of its own. Flags differ from a
production cluster only where a single machine with few cores gains from it; each such flag says why.
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
# In starting order; stopping goes backwards.
NAMES = (ETCD, APISERVER, CONTROLLER_MANAGER, SCHEDULER, KWOK)
PORTS = (*NAMES, "etcd-peer")

SERVICE_RANGE = "10.96.0.0/16"
_ISSUER = "https://kubernetes.default.svc"


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the files of one cluster are."""

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
    """What Kubernetes leaves off unless told otherwise."""

    # Such as GangScheduling=true; of all components of Kubernetes.
    gates: tuple[str, ...] = ()
    # Such as scheduling.k8s.io/v1alpha2.
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


def component(name: str, layout: Layout, ports: Mapping[str, int], binaries: Binaries, features: Features) -> Component:
    """Everything needed to start one component."""
    flags = _FLAGS[name](layout, ports) | features.flags(name)
    argv = (str(binaries.path(name)), *(f"--{flag}={value}" for flag, value in flags.items()))
    return Component(name, argv, _environment(name, layout))


def health_url(name: str, ports: Mapping[str, int]) -> str:
    return f"https://{LOOPBACK}:{ports[name]}{_HEALTH[name]}"


def _etcd(layout: Layout, ports: Mapping[str, int]) -> dict[str, object]:
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
        # The data of a simulation need not survive a power cut; a killed process loses nothing.
        "unsafe-no-fsync": "true",
        # A member without peers elects itself after this long: a second saved at every start.
        "heartbeat-interval": 50,
        "election-timeout": 250,
        "quota-backend-bytes": 4 << 30,
        "auto-compaction-mode": "periodic",
        "auto-compaction-retention": "5m",
        "log-level": "warn",
    }


def _apiserver(layout: Layout, ports: Mapping[str, int]) -> dict[str, object]:
    tls = layout.certificates.pair(certificates.SERVER)
    etcd_client = layout.certificates.pair(certificates.ETCD_CLIENT)
    return {
        "bind-address": LOOPBACK,
        "advertise-address": LOOPBACK,
        "secure-port": ports[APISERVER],
        # Loopback addresses are refused as endpoints of the kubernetes service, which nothing here uses.
        "endpoint-reconciler-type": "none",
        "external-hostname": "localhost",
        "tls-cert-file": tls.certificate,
        "tls-private-key-file": tls.key,
        "client-ca-file": layout.certificates.authority,
        # There is no front proxy here; without this the other components complain every minute that it is unset.
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
        "audit-policy-file": layout.setting("audit-policy.yaml"),
        "audit-log-path": layout.audit_log,
        "audit-log-format": "json",
        # Written before the answer is sent: nothing is lost when the process is killed, nothing arrives late.
        "audit-log-mode": "blocking",
        "audit-log-maxsize": 1024,
        "audit-log-maxbackup": 1,
        "profiling": "false",
        # One machine, no strangers: fair queuing costs CPU and answers 429 where waiting would do.
        "enable-priority-and-fairness": "false",
        "max-requests-inflight": 2000,
        "max-mutating-requests-inflight": 1000,
    }


def _controller_manager(layout: Layout, ports: Mapping[str, int]) -> dict[str, object]:
    return {
        **_secure_serving(CONTROLLER_MANAGER, layout, ports),
        "kubeconfig": layout.kubeconfig(CONTROLLER_MANAGER),
        # Each controller acts as its own service account, with only its own permissions.
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


def _scheduler(layout: Layout, ports: Mapping[str, int]) -> dict[str, object]:
    return {
        **_secure_serving(SCHEDULER, layout, ports),
        "config": layout.setting("scheduler.yaml"),
    }


def _kwok(layout: Layout, ports: Mapping[str, int]) -> dict[str, object]:
    tls = layout.certificates.pair(certificates.SERVER)
    return {
        "config": layout.setting("kwok.yaml"),
        "kubeconfig": layout.kubeconfig(KWOK),
        "server-address": f"{LOOPBACK}:{ports[KWOK]}",
        "tls-cert-file": tls.certificate,
        "tls-private-key-file": tls.key,
        "v": "WARN",  # at INFO it writes a line for every patch
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
    ETCD: _etcd,
    APISERVER: _apiserver,
    CONTROLLER_MANAGER: _controller_manager,
    SCHEDULER: _scheduler,
    KWOK: _kwok,
}

_HEALTH = {
    ETCD: "/health",
    APISERVER: "/readyz",
    CONTROLLER_MANAGER: "/healthz",
    SCHEDULER: "/readyz",
    KWOK: "/healthz",
}


def _environment(name: str, layout: Layout) -> dict[str, str]:
    if name == KWOK:
        # It would otherwise read a configuration of the user's own below ~/.kwok.
        return {"KWOK_WORKDIR": str(layout.directory / "kwok")}
    if name == APISERVER:
        # It spends a sixth of its CPU on collecting garbage; a machine of two cores has memory to spare, not CPU.
        return {"GOGC": "300"}
    return {}
