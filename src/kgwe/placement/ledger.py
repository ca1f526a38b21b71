"""Who holds what: free = allocatable - requests of non-terminal pods - own reservations.

A reservation is a decision whose pods are not all bound yet. What counts of it is what its owner's bound,
non-terminal pods on that node do not hold already: as pods appear their own requests count instead, and
when one is evicted while the work is not finished its part counts again. So nothing is counted twice, and
nothing is free for a moment between decision and binding.

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
        self._counted: dict[str, Amounts] = {}  # owner -> the part of its reservation that counts now
        self._pods_of: dict[str, set[str]] = {}  # owner -> keys of its bound pods
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
        """A non-terminal pod is bound to `node`; `owner` is empty for pods that are not ours."""
        booking = Booking(owner, node, request)
        if self._pods.get(key) == booking:
            return
        self.remove_pod(key)
        self._pods[key] = booking
        self._count(node, request, 1)
        if owner:
            self._pods_of.setdefault(owner, set()).add(key)
            self._recount(owner)

    def remove_pod(self, key: str) -> bool:
        """The pod ended or is gone; returns whether it held anything."""
        booking = self._pods.pop(key, None)
        if booking is None:
            return False
        self._count(booking.node, booking.amounts, -1)
        if booking.owner:
            keys = self._pods_of[booking.owner]
            keys.discard(key)
            if not keys:
                del self._pods_of[booking.owner]
            self._recount(booking.owner)
        return True

    def reserve(self, owner: str, node: str, request: Mapping[str, int]) -> None:
        """Hold `request` on `node` for `owner` until released. Reserving the same again changes nothing."""
        booking = Booking(owner, node, request)
        if self._reserved.get(owner) == booking:
            return
        self.release(owner)
        self._reserved[owner] = booking
        self._recount(owner)

    def release(self, owner: str) -> bool:
        """Drop the owner's reservation; its bound pods, if any, still count until they end."""
        if owner not in self._reserved:
            return False
        counted = self._counted.pop(owner, {})
        self._count(self._reserved.pop(owner).node, counted, -1)
        return True

    # --- what is left -----------------------------------------------------------------------------------

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
        for pod in self._pods.values():
            amounts.add(expected.setdefault(pod.node, {}), pod.amounts)
        for owner, reservation in self._reserved.items():
            amounts.add(expected.setdefault(reservation.node, {}), self._unbound(owner, reservation))
        if {n: a for n, a in expected.items() if a} != {n: a for n, a in self._used.items() if a}:
            raise errors.InvariantBroken(f"ledger drifted: counted {self._used}, bookings say {expected}")

    def _recount(self, owner: str) -> None:
        reservation = self._reserved.get(owner)
        if reservation is None:
            return
        counted = self._unbound(owner, reservation)
        self._count(reservation.node, self._counted.get(owner, {}), -1)
        self._count(reservation.node, counted, 1)
        self._counted[owner] = counted

    def _unbound(self, owner: str, reservation: Booking) -> Amounts:
        """What the owner reserved beyond what its pods on that node hold already."""
        pods = (self._pods[key] for key in self._pods_of.get(owner, ()))
        bound = amounts.total(pod.amounts for pod in pods if pod.node == reservation.node)
        missing = {name: amount - bound.get(name, 0) for name, amount in reservation.amounts.items()}
        return {name: amount for name, amount in missing.items() if amount > 0}

    def _count(self, node: str, request: Mapping[str, int], sign: int) -> None:
        held = self._used.setdefault(node, {})
        amounts.add(held, request, sign)
        if not held:
            del self._used[node]
