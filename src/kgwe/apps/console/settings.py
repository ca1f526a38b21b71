"""Settings of the console: flag, environment (KGWE_CONSOLE_<KEY>), file, default, in this order."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from kgwe import errors
from kgwe.apps import configuration

if TYPE_CHECKING:
    from collections.abc import Mapping

ENV_PREFIX: Final = "KGWE_CONSOLE_"


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    # Address of the pages and of the HTTP API.
    bind_address: str = ":8443"
    # Certificate and key (PEM), read again when they change. Without them the console signs a certificate of its own.
    tls_cert_file: str = ""
    tls_key_file: str = ""
    # Names and addresses of the certificate that the console signs itself.
    tls_hosts: tuple[str, ...] = ("localhost", "127.0.0.1", "kgwe-console", "kgwe-console.kgwe-system.svc")
    # Serves without TLS; only on a loopback address.
    insecure_http: bool = False
    # Built pages; empty: those of the installed package.
    assets: str = ""
    # The cost ledger, as the cost engine's setting `store` names it; empty: no costs are shown.
    cost_store: str = ""
    # Price files (CSV or YAML), as for the cost engine; built-in prices apply where no file has one.
    price_files: tuple[str, ...] = ()
    # The optimizer's gRPC service, and the directory of the certificates for it; empty: no findings are shown.
    optimizer_address: str = ""
    optimizer_certificates: str = ""
    # Decision records of the scheduler (its setting `recordDirectory`); empty: no decision log is shown.
    record_directory: str = ""
    # A session ends after so many seconds without a request, and after so many in all.
    session_idle_seconds: int = 1800
    session_seconds: int = 43_200
    # A link to sign in works once, within so many seconds.
    sign_in_seconds: int = 60
    # Address of /metrics, /healthz and /readyz.
    metrics_bind_address: str = ":8080"
    log_level: str = "info"

    @property
    def price_paths(self) -> tuple[Path, ...]:
        return tuple(map(Path, self.price_files))


def load(path: Path | None = None, overrides: Mapping[str, Any] | None = None) -> Settings:
    """Read the settings; raise Permanent with the invalid key."""
    loaded = configuration.load(Settings, ENV_PREFIX, path, dict(overrides or {}))
    if bool(loaded.tls_cert_file) != bool(loaded.tls_key_file):
        raise errors.Permanent("settings: tlsCertFile and tlsKeyFile go together")
    for name in ("session_idle_seconds", "session_seconds", "sign_in_seconds"):
        if getattr(loaded, name) <= 0:
            raise errors.Permanent(f"settings: {name} must be above 0")
    return loaded
