"""The features of a run-time model: their names. A model fits only the schema it was trained with."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Final

LEVEL: Final = (
    "ended",
    "last",
    "before_last",
    "fast_mean",
    "slow_mean",
    "error",
    "slow_error",
    "last_error",
    *(f"deviation_{span}{part}" for span in ("5min", "30min", "4h") for part in ("", "_count")),
    "since_end",
    "since_submission",
    "running",
)
SPANS: Final = ("30s", "2min", "15min", "2h")
QUEUE: Final = (
    "work_left",
    "lane_work_left",
    "oldest",
    "late",
    "latest",
    "own_latest",
    "left_1",
    "left_2",
    "left_3",
    "lane_recent",
    "ended_1min",
)
ARRIVALS: Final = ("10s", "30s", "60s", "5min")


@dataclass(frozen=True)
class Schema:
    """The names of the keys of a query, fine to coarse, and of its numbers."""

    keys: tuple[str, ...]
    numbers: tuple[str, ...] = ()

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of all features, in order."""
        return (
            "estimate",
            "common",
            "tick.period",
            "tick.first",
            *(f"{key}.{part}" for key in (*self.keys, "user", "all") for part in LEVEL),
            *(f"recent.{span}.{part}" for span in SPANS for part in ("error", "count")),
            *(f"queue.{part}" for part in QUEUE),
            *(f"arrivals.{span}" for span in ARRIVALS),
            "hour",
            "weekday",
            *(f"number.{name}" for name in self.numbers),
            *(f"change.{name}" for name in self.numbers),
        )

    @property
    def ticks(self) -> slice:
        """Where the period of the ticks and the first possible duration are."""
        return slice(2, 4)

    @cached_property
    def digest(self) -> str:
        """Hash of the names. A model with another hash is refused."""
        return hashlib.blake2b("\n".join(self.names).encode(), digest_size=16).hexdigest()
