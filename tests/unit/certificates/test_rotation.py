"""Every client trusts a certificate before a server uses it."""

from __future__ import annotations

import datetime as dt

from kgwe.certificates import authority, rotation
from kgwe.certificates.rotation import Authorities, Lifetimes

NOW = dt.datetime(2026, 11, 1, tzinfo=dt.UTC)
DAY = dt.timedelta(days=1)
LIFETIMES = Lifetimes(authority=90 * DAY, others=9 * DAY, announce=dt.timedelta(hours=1))
HOSTS = ("kgwe-webhook.kgwe-system.svc", "127.0.0.1")


def test_a_new_authority_is_trusted_before_it_signs_and_the_old_one_until_it_ends() -> None:
    known = rotation.start("kgwe", NOW, LIFETIMES)
    first = known.current.certificate
    assert rotation.advance(known, "kgwe", NOW + 59 * DAY, LIFETIMES) is known

    announced = rotation.advance(known, "kgwe", NOW + 61 * DAY, LIFETIMES)
    assert announced.next is not None
    assert announced.current.certificate == first
    assert announced.bundle == first + announced.next.certificate

    soon = NOW + 61 * DAY + dt.timedelta(minutes=59)
    assert rotation.advance(announced, "kgwe", soon, LIFETIMES) is announced
    signing = rotation.advance(announced, "kgwe", NOW + 62 * DAY, LIFETIMES)
    assert signing.current == announced.next
    assert signing.bundle == signing.current.certificate + first

    assert rotation.advance(signing, "kgwe", NOW + 91 * DAY, LIFETIMES).bundle == signing.current.certificate


def test_an_authority_that_ended_while_all_were_down_is_replaced() -> None:
    known = rotation.start("kgwe", NOW, LIFETIMES)
    later = NOW + 100 * DAY
    new = rotation.advance(known, "kgwe", later, LIFETIMES)
    assert authority.load(new.current.certificate).not_valid_after_utc > later


def usable(pair: authority.Pair | None, known: Authorities, now: dt.datetime) -> bool:
    return rotation.is_usable(pair, known, HOSTS, now, LIFETIMES)


def test_a_certificate_is_replaced_before_its_end_and_when_another_authority_signs() -> None:
    known = rotation.start("kgwe", NOW, LIFETIMES)
    pair = authority.issue(known.current, "kgwe-webhook", HOSTS, NOW, LIFETIMES.others)
    assert usable(pair, known, NOW + 5 * DAY)
    assert not usable(pair, known, NOW + 7 * DAY)
    assert not usable(pair, rotation.start("kgwe", NOW, LIFETIMES), NOW)
    assert not usable(authority.issue(known.current, "x", ("other",), NOW, LIFETIMES.others), known, NOW)
    assert not usable(authority.Pair(b"garbage", b"garbage"), known, NOW)
    assert not usable(None, known, NOW)
