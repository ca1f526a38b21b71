"""KGWE's extender on a local cluster: where it listens, and the certificates both sides show."""

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
    """What kube-scheduler shows, and whom it trusts."""
    pair = made.pair(certificates.SCHEDULER)
    return scheduler_config.ClientFiles(str(made.authority), str(pair.certificate), str(pair.key))


def client_context(made: Certificates) -> ssl.SSLContext:
    """Of a client that asks as kube-scheduler does."""
    files = client_files(made)
    context = ssl.create_default_context(cafile=files.authority)
    context.load_cert_chain(files.certificate, files.key)
    return context


def server_files(made: Certificates) -> tls.Files:
    """What a server in the extender's place shows, and whom it lets in."""
    pair = made.pair(certificates.EXTENDER)
    return tls.Files(pair.certificate, pair.key, made.authority, frozenset({certificates.SCHEDULER.user}))


def environment(cluster: LocalCluster) -> dict[str, str]:
    """Settings of the scheduler that have its extender speak HTTPS with kube-scheduler alone."""
    files = server_files(cluster.layout.certificates)
    if not files.stamp():
        raise errors.Permanent(
            f"cluster {cluster.name!r} was started without certificates for the extender.\n"
            f"Next: `kgwe local down --name {cluster.name}`, and start it again."
        )
    return {
        "KGWE_SCHEDULER_EXTENDER_TLS_CERT_FILE": str(files.certificate),
        "KGWE_SCHEDULER_EXTENDER_TLS_KEY_FILE": str(files.key),
        "KGWE_SCHEDULER_EXTENDER_TLS_CLIENT_CA_FILE": str(files.authority),
    }


def configuration(cluster: LocalCluster, port: int) -> str:
    """kube-scheduler's: it asks the extender on that port about GPU pods."""
    return scheduler_config.render_config(url(port), tls=client_files(cluster.layout.certificates))
