"""Work that waits for a place, and work that has one, as the queue sees both.

Everything that waits is a whole: one pod (Request) or a gang (GangRequest). How long it runs is known as two points of
a distribution, or not at all; nothing is ever made up for what is not known.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from kgwe import errors
from kgwe.placement.fleet.node import CARD_MILLI
from kgwe.placement.gang.request import GangRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from kgwe.placement.fleet.node import Gpus, Request
    from kgwe.placement.fleet.snapshot import Grant

    Floats = NDArray[np.float64]

# Odds of the 95th percentile: 19 to 1.
_LOG_ODDS_95: Final = math.log(19.0)
# Beyond this, e to the power of it is of no interest, and near the end of floats.
_STEEPEST: Final = 500.0
# Spreads below this are no distribution: p95 is 1.03 times p50.
_EXACT: Final = 0.01
# Slices of a card are compared by the sevenths of its compute they are named after.
_SEVENTHS: Final = 7


@dataclass(frozen=True, slots=True)
class RunTime:
    """Half of such runs are over after `p50_s`, 19 of 20 after `p95_s`. Equal: it is known exactly."""

    p50_s: float
    p95_s: float

    def __post_init__(self) -> None:
        if not 0 < self.p50_s <= self.p95_s < math.inf:
            raise errors.Permanent(f"a run time has 0 < p50 <= p95: {self.p50_s:g} s, {self.p95_s:g} s")


def remaining_s(p50_s: Floats, p95_s: Floats, age_s: Floats, part: Floats | float) -> Floats:
    """How much longer runs last that have lasted `age_s`, as not exceeded by this part of them.

    Run times are taken to be log-logistic: like the log-normal ones that traces show, with a closed form. The longer a
    run has lasted, the longer it will. One that was known exactly, and is late, takes as long again as it is late.
    """
    power = np.log(p95_s / p50_s) / _LOG_ODDS_95
    steep = np.maximum(power, 1e-12)
    age = np.maximum(age_s, 0.0)
    with np.errstate(divide="ignore"):
        odds = np.exp(np.clip(np.log(age / p50_s) / steep, -_STEEPEST, _STEEPEST))
    total = p50_s * np.power((1 + odds) / (1 - np.asarray(part)) - 1, power)
    late = np.where(power < _EXACT, age - p95_s, 0.0)
    left: Floats = np.maximum(np.maximum(total, age) - age, late)
    return left


@dataclass(frozen=True, slots=True)
class Work:
    """One thing that waits. Larger priority goes first."""

    key: str
    request: Request | GangRequest
    namespace: str = ""
    priority: int = 0
    since_s: float = 0.0
    run_time: RunTime | None = None
    timeout_s: float = 0.0
    """How long it may wait in all; 0: for ever."""
    max_attempts: int = 0
    """Errors in a row after which it is given up; 0: never. Waiting for room is no error."""
    first_claim: bool = False
    """It had a place and lost it: before all others of its priority."""
    shape: Hashable = None
    """Works of equal shape are refused alike; when not said, those that ask for the same."""
    name: str = ""
    """What users know it by, such as `team-a/train`; when not said, its key."""

    @property
    def level(self) -> tuple[int, bool]:
        """Works of a lower level go first; within one, namespaces take turns."""
        return -self.priority, not self.first_claim


def shape_of(work: Work) -> Hashable:
    if work.shape is not None:
        return work.shape
    request = work.request
    if isinstance(request, GangRequest) and (request.name or request.priority):
        return dataclasses.replace(request, name="", priority=0)
    return request


def milli_of(request: Request | GangRequest) -> int:
    """GPU asked for, in thousandths of a card, at least 1: work without GPUs takes its turn too."""
    if isinstance(request, GangRequest):
        return max(1, sum(role.required_replicas * milli_of_gpus(role.request.gpus) for role in request.roles))
    return max(1, milli_of_gpus(request.gpus))


def milli_of_gpus(gpus: Gpus) -> int:
    """Thousandths of a GPU; a slice counts by its compute slices."""
    if gpus.slices:
        sevenths = gpus.profile.partition("g.")[0]
        return gpus.slices * CARD_MILLI * (int(sevenths) if sevenths.isdigit() else 1) // _SEVENTHS
    return gpus.count * CARD_MILLI + gpus.milli


# --- work that runs --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Occupant:
    """Work that has a place. Where, the roster is told by whoever keeps the books."""

    key: str
    namespace: str
    milli: int
    started_s: float
    run_time: RunTime | None = None


class Roster:
    """Who runs, what namespaces hold, and when what ends. Kept by whoever starts and ends work."""

    def __init__(self, grants_of: Callable[[str], Sequence[Grant]]) -> None:
        self.grants_of = grants_of
        """Key -> what the work holds in the snapshot of now."""
        self.held: dict[str, int] = {}
        """Namespace -> milli."""
        self.others: Mapping[str, int] = {}
        """Namespace -> milli held by what never was in the queue, such as plain pods."""
        self._occupants: dict[str, Occupant] = {}
        self._timed: tuple[list[Occupant], Floats] | None = None

    def __contains__(self, key: object) -> bool:
        return key in self._occupants

    def __len__(self) -> int:
        return len(self._occupants)

    def __iter__(self) -> Iterator[str]:
        return iter(self._occupants)

    def held_by_namespaces(self) -> dict[str, int]:
        """Namespace -> milli, of all that runs."""
        found = dict(self.held)
        for namespace, milli in self.others.items():
            found[namespace] = found.get(namespace, 0) + milli
        return found

    def put(self, occupant: Occupant) -> None:
        self.drop(occupant.key)
        self._occupants[occupant.key] = occupant
        self.held[occupant.namespace] = self.held.get(occupant.namespace, 0) + occupant.milli
        self._timed = None

    def drop(self, key: str) -> None:
        occupant = self._occupants.pop(key, None)
        if occupant is None:
            return
        left = self.held[occupant.namespace] - occupant.milli
        if left:
            self.held[occupant.namespace] = left
        else:
            del self.held[occupant.namespace]
        self._timed = None

    def known(self) -> tuple[list[Occupant], Floats]:
        """Those with a known run time, and per each its start, p50 and p95, as rows."""
        if self._timed is None:
            listed = [each for each in self._occupants.values() if each.run_time is not None]
            rows = [(o.started_s, o.run_time.p50_s, o.run_time.p95_s) for o in listed if o.run_time is not None]
            self._timed = listed, np.array(rows, np.float64).reshape(-1, 3).T
        return self._timed

    def by_end(self, now_s: float, part: float = 0.5) -> list[tuple[float, Occupant]]:
        """Those with a known run time by when so many of them will be over: the first to end first."""
        listed, (started, p50, p95) = self.known()
        ends = now_s + remaining_s(p50, p95, now_s - started, part)
        order = np.argsort(ends, kind="stable").tolist()
        return [(float(ends[i]), listed[i]) for i in order]
