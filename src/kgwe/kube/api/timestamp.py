"""Times as the Kubernetes API writes them."""

from __future__ import annotations

import datetime as dt


def micro(at: dt.datetime | None = None) -> str:
    """`2026-11-15T10:00:00.123456Z`: leases and events (MicroTime)."""
    return _to_utc(at).isoformat(timespec="microseconds").replace("+00:00", "Z")


def seconds(at: dt.datetime | None = None) -> str:
    """`2026-11-15T10:00:00Z`: everything else (Time)."""
    return _to_utc(at).isoformat(timespec="seconds").replace("+00:00", "Z")


def format_time(epoch_s: float) -> str:
    """A time given in seconds since 1970."""
    return seconds(dt.datetime.fromtimestamp(epoch_s, dt.UTC))


def seconds_from_now(delay_s: float) -> str:
    """The time after a delay, as the API writes it."""
    return seconds(dt.datetime.now(dt.UTC) + dt.timedelta(seconds=delay_s))


def parse(text: str) -> dt.datetime:
    return dt.datetime.fromisoformat(text)


def epoch_seconds(text: str) -> float:
    """Seconds since 1970 of a time as the API writes it; 0 for an empty text."""
    return parse(text).timestamp() if text else 0.0


def _to_utc(at: dt.datetime | None) -> dt.datetime:
    return (at or dt.datetime.now(dt.UTC)).astimezone(dt.UTC)
