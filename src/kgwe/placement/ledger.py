"""Who holds what: pods that are bound, seats reserved for pods to come, and pods about to be bound.

An *owner* (a workload, a gang) has numbered seats, one for each pod of its plan. A bound pod takes its seat: it is
counted once, as the pod, and has the seat's cards. When it goes while the owner still has the seat, the seat is
reserved again in the same moment, so nothing is free between two pods of one rank.

A pod that is about to be bound (`assume`) holds its place until the watch shows it bound, or its time is over.

The ledger is memory only: pods come from the API, seats are rebuilt from the plans stored there.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kgwe import errors
from kgwe.placement.live import Fleet, Holding

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from kgwe.placement.snapshot import Grant

Seat = tuple[str, int]

_NO_SEATS: dict[int, Holding] = {}


class Ledger:
    """Bookings on one live fleet."""

    def __init__(self, fleet: Fleet | None = None) -> None:
        self.fleet = fleet or Fleet()
        self._seats: dict[str, dict[int, Holding]] = {}  # owner -> its seats
        self._taken: dict[Seat, str] = {}  # seat -> the bound pod that has it
        self._seat_of: dict[str, Seat] = {}  # pod -> its seat
        self._until: dict[str, float] = {}  # pod that is about to be bound -> until when that is believed

    # --- pods -------------------------------------------------------------------------------------------

    def set_pod(self, uid: str, node: str, wanted: Mapping[str, int], seat: Seat | None = None) -> None:
        """A pod that has not ended is bound to `node`; `seat` is the one it was made for, if any."""
        self._until.pop(uid, None)
        cards = 0
        if seat is not None and self._taken.get(seat, uid) == uid and seat[1] in self._seats.get(seat[0], ()):
            self._take(uid, seat, node)
            cards = self._seats[seat[0]][seat[1]].cards if self._seats[seat[0]][seat[1]].node == node else 0
        elif uid in self._seat_of:
            self._leave(uid)
        self.fleet.hold(uid, Holding(node, wanted, cards))

    def _take(self, uid: str, seat: Seat, node: str) -> None:
        if self._seat_of.get(uid) == seat:
            return
        self._leave(uid)
        self._taken[seat], self._seat_of[uid] = uid, seat
        key = seat_key(*seat)
        if key not in self.fleet:
            return
        if self._seats[seat[0]][seat[1]].node == node and uid not in self.fleet:
            self.fleet.rename(key, uid)
        else:
            self.fleet.drop(key)

    def _leave(self, uid: str) -> None:
        seat = self._seat_of.pop(uid, None)
        if seat is not None:
            del self._taken[seat]

    def remove_pod(self, uid: str) -> bool:
        """The pod ended or is gone; returns whether room came free."""
        self._until.pop(uid, None)
        seat = self._seat_of.get(uid)
        if uid not in self.fleet:
            return False
        self._leave(uid)
        if seat is not None and (holding := self._seats.get(seat[0], {}).get(seat[1])) is not None:
            has = self.fleet.holding(uid)
            if has is not None and has.node == holding.node and has.amounts == holding.amounts:
                self.fleet.rename(uid, seat_key(*seat))
                return False
            self.fleet.drop(uid)
            self.fleet.hold(seat_key(*seat), holding)
            return True
        return self.fleet.drop(uid)

    # --- pods about to be bound -------------------------------------------------------------------------

    def assume(self, uid: str, wanted: Mapping[str, int], grant: Grant, until: float) -> None:
        """The pod was given that place and is expected to be bound there; InvariantBroken when it is not free."""
        self.fleet.seat({uid: wanted}, (grant,))
        self._until[uid] = until

    def forget(self, uid: str) -> bool:
        """It will not be bound there after all; a pod that is bound is left alone."""
        if self._until.pop(uid, None) is None:
            return False
        return self.fleet.drop(uid)

    def expire(self, now: float) -> list[str]:
        """Forget pods whose time is over; returns them."""
        late = [uid for uid, until in self._until.items() if until <= now]
        for uid in late:
            self.forget(uid)
        return late

    @property
    def assumed(self) -> Mapping[str, float]:
        return self._until

    # --- seats ------------------------------------------------------------------------------------------

    def commit(
        self, owner: str, wanted: Sequence[Mapping[str, int]], grants: Sequence[Grant], *, extend: bool = False
    ) -> int:
        """Reserve a fresh plan, a seat for each grant in turn: all of it, or InvariantBroken and nothing.

        Returns the number of the first seat: 0, or with `extend` the next after those the owner has.
        """
        if self._seats.get(owner) and not extend:
            raise errors.InvariantBroken(f"{owner} has seats already")
        start = max(self._seats.get(owner, ()), default=-1) + 1
        self.fleet.seat({seat_key(owner, number): each for number, each in enumerate(wanted, start)}, grants)
        nodes = self.fleet.snapshot.nodes
        self._seats.setdefault(owner, {}).update(
            (number, Holding(nodes[grant.node].name, each, grant.cards))
            for number, (each, grant) in enumerate(zip(wanted, grants, strict=True), start)
        )
        return start

    def reserve(self, owner: str, seats: Mapping[int, Holding]) -> bool:
        """The owner has exactly these seats from now on; returns whether room came free."""
        before = self._seats.get(owner, {})
        freed = False
        for number in [each for each in before if before[each] != seats.get(each)]:
            if self._taken.get((owner, number)) is None:
                freed |= self.fleet.drop(seat_key(owner, number))
            elif number not in seats:
                self._leave(self._taken[owner, number])
        for number, holding in seats.items():
            if (owner, number) not in self._taken and before.get(number) != holding:
                self.fleet.hold(seat_key(owner, number), holding)
        if seats:
            self._seats[owner] = dict(seats)
        else:
            self._seats.pop(owner, None)
        return freed

    def release(self, owner: str) -> bool:
        """Drop the owner's seats; pods that are bound count until they end."""
        return self.reserve(owner, {})

    def seats(self, owner: str) -> Mapping[int, Holding]:
        """Seat -> its place, with the cards booked for it now."""
        return {
            number: replace(holding, cards=self._cards(owner, number) or holding.cards)
            for number, holding in self._seats.get(owner, {}).items()
        }

    def seat(self, owner: str, number: int) -> Holding | None:
        """One seat, as it was reserved."""
        return self._seats.get(owner, _NO_SEATS).get(number)

    def pod_in(self, owner: str, number: int) -> str:
        """Uid of the bound pod that has the seat; empty when none has."""
        return self._taken.get((owner, number), "")

    def owners(self) -> Iterator[str]:
        return iter(self._seats)

    def _cards(self, owner: str, number: int) -> int:
        key = self._taken.get((owner, number)) or seat_key(owner, number)
        holding = self.fleet.holding(key)
        return holding.cards if holding else 0


def seat_key(owner: str, number: int) -> str:
    """What a reserved seat is held under in the fleet."""
    return f"{owner}/{number}"
