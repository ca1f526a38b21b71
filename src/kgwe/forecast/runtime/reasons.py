"""Reasons of a prediction in plain sentences."""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

MOST: Final = 3
# A feature that moves the answer by less than this share is not a reason.
_LEAST_MOVE: Final = 0.005

_LEVEL_SUBJECTS: Final = {
    "ended": "the number of known runs",
    "last": "the last run",
    "before_last": "the run before the last",
    "fast_mean": "the most recent runs",
    "slow_mean": "the long-term mean of the runs",
    "error": "how the recent runs differed from their estimates",
    "slow_error": "how the runs usually differ from their estimates",
    "last_error": "how the last run differed from its estimate",
    "deviation_5min": "how the runs of the last minutes differed from what is common",
    "deviation_30min": "how the runs of the last half hour differed from what is common",
    "deviation_4h": "how the runs of the last hours differed from what is common",
    "deviation_5min_count": "the number of runs in the last minutes",
    "deviation_30min_count": "the number of runs in the last half hour",
    "deviation_4h_count": "the number of runs in the last hours",
    "since_end": "the time since the last run ended",
    "since_submission": "the time since the last submission",
    "running": "the number of runs still running",
}
_OTHERS: Final = {
    "recent": "how recent runs of all workloads differed from their estimates",
    "queue": "the work that is running or waiting ahead",
    "arrivals": "how many runs were submitted recently",
    "hour": "the hour of the day",
    "tick": "when ends are seen",
    "weekday": "the day of the week",
    "estimate": "the mean of similar runs",
    "common": "what is common to all users",
}


def describe_move(name: str, move: float) -> str:
    """Return one reason: what moved the prediction, and by how much in percent."""
    return f"{name_subject(name)} {'adds' if move > 0 else 'takes off'} {abs(math.expm1(move)):.0%}"


@cache
def name_subject(feature: str) -> str:
    """Return the subject of a feature in plain words."""
    head, _, rest = feature.partition(".")
    if head == "number":
        return f"its {rest}"
    if head == "change":
        return f"the change of {rest} since the user's last run"
    if head in _OTHERS:
        return _OTHERS[head]
    whose = {"all": "of all workloads", "user": "of the same user"}.get(head, f"of the same {head}")
    return f"{_LEVEL_SUBJECTS[rest]} {whose}"


def pick_reasons(names: Sequence[str], moves: NDArray[np.float64], most: int = MOST) -> tuple[str, ...]:
    """Return the largest reasons, largest first. Features with the same subject count together."""
    together: dict[str, float] = {}
    for index in np.flatnonzero(moves).tolist():
        subject = name_subject(names[index])
        together[subject] = together.get(subject, 0.0) + float(moves[index])
    largest = sorted(together.items(), key=lambda item: (-abs(item[1]), item[0]))[:most]
    return tuple(
        f"{subject} {'adds' if move > 0 else 'takes off'} {abs(math.expm1(move)):.0%}"
        for subject, move in largest
        if abs(move) >= _LEAST_MOVE
    )
