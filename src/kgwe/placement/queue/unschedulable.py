"""Works that were refused are left alone until something happens that could help them.

Works of equal shape are refused alike, so what is parked is the shape: ten thousand equal works cost one attempt, and
one more each time they are woken. What happened is gathered and looked at once per pass:

    RoomFreed(node)     wakes shapes of which the node takes a pod now
    NodeChanged(node)   the same, and all that could not have started even on an empty fleet
    VictimGone(key)     wakes the shape of the work it was stopped for
    ConfigChanged()     wakes all

A shape that found room only on nodes kept for others is also woken when that changes, and by a new work of its shape:
that one may be short enough to be gone in time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from kgwe.placement.fleet.node import Request
    from kgwe.placement.gang.request import GangRequest


@dataclass(frozen=True, slots=True)
class RoomFreed:
    """Something on the node was given back."""

    node: str


@dataclass(frozen=True, slots=True)
class NodeChanged:
    """The node is new, or ready, healthy, labelled otherwise than before."""

    node: str


@dataclass(frozen=True, slots=True)
class VictimGone:
    """What was stopped for the work of this key has gone."""

    key: str


@dataclass(frozen=True, slots=True)
class ConfigChanged:
    """Settings, or the network, are not what they were."""


Event = RoomFreed | NodeChanged | VictimGone | ConfigChanged


@dataclass(frozen=True, slots=True)
class No:
    """Why a shape was refused."""

    words: str
    possible: bool = True
    """Whether it could start if nothing ran; False: waiting alone is in vain."""
    why: object = None
    """The planner's own answer: a Refusal, Missing or GangRefusal."""
    words_for: Callable[[str], str] | None = None
    """The words for work of a namespace, where they are not the same for all."""


class Shape:
    """Works that are refused alike."""

    __slots__ = ("behind", "buckets", "key", "milli", "no", "request")

    def __init__(self, key: object, request: Request | GangRequest, milli: int) -> None:
        self.key = key
        self.request = request
        self.milli = milli
        #: why it is parked; None: it is not
        self.no: No | None = None
        #: it is parked because room is kept for others: the version of the holds then; 0: it is not
        self.behind = 0
        #: (level, namespace) -> its works
        self.buckets: dict[tuple[tuple[int, bool], str], Bucket] = {}


class Bucket:
    """Works of one shape, level and namespace: (since, key), the oldest first."""

    __slots__ = ("level", "namespace", "shape", "works")

    def __init__(self, shape: Shape, level: tuple[int, bool], namespace: str) -> None:
        self.shape = shape
        self.level = level
        self.namespace = namespace
        self.works: list[tuple[float, str]] = []


class Parking:
    """Which shapes are awake, which are parked, and what has happened since the last pass."""

    def __init__(self) -> None:
        #: shapes to be tried, in the order they came; dicts for their order, which sets have not
        self.awake: dict[Shape, None] = {}
        self.parked: dict[Shape, None] = {}
        #: how many of them wait only because room is kept for others
        self.behind = 0
        #: rises whenever something else is parked
        self.version = 0
        self._freed: dict[str, None] = {}
        self._changed: dict[str, None] = {}
        self._all = False

    def add(self, shape: Shape) -> None:
        """A work came. Its shape may be parked already; it then stays so unless it is behind others."""
        if shape.no is None:
            self.awake[shape] = None
        elif shape.behind:
            self.wake(shape)
        else:
            self.version += 1

    def park(self, shape: Shape, no: No, *, behind: int = 0) -> None:
        shape.no, shape.behind = no, behind
        self.awake.pop(shape, None)
        self.parked[shape] = None
        self.behind += bool(behind)
        self.version += 1

    def wake(self, shape: Shape) -> None:
        if shape.no is not None:
            self.behind -= bool(shape.behind)
            shape.no, shape.behind = None, 0
            del self.parked[shape]
            self.awake[shape] = None
            self.version += 1

    def remove(self, shape: Shape) -> None:
        self.awake.pop(shape, None)
        if self.parked.pop(shape, shape) is None:
            self.behind -= bool(shape.behind)
            self.version += 1

    def note(self, event: RoomFreed | NodeChanged | ConfigChanged) -> None:
        match event:
            case RoomFreed(node):
                self._freed[node] = None
            case NodeChanged(node):
                self._changed[node] = None
            case ConfigChanged():
                self._all = True

    def settle(self, takes: Callable[[Request | GangRequest, Sequence[str]], bool]) -> bool:
        """Wake whom the events could help; `takes` says whether any of the nodes takes a pod now.

        Returns whether nodes or settings are not what they were.
        """
        if not (self._freed or self._changed or self._all):
            return False
        if self.parked:
            for shape in list(self._helped(takes, (*self._changed, *self._freed))):
                self.wake(shape)
        is_other = bool(self._changed) or self._all
        self._freed.clear()
        self._changed.clear()
        self._all = False
        return is_other

    def _helped(
        self, takes: Callable[[Request | GangRequest, Sequence[str]], bool], nodes: Sequence[str]
    ) -> Iterator[Shape]:
        for shape in self.parked:
            is_possible = shape.no is None or shape.no.possible
            if self._all or (takes(shape.request, nodes) if is_possible else self._changed):
                yield shape

    def wake_behind(self, version: int) -> bool:
        """Holds are now of this version: wake who was stopped by others. Returns whether any were."""
        if not self.behind:
            return False
        woken = [shape for shape in self.parked if shape.behind and shape.behind != version]
        for shape in woken:
            self.wake(shape)
        return bool(woken)
