"""Settings of the webhook: flag, environment (KGWE_WEBHOOK_<KEY>), file, default, in this order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from kgwe import errors
from kgwe.apps import configuration

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

ENV_PREFIX: Final = "KGWE_WEBHOOK_"


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    # Address of the webhook; the Service has port 443 in front of it.
    bind_address: str = ":9443"
    # Address of /metrics, /healthz and /readyz.
    metrics_bind_address: str = ":8080"
    # Folder with tls.crt and tls.key. With manageCertificates the webhook writes them itself.
    cert_dir: str = "/var/run/kgwe-webhook"
    # Whether KGWE has an authority of its own, in the Secret kgwe-ca, and issues certificates for its servers. Set it
    # to false where cert-manager does that.
    manage_certificates: bool = True
    # Servers that get a certificate, each in a Secret NAME-tls: NAME=HOST+HOST… .
    certificates: tuple[str, ...] = (
        "kgwe-webhook=kgwe-webhook.kgwe-system.svc+kgwe-webhook.kgwe-system.svc.cluster.local",
        "kgwe-extender=kgwe-scheduler.kgwe-system.svc+kgwe-gang-seats.kgwe-system.svc+localhost+127.0.0.1",
        "kgwe-agent=kgwe-agent",
    )
    namespace: str = "kgwe-system"
    # The MutatingWebhookConfiguration whose caBundle is kept current; empty: none.
    webhook_configuration: str = "kgwe-webhook"
    # That of the scheduler's webhook (deploy/gang-seats.yaml), whose caBundle is kept current too; empty: none.
    seat_webhook_configuration: str = "kgwe-gang-seats"
    # Seconds for which an authority and the other certificates are valid, and the part left when they are replaced.
    authority_seconds: float = 730 * 86400.0
    certificate_seconds: float = 90 * 86400.0
    renew_at: float = 1 / 3
    # Seconds between the announcement of a new authority and its first signature, and between two checks.
    announce_seconds: float = 3600.0
    check_seconds: float = 30.0
    # Authority and common names of the API servers that may call; empty: any client may.
    client_ca_file: str = ""
    client_names: tuple[str, ...] = ()
    # Namespaces in which nothing is changed.
    exempt_namespaces: tuple[str, ...] = ("kube-system", "kgwe-system")
    log_level: str = "info"


def load(path: Path | None = None, overrides: Mapping[str, Any] | None = None) -> Settings:
    """Read the settings; raise Permanent with the path of the invalid key."""
    loaded = configuration.load(Settings, ENV_PREFIX, path, overrides)
    for name, value in (
        ("authoritySeconds", loaded.authority_seconds),
        ("certificateSeconds", loaded.certificate_seconds),
        ("checkSeconds", loaded.check_seconds),
    ):
        if not value > 0:
            raise errors.Permanent(f"settings: {name} must be above 0, not {value:g}")
    if not 0 < loaded.renew_at < 1:
        raise errors.Permanent(f"settings: renewAt must be between 0 and 1, not {loaded.renew_at:g}")
    for each in loaded.certificates:
        if not all(each.partition("=")):
            raise errors.Permanent(f"settings: certificates: {each!r} is not NAME=HOST+HOST…")
    return loaded


def read_hosts(entry: str) -> tuple[str, tuple[str, ...]]:
    """Return the name and the hosts of an entry of `certificates`."""
    name, _, hosts = entry.partition("=")
    return name, tuple(hosts.split("+"))
