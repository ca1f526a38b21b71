"""Certificates of gRPC servers and clients, from files that are replaced while the process runs.

Both sides present one, signed by the authority that the other trusts. cert-manager or a Secret's volume replaces the
files. Each handshake checks for changes; a pair that does not match yet (a key without its new certificate) is
ignored, and the previous one stays in use.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

import grpc
import structlog

from kgwe import errors

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

log = structlog.get_logger(__name__)

_LOOPBACK = ("127.", "[::1]", "::1", "localhost")


@dataclass(frozen=True, slots=True)
class Files:
    certificate: Path
    key: Path
    authority: Path

    def stamp(self) -> tuple[tuple[int, int], ...]:
        """Return a value that changes when one of the files changes."""
        try:
            return tuple((s.st_mtime_ns, s.st_ino) for s in (path.stat() for path in self.all))
        except OSError:
            return ()

    @property
    def all(self) -> tuple[Path, Path, Path]:
        return (self.certificate, self.key, self.authority)

    def read(self) -> tuple[bytes, bytes, bytes]:
        """Return (certificate, key, authority); raise Permanent if one is missing or they do not match."""
        try:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self.certificate, self.key)
            context.load_verify_locations(self.authority)
            certificate, key, authority = (path.read_bytes() for path in self.all)
        except (OSError, ssl.SSLError) as exc:
            named = ", ".join(str(path) for path in self.all)
            raise errors.Permanent(f"cannot use the certificates ({named}): {exc}") from exc
        return certificate, key, authority


def parse_files(certificate: str, key: str, authority: str) -> Files | None:
    """Return the files; None if none are set."""
    return Files(Path(certificate), Path(key), Path(authority)) if certificate and key and authority else None


class _Renewing:
    """Provides gRPC with new certificates, and with nothing if they are unchanged."""

    def __init__(self, source: Files) -> None:
        self._source = source
        self._stamp = source.stamp()
        self.first = _configuration(source)

    def __call__(self) -> grpc.ServerCertificateConfiguration | None:
        stamp = self._source.stamp()
        if not stamp or stamp == self._stamp:
            return None
        try:
            found = _configuration(self._source)
        except errors.Permanent as exc:
            log.warning("certificates_kept", error=str(exc))
            return None
        self._stamp = stamp
        log.info("certificates_renewed", file=str(self._source.certificate))
        return found


def _configuration(source: Files) -> grpc.ServerCertificateConfiguration:
    certificate, key, authority = source.read()
    return grpc.ssl_server_certificate_configuration([(key, certificate)], root_certificates=authority)


def server_credentials(source: Files) -> grpc.ServerCredentials:
    """Return server credentials that require a client certificate of the authority."""
    renewing = _Renewing(source)
    fetch = cast("Callable[[], grpc.ServerCertificateConfiguration]", renewing)  # None is "no change", its types forget
    return grpc.dynamic_ssl_server_credentials(renewing.first, fetch, require_client_authentication=True)


def channel_credentials(source: Files) -> grpc.ChannelCredentials:
    certificate, key, authority = source.read()
    return grpc.ssl_channel_credentials(authority, key, certificate)


def is_loopback(host: str) -> bool:
    return host.startswith(_LOOPBACK)


def read_names(auth: Mapping[str, object]) -> frozenset[str]:
    """Return the names of a client from gRPC's auth context: common name and alternative names."""
    found: set[str] = set()
    for key in ("x509_common_name", "x509_subject_alternative_name"):
        values = auth.get(key)
        if isinstance(values, (list, tuple)):
            found.update(value.decode(errors="replace") for value in values if isinstance(value, bytes))
    return frozenset(found)
