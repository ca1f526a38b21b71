"""Times written as the API server writes them, and read back whatever it wrote."""

from __future__ import annotations

import datetime as dt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgwe.kube.api import timestamp

NOON = dt.datetime(2026, 11, 15, 12, 0, 0, 1234, tzinfo=dt.UTC)


def test_micro_has_six_digits_also_when_they_are_zero():
    assert timestamp.micro(NOON) == "2026-11-15T12:00:00.001234Z"
    assert timestamp.micro(NOON.replace(microsecond=0)) == "2026-11-15T12:00:00.000000Z"


def test_seconds_has_none():
    assert timestamp.seconds(NOON) == "2026-11-15T12:00:00Z"


def test_another_zone_is_written_as_utc():
    elsewhere = NOON.astimezone(dt.timezone(dt.timedelta(hours=-8)))

    assert timestamp.seconds(elsewhere) == "2026-11-15T12:00:00Z"


def test_now_is_now():
    before = dt.datetime.now(dt.UTC)
    now = timestamp.parse(timestamp.micro())

    assert before <= now <= dt.datetime.now(dt.UTC)
    assert now.tzinfo is not None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-11-15T12:00:00Z", NOON.replace(microsecond=0)),
        ("2026-11-15T12:00:00.001234Z", NOON),
        ("2026-11-15T12:00:00.001234567Z", NOON),
        ("2026-11-15T12:00:00.001Z", NOON.replace(microsecond=1000)),
        ("2026-11-15T14:00:00+02:00", NOON.replace(microsecond=0)),
    ],
)
def test_every_form_the_api_server_stores_is_read(text, expected):
    assert timestamp.parse(text) == expected


EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


@given(st.timedeltas(min_value=dt.timedelta(0), max_value=dt.timedelta(days=365 * 5000)).map(EPOCH.__add__))
def test_what_is_written_is_read_back_and_sorts_as_text(at):
    assert timestamp.parse(timestamp.micro(at)) == at
    assert timestamp.parse(timestamp.seconds(at)) == at.replace(microsecond=0)
    assert (timestamp.micro(at) < timestamp.micro(NOON)) == (at < NOON)
