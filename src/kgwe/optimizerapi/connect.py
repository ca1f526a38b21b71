"""Access to the optimizer from an address and a folder of certificates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kgwe import errors
from kgwe.optimizerapi.client import Access
from kgwe.rpc.tls import Files, is_loopback

if TYPE_CHECKING:
    from pathlib import Path


def make_access(address: str, certificates: Path | None) -> Access:
    """Return the access; raise Permanent if an optimizer on another machine is addressed without certificates."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdigit():
        raise errors.Permanent(f"--optimizer {address!r}: expected HOST:PORT, such as 127.0.0.1:50051")
    if certificates is not None:
        return Access(address, Files(certificates / "tls.crt", certificates / "tls.key", certificates / "ca.crt"))
    if not is_loopback(host):
        raise errors.Permanent(f"the optimizer at {address} needs certificates: pass --certificates FOLDER")
    return Access(address)
