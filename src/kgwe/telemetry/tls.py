"""TLS of a server that admits named clients only, with certificates that are reloaded while it runs.

The client presents a certificate of `authority`, and its common name or an alternative name is in `names`. The
authority of a cluster signs certificates for each kubelet and user, so its signature alone is not enough.

cert-manager, or the volume of a Secret, replaces the files in place. New connections check for changes; files that do
not match yet (a key without its new certificate) are ignored, and the previous ones stay in use.
"""

from __future__ import annotations

import ssl
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import structlog

from kgwe import errors

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

log = structlog.get_logger(__name__)

# A check costs three system calls; many connections must not cause many checks.
_LOOK_AGAIN_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Files:
    certificate: Path
    key: Path
    #: authority of the clients; empty admits any client
    authority: Path | None = None
    #: allowed clients, by common name or alternative name; empty admits all clients of the authority
    names: frozenset[str] = frozenset()

    def stamp(self) -> tuple[tuple[int, int], ...]:
        """Return a value that changes when a file changes; empty while one is missing."""
        paths = (self.certificate, self.key, *((self.authority,) if self.authority else ()))
        try:
            return tuple((found.st_mtime_ns, found.st_ino) for found in (path.stat() for path in paths))
        except OSError:
            return ()

    def context(self) -> ssl.SSLContext:
        """Return a TLS context; raise Permanent if the files cannot be used."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:
            context.load_cert_chain(self.certificate, self.key)
            if self.authority is not None:
                context.load_verify_locations(self.authority)
                context.verify_mode = ssl.CERT_REQUIRED
        except OSError as exc:  # ssl.SSLError is one
            raise errors.Permanent(
                f"cannot use certificate {self.certificate} with key {self.key}"
                f"{f' and client CA {self.authority}' if self.authority else ''}: {exc}"
            ) from exc
        return context


class ReloadingContext:
    """Provides the newest usable certificates."""

    def __init__(self, files: Files, clock: Callable[[], float] = time.monotonic) -> None:
        """Raise Permanent if there are no usable certificates at the start."""
        self.files = files
        self._clock = clock
        self._stamp = files.stamp()
        self._context = files.context()
        self._looked = clock()

    def context(self) -> ssl.SSLContext:
        now = self._clock()
        if now - self._looked < _LOOK_AGAIN_S:
            return self._context
        self._looked = now
        stamp = self.files.stamp()
        if stamp and stamp != self._stamp:
            try:
                self._context = self.files.context()
            except errors.Permanent as exc:
                log.warning("certificates_kept", error=str(exc))
            else:
                self._stamp = stamp
                log.info("certificates_renewed", file=str(self.files.certificate))
        return self._context

    def is_allowed(self, certificate: Mapping[str, object] | None) -> bool:
        """Return whether a client with this certificate (as `ssl` reports it) is allowed."""
        return not self.files.names or bool(self.files.names & names_of(certificate))


def names_of(certificate: Mapping[str, object] | None) -> frozenset[str]:
    """Return the common names and alternative names of a certificate from `SSLSocket.getpeercert`."""
    if not certificate:
        return frozenset()
    subject = certificate.get("subject") or ()
    found = {value for part in subject for key, value in part if key == "commonName"}  # type: ignore[attr-defined] # nested tuples
    found.update(value for _, value in certificate.get("subjectAltName") or ())  # type: ignore[attr-defined] # pairs
    return frozenset(found)
