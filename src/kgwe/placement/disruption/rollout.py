"""Decides which replicas of a service start and stop, one step at a time.

A replica runs one spec at one place, and is never moved to follow an edit: a new one is started, then the old one is
stopped. The step follows from what exists now, so a restarted process continues in the middle.

    scale up       the missing replicas ask for places; those that run stay
    scale down     replicas that are not ready stop first, then the newest
    update         one replica of the new spec asks for a place beside all others; with each one that is ready, one of
                   the old spec stops
    no room        one replica of the old spec stops first, once all others are ready
    no place ever  nothing stops: the new spec fits no node
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Surge(StrEnum):
    """What the planner said of a replica that asks for a place beside the others."""

    UNKNOWN = "Unknown"
    NO_ROOM = "NoRoom"
    IMPOSSIBLE = "Impossible"


class Mode(StrEnum):
    """How replicas are updated."""

    STEADY = "Steady"
    SURGE = "Surge"
    ONE_BY_ONE = "OneByOne"
    BLOCKED = "Blocked"


@dataclass(frozen=True, slots=True)
class Replica:
    """A replica that has a place."""

    number: int
    #: it runs the present spec
    is_current: bool
    is_ready: bool
    #: creation time as the API writes it: sorts as text
    since: str = ""
    #: it is being deleted, and keeps its number until it is gone
    is_ending: bool = False


@dataclass(frozen=True, slots=True)
class RolloutStep:
    """Which replicas should exist. All others stop."""

    kept: frozenset[int]
    #: numbers of new replicas, which ask for places
    asking: frozenset[int]
    mode: Mode = Mode.STEADY

    @property
    def wanted(self) -> frozenset[int]:
        return self.kept | self.asking


def decide_step(desired: int, replicas: Sequence[Replica], surge: Surge = Surge.UNKNOWN) -> RolloutStep:
    """Return the next step towards `desired` replicas of the present spec."""
    live = [each for each in replicas if not each.is_ending]
    surplus = _worst_first(each for each in live if each.is_current)[: -desired or None]
    live = [each for each in live if each not in surplus]
    old = [each for each in live if not each.is_current]
    missing = desired - (len(live) - len(old))
    stopped = _choose_stopped(desired, live, old, surge if missing else Surge.UNKNOWN)
    kept = [each for each in live if each.number not in stopped]
    is_updating = len(stopped) < len(old)
    asking = min(missing, max(desired - len(kept), 0) + is_updating)
    used = {each.number for each in replicas}
    numbers = frozenset(itertools.islice((number for number in itertools.count() if number not in used), asking))
    return RolloutStep(frozenset(each.number for each in kept), numbers, _find_mode(surge, is_updating=bool(old)))


def _choose_stopped(desired: int, live: Sequence[Replica], old: Sequence[Replica], surge: Surge) -> frozenset[int]:
    """Numbers of old replicas that are not needed any more, while `desired` replicas stay ready."""
    order = [each.number for each in _worst_first(old)]
    if surge is Surge.IMPOSSIBLE:
        return frozenset(order[: max(len(live) - desired, 0)])
    ready = sum(each.is_ready for each in live)
    idle = sum(not each.is_ready for each in old)
    spare = max(ready - desired, 0)
    if surge is Surge.NO_ROOM and not idle and ready == desired:
        spare = 1
    return frozenset(order[: idle + spare])


def _worst_first(replicas: Iterable[Replica]) -> list[Replica]:
    """In the order in which they stop: not ready first, then the newest, of these the highest number."""
    newest = sorted(replicas, key=lambda each: (each.since, each.number), reverse=True)
    return sorted(newest, key=lambda each: each.is_ready)


def _find_mode(surge: Surge, *, is_updating: bool) -> Mode:
    if not is_updating:
        return Mode.STEADY
    return {Surge.NO_ROOM: Mode.ONE_BY_ONE, Surge.IMPOSSIBLE: Mode.BLOCKED}.get(surge, Mode.SURGE)
