"""The KubeSchedulerConfiguration that makes kube-scheduler ask KGWE about GPU pods."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import yaml

from kgwe import errors
from kgwe.kube.api.kgwe.mig import PROFILES
from kgwe.model.gpu import mig
from kgwe.model.units import amounts

_HEADER = """\
# kube-scheduler asks KGWE about pods that ask for the resources below, and about no others: if KGWE is down, everything
# but GPU pods is scheduled as before.
#
# nodeCacheCapable: only node names are sent, KGWE knows the nodes.
# ignorable: false, so GPU pods wait while no replica of KGWE answers. With true they would be placed without it: gangs
#   in halves, on GPUs that are reserved for others.
# tlsConfig: KGWE lets in only the client that certFile names (extenderTlsClientNames: system:kube-scheduler). Without
#   caFile kube-scheduler would not check whom it asks. It reads these files when it starts.
# clientConnection.kubeconfig: kube-scheduler takes the API server from here and ignores its flag --kubeconfig once it
#   has --config (kgwe scheduler config --scheduler-kubeconfig; kubeadm: /etc/kubernetes/scheduler.conf).
# weight: KGWE's scores against those of kube-scheduler's own plugins; most answers name one node and need none.
"""


def managed_resources() -> list[str]:
    """Every resource name a GPU, a share of one or a slice can have."""
    return [amounts.GPU, amounts.SHARED, *sorted({mig.resource_of(profile) for profile in PROFILES})]


@dataclass(frozen=True, slots=True)
class ClientFiles:
    """PEM files on kube-scheduler's machine."""

    #: of the authority that signed the extender's certificate
    authority: str
    #: what kube-scheduler shows
    certificate: str
    key: str
    #: name in the extender's certificate, if the URL has another one, such as the address of a Service
    server_name: str = ""


def build_config(
    url: str,
    *,
    binds: bool = False,
    tls: ClientFiles | None = None,
    ignorable: bool = False,
    timeout: str = "10s",
    kubeconfig: str = "",
) -> dict[str, Any]:
    """The configuration; `url` is where the extender listens. Permanent when it would let anyone ask, or not work.

    `kubeconfig` is a file on kube-scheduler's machine. Without one kube-scheduler uses the service account of its pod.
    """
    _check_url(url, tls)
    extender: dict[str, Any] = {
        "urlPrefix": url.rstrip("/"),
        "filterVerb": "filter",
        "prioritizeVerb": "prioritize",
        "preemptVerb": "preempt",
        "weight": 1,
        "nodeCacheCapable": True,
        "ignorable": ignorable,
        "httpTimeout": timeout,
        "managedResources": [{"name": name, "ignoredByScheduler": False} for name in managed_resources()],
    }
    if binds:
        extender["bindVerb"] = "bind"
    if tls is not None:
        files = {"caFile": tls.authority, "certFile": tls.certificate, "keyFile": tls.key}
        if tls.server_name:
            files["serverName"] = tls.server_name
        extender |= {"enableHTTPS": True, "tlsConfig": files}
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        **({"clientConnection": {"kubeconfig": kubeconfig}} if kubeconfig else {}),
        "extenders": [extender],
    }


def _check_url(url: str, tls: ClientFiles | None) -> None:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise errors.Permanent(f"bad URL {url!r}: give http(s)://HOST:PORT")
    is_secure = parts.scheme == "https"
    if is_secure and not (tls and tls.authority and tls.certificate and tls.key):
        raise errors.Permanent(
            f"{url}: over HTTPS both sides show certificates; give --ca-file, --cert-file and --key-file"
        )
    if not is_secure and tls is not None:
        raise errors.Permanent(f"{url}: certificates are shown over https:// only")
    if not is_secure and not _is_loopback(parts.hostname):
        raise errors.Permanent(f"{url}: plain HTTP is for kube-scheduler on the same machine only; use https://")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def render_config(url: str, **options: Any) -> str:
    """The same as YAML, with the reasons as comments."""
    return _HEADER + yaml.safe_dump(build_config(url, **options), sort_keys=False)
