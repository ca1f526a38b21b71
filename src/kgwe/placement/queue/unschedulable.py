"""Request classes that were refused wait here until an event could help them.

Workloads with the same request are refused alike, so the class is unschedulable: ten thousand equal workloads cost one
attempt, and one more each time the class is activated. Events are collected and examined once per cycle:

    RoomFreed(node)     activates classes of which a pod now fits on the node
    NodeChanged(node)   the same, and all that could not start even on an empty fleet
    VictimGone(key)     activates the class of the workload that preempted it
    ConfigChanged()     activates all

A class that fits only on nodes reserved for others is also activated when reservations change, and by a new workload
of the class: that one may be short enough to backfill.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from kgwe.placement.fleet.node import Request
    from kgwe.placement.gang.request import GangRequest
    from kgwe.placement.refusal import Refusal


@dataclass(frozen=True, slots=True)
class RoomFreed:
    """Capacity on the node was freed."""

    node: str


@dataclass(frozen=True, slots=True)
class NodeChanged:
    """The node is new, or its readiness, health or labels changed."""

    node: str


@dataclass(frozen=True, slots=True)
class VictimGone:
    """A victim that was evicted for the workload of this key has gone."""

    key: str


@dataclass(frozen=True, slots=True)
class ConfigChanged:
    """Settings or the network topology changed."""


Event = RoomFreed | NodeChanged | VictimGone | ConfigChanged


class RequestClass:
    """Workloads with the same request: all of them fit, or none."""

    __slots__ = ("blocked_at", "buckets", "key", "milli", "refusal", "request")

    def __init__(self, key: object, request: Request | GangRequest, milli: int) -> None:
        self.key = key
        self.request = request
        self.milli = milli
        #: why it is unschedulable; None: it is active
        self.refusal: Refusal | None = None
        #: version of the reservations that blocked it; 0: no reservation did
        self.blocked_at = 0
        #: (level, namespace) -> its workloads
        self.buckets: dict[tuple[tuple[int, bool], str], Bucket] = {}


class Bucket:
    """Workloads of one request class, level and namespace: (since, key), the oldest first."""

    __slots__ = ("level", "namespace", "request_class", "workloads")

    def __init__(self, request_class: RequestClass, level: tuple[int, bool], namespace: str) -> None:
        self.request_class = request_class
        self.level = level
        self.namespace = namespace
        self.workloads: list[tuple[float, str]] = []


class UnschedulablePool:
    """Active and unschedulable request classes, and the events since the last cycle."""

    def __init__(self) -> None:
        #: classes to try, in order of arrival (a dict keeps the order)
        self.active: dict[RequestClass, None] = {}
        self.unschedulable: dict[RequestClass, None] = {}
        #: how many of them are blocked only by reservations
        self.blocked = 0
        #: rises whenever the unschedulable classes change
        self.version = 0
        self._freed: dict[str, None] = {}
        self._changed: dict[str, None] = {}
        self._all = False

    def add(self, request_class: RequestClass) -> None:
        """Add a class that got a workload. An unschedulable class stays so unless only reservations block it."""
        if request_class.refusal is None:
            self.active[request_class] = None
        elif request_class.blocked_at:
            self.activate(request_class)
        else:
            self.version += 1

    def mark_unschedulable(self, request_class: RequestClass, refusal: Refusal, *, behind: int = 0) -> None:
        request_class.refusal, request_class.blocked_at = refusal, behind
        self.active.pop(request_class, None)
        self.unschedulable[request_class] = None
        self.blocked += bool(behind)
        self.version += 1

    def activate(self, request_class: RequestClass) -> None:
        if request_class.refusal is not None:
            self.blocked -= bool(request_class.blocked_at)
            request_class.refusal, request_class.blocked_at = None, 0
            del self.unschedulable[request_class]
            self.active[request_class] = None
            self.version += 1

    def remove(self, request_class: RequestClass) -> None:
        self.active.pop(request_class, None)
        if self.unschedulable.pop(request_class, request_class) is None:
            self.blocked -= bool(request_class.blocked_at)
            self.version += 1

    def record_event(self, event: RoomFreed | NodeChanged | ConfigChanged) -> None:
        match event:
            case RoomFreed(node):
                self._freed[node] = None
            case NodeChanged(node):
                self._changed[node] = None
            case ConfigChanged():
                self._all = True

    def activate_helped(self, takes: Callable[[Request | GangRequest, Sequence[str]], bool]) -> bool:
        """Activate classes that the events could help; `takes` tells whether a pod fits on any of the nodes now.

        Returns whether nodes or settings changed.
        """
        if not (self._freed or self._changed or self._all):
            return False
        if self.unschedulable:
            for request_class in list(self._find_helped(takes, (*self._changed, *self._freed))):
                self.activate(request_class)
        is_other = bool(self._changed) or self._all
        self._freed.clear()
        self._changed.clear()
        self._all = False
        return is_other

    def _find_helped(
        self, takes: Callable[[Request | GangRequest, Sequence[str]], bool], nodes: Sequence[str]
    ) -> Iterator[RequestClass]:
        for request_class in self.unschedulable:
            is_possible = request_class.refusal is None or request_class.refusal.possible
            if self._all or (takes(request_class.request, nodes) if is_possible else self._changed):
                yield request_class

    def activate_blocked(self, version: int) -> bool:
        """Activate classes that reservations of another version blocked; returns whether there were any."""
        if not self.blocked:
            return False
        woken = [
            request_class
            for request_class in self.unschedulable
            if request_class.blocked_at and request_class.blocked_at != version
        ]
        for request_class in woken:
            self.activate(request_class)
        return bool(woken)
