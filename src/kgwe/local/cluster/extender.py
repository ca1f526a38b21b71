"""KGWE's extender on a local cluster: its address, and the certificates of both sides."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

from kgwe import errors
from kgwe.kube.translate import scheduler_config
from kgwe.local.cluster import certificates
from kgwe.local.host.ports import LOOPBACK
from kgwe.telemetry import tls

if TYPE_CHECKING:
    from kgwe.local.cluster.certificates import Certificates
    from kgwe.local.cluster.cluster import LocalCluster


def url(port: int, *, tls: bool = True) -> str:
    return f"{'https' if tls else 'http'}://{LOOPBACK}:{port}"


def client_files(made: Certificates) -> scheduler_config.ClientFiles:
    """Return kube-scheduler's client certificate and the authority it trusts."""
    pair = made.pair(certificates.SCHEDULER)
    return scheduler_config.ClientFiles(str(made.authority), str(pair.certificate), str(pair.key))


def client_context(made: Certificates) -> ssl.SSLContext:
    """Return the TLS context of a client that calls as kube-scheduler."""
    files = client_files(made)
    context = ssl.create_default_context(cafile=files.authority)
    context.load_cert_chain(files.certificate, files.key)
    return context


def server_files(made: Certificates) -> tls.Files:
    """Return the extender's server certificate and the authority it accepts."""
    pair = made.pair(certificates.EXTENDER)
    return tls.Files(pair.certificate, pair.key, made.authority, frozenset({certificates.SCHEDULER.user}))


def build_environment(cluster: LocalCluster) -> dict[str, str]:
    """Return scheduler settings for an extender over HTTPS that accepts only kube-scheduler."""
    files = server_files(cluster.layout.certificates)
    if not files.stamp():
        raise errors.Permanent(
            f"cluster {cluster.name!r} was started without certificates for the extender.\n"
            f"Delete it with `kgwe local down --name {cluster.name}`, then start it again."
        )
    return {
        "KGWE_SCHEDULER_EXTENDER_TLS_CERT_FILE": str(files.certificate),
        "KGWE_SCHEDULER_EXTENDER_TLS_KEY_FILE": str(files.key),
        "KGWE_SCHEDULER_EXTENDER_TLS_CLIENT_CA_FILE": str(files.authority),
    }


def build_configuration(cluster: LocalCluster, port: int) -> str:
    """Return a kube-scheduler configuration that calls the extender on this port for GPU pods."""
    return scheduler_config.render_config(url(port), tls=client_files(cluster.layout.certificates))
