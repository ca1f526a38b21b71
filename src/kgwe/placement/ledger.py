"""Who holds what: free = allocatable - requests of non-terminal pods - own reservations.

A reservation is a decision whose pod is not bound yet. It counts exactly while its owner has no bound,
non-terminal pod; when the pod appears the pod's own request counts instead, and when the pod is evicted
while the work is not finished the reservation counts again. So nothing is counted twice, and nothing is
free for a moment between decision and binding.

The ledger is memory only: pods come from the API, reservations are rebuilt from the Jobs there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kgwe import errors
from kgwe.model import amounts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kgwe.model.amounts import Amounts
    from kgwe.placement.ask import NodeFacts


class Booking(NamedTuple):
    """A pod's request, or a reservation, on one node."""

    owner: str
    node: str
    amounts: Mapping[str, int]


class Ledger:
    """Nodes, bookings and what is left; every change keeps `free` exact."""

    def __init__(self) -> None:
        self._facts: dict[str, NodeFacts] = {}
        self._used: dict[str, Amounts] = {}  # node -> what pods and counted reservations hold
        self._pods: dict[str, Booking] = {}  # pod key -> booking
        self._reserved: dict[str, Booking] = {}  # owner -> reservation
        self._bound: dict[str, int] = {}  # owner -> number of its bound pods
        #: raised whenever a node's facts change: caches of static matches compare it
        self.generation = 0

    # --- nodes ------------------------------------------------------------------------------------------

    def set_node(self, facts: NodeFacts) -> bool:
        """Record a node; returns whether anything placement cares about changed."""
        if self._facts.get(facts.name) == facts:
            return False
        self._facts[facts.name] = facts
        self.generation += 1
        return True

    def remove_node(self, name: str) -> None:
        if self._facts.pop(name, None) is not None:
            self.generation += 1

    def nodes(self) -> Iterator[NodeFacts]:
        return iter(self._facts.values())

    def node(self, name: str) -> NodeFacts | None:
        return self._facts.get(name)

    # --- bookings ---------------------------------------------------------------------------------------

    def set_pod(self, key: str, owner: str, node: str, request: Mapping[str, int]) -> None:
        """A non-terminal pod is bound to `node`. Its owner's reservation stops counting."""
        booking = Booking(owner, node, request)
        if self._pods.get(key) == booking:
            return
        self.remove_pod(key)
        self._pods[key] = booking
        self._count(booking, 1)
        if owner:
            if not self._bound.get(owner) and (reservation := self._reserved.get(owner)):
                self._count(reservation, -1)
            self._bound[owner] = self._bound.get(owner, 0) + 1

    def remove_pod(self, key: str) -> bool:
        """The pod ended or is gone; returns whether it held anything."""
        booking = self._pods.pop(key, None)
        if booking is None:
            return False
        self._count(booking, -1)
        if booking.owner:
            self._bound[booking.owner] -= 1
            if not self._bound[booking.owner]:
                del self._bound[booking.owner]
                if reservation := self._reserved.get(booking.owner):
                    self._count(reservation, 1)
        return True

    def reserve(self, owner: str, node: str, request: Mapping[str, int]) -> None:
        """Hold `request` on `node` for `owner` until released. Reserving the same again changes nothing."""
        booking = Booking(owner, node, request)
        known = self._reserved.get(owner)
        if known == booking:
            return
        if known is not None:
            self.release(owner)
        self._reserved[owner] = booking
        if not self._bound.get(owner):
            self._count(booking, 1)

    def release(self, owner: str) -> bool:
        """Drop the owner's reservation; its bound pods, if any, still count until they end."""
        booking = self._reserved.pop(owner, None)
        if booking is None:
            return False
        if not self._bound.get(owner):
            self._count(booking, -1)
        return True

    def reservation(self, owner: str) -> Booking | None:
        return self._reserved.get(owner)

    # --- what is left -----------------------------------------------------------------------------------

    def used(self, node: str) -> Mapping[str, int]:
        return self._used.get(node, {})

    def free(self, node: str, resource: str) -> int:
        """May be negative: pods bound by others, or a card that died under its pod."""
        facts = self._facts.get(node)
        held = self._used.get(node, {}).get(resource, 0)
        return (facts.allocatable.get(resource, 0) if facts else 0) - held

    def lacking(self, facts: NodeFacts, request: Mapping[str, int]) -> str | None:
        """The first resource of which the node has too little left for `request`, or None if it fits."""
        held = self._used.get(facts.name)
        allocatable = facts.allocatable
        for resource, amount in request.items():
            if allocatable.get(resource, 0) - (held.get(resource, 0) if held else 0) < amount:
                return resource
        return None

    def check(self) -> None:
        """Recount from the bookings; raises InvariantBroken when the running totals have drifted."""
        expected: dict[str, Amounts] = {}
        counted = [*self._pods.values(), *(r for o, r in self._reserved.items() if not self._bound.get(o))]
        for booking in counted:
            amounts.add(expected.setdefault(booking.node, {}), booking.amounts)
        if {n: a for n, a in expected.items() if a} != {n: a for n, a in self._used.items() if a}:
            raise errors.InvariantBroken(f"ledger drifted: counted {self._used}, bookings say {expected}")

    def _count(self, booking: Booking, sign: int) -> None:
        held = self._used.setdefault(booking.node, {})
        amounts.add(held, booking.amounts, sign)
        if not held:
            del self._used[booking.node]
