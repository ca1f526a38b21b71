"""When certificates are replaced, so that every client trusts a certificate before a server uses it.

    authority   a third of its validity is left ──► the next one is announced: both are in the bundle
                announced for long enough       ──► the next one signs; the old one stays in the bundle until it ends
    others      a third is left, or another authority signs now ──► issued again

No step depends on a restart: servers read new files, and clients trust both authorities meanwhile. kube-scheduler
reads the authority of its extender only when it starts, so a change of the authority needs one restart of it.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kgwe import errors
from kgwe.certificates import authority

if TYPE_CHECKING:
    from kgwe.certificates.authority import Pair


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """How long certificates are valid, and how long before their end they are replaced."""

    authority: dt.timedelta = dt.timedelta(days=730)
    others: dt.timedelta = dt.timedelta(days=90)
    #: part of the validity that is left when a certificate is replaced
    renew_at: float = 1 / 3
    #: how long a new authority is announced before it signs
    announce: dt.timedelta = dt.timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Authorities:
    """The authority that signs, the next one if it is announced, and certificates of earlier ones."""

    current: Pair
    next: Pair | None = None
    announced_at: dt.datetime | None = None
    earlier: tuple[bytes, ...] = ()

    @property
    def bundle(self) -> bytes:
        """All certificates that clients trust, the one that signs first."""
        following = (self.next.certificate,) if self.next is not None else ()
        return b"".join((self.current.certificate, *following, *self.earlier))


def start(name: str, now: dt.datetime, lifetimes: Lifetimes) -> Authorities:
    """Return a first authority."""
    return Authorities(authority.make_authority(name, now, lifetimes.authority))


def advance(known: Authorities, name: str, now: dt.datetime, lifetimes: Lifetimes) -> Authorities:
    """Return the authorities after the steps that are due now; the same object if none is."""
    kept = tuple(each for each in known.earlier if authority.load(each).not_valid_after_utc > now)
    if kept != known.earlier:
        known = replace(known, earlier=kept)
    if authority.load(known.current.certificate).not_valid_after_utc <= now:
        # All replicas were down for long: what it signed has ended, too.
        return Authorities(known.next or authority.make_authority(name, now, lifetimes.authority))
    if known.next is None:
        if not is_due(known.current.certificate, now, lifetimes):
            return known
        return replace(known, next=authority.make_authority(name, now, lifetimes.authority), announced_at=now)
    if known.announced_at is None or now - known.announced_at >= lifetimes.announce:
        return Authorities(known.next, earlier=(known.current.certificate, *known.earlier))
    return known


def is_due(pem: bytes, now: dt.datetime, lifetimes: Lifetimes) -> bool:
    """Whether a certificate is to be replaced, because its end is near."""
    found = authority.load(pem)
    validity = found.not_valid_after_utc - found.not_valid_before_utc
    return found.not_valid_after_utc - now <= validity * lifetimes.renew_at


def is_usable(
    pair: Pair | None, known: Authorities, hosts: tuple[str, ...], now: dt.datetime, lifetimes: Lifetimes
) -> bool:
    """Whether a certificate may stay: not due, of the authority that signs, and for all these hosts."""
    if pair is None:
        return False
    try:
        if is_due(pair.certificate, now, lifetimes):
            return False
        return authority.is_issued_by(pair.certificate, known.current.certificate) and authority.has_hosts(
            pair.certificate, hosts
        )
    except errors.Permanent:
        return False
