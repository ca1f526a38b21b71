"""TLS of a server that admits named clients only, with certificates that are reloaded while it runs.

The client shows a certificate of the authority in `authority`, and a common name or alternative name of it is one of
`names`: the authority of a cluster signs certificates for every kubelet and user, so coming from it is not enough.

cert-manager, or the volume of a Secret, replaces the files in place. New connections look whether they changed; files
that do not belong together yet (a key without its new certificate) leave the last good ones in use.
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

# A look at the files costs three system calls; a flood of connections must not make a flood of them.
_LOOK_AGAIN_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Files:
    certificate: Path
    key: Path
    #: of the clients; empty: any client is let in
    authority: Path | None = None
    #: clients that are let in, by common name or alternative name; empty: all of the authority
    names: frozenset[str] = frozenset()

    def stamp(self) -> tuple[tuple[int, int], ...]:
        """Changes when a file does; empty while one is missing."""
        paths = (self.certificate, self.key, *((self.authority,) if self.authority else ()))
        try:
            return tuple((found.st_mtime_ns, found.st_ino) for found in (path.stat() for path in paths))
        except OSError:
            return ()

    def context(self) -> ssl.SSLContext:
        """Permanent when the files cannot be used."""
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
    """The newest certificates that can be used."""

    def __init__(self, files: Files, clock: Callable[[], float] = time.monotonic) -> None:
        """Permanent when there are none to begin with."""
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

    def admits(self, certificate: Mapping[str, object] | None) -> bool:
        """Whether a client with that certificate (as `ssl` reports it) may ask."""
        return not self.files.names or bool(self.files.names & names_of(certificate))


def names_of(certificate: Mapping[str, object] | None) -> frozenset[str]:
    """Common names and alternative names of a certificate, as `SSLSocket.getpeercert` tells them."""
    if not certificate:
        return frozenset()
    subject = certificate.get("subject") or ()
    found = {value for part in subject for key, value in part if key == "commonName"}  # type: ignore[attr-defined] # nested tuples
    found.update(value for _, value in certificate.get("subjectAltName") or ())  # type: ignore[attr-defined] # pairs
    return frozenset(found)
