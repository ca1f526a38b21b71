"""Who holds what: pods that are bound, seats reserved for pods to come, and pods about to be bound.

An *owner* (a workload, a gang) has numbered seats, one for each pod of its plan. A bound pod takes its seat: it is
counted once, as the pod, and has the seat's cards. When it goes while the owner still has the seat, the seat is
reserved again in the same moment, so nothing is free between two pods of one rank. A seat may be given another node
under its pod: then both places are held, the old one by the pod until it goes.

A pod that is about to be bound (`assume`) holds its place until the watch shows it bound, or its time is over.

The ledger is memory only: pods come from the API, seats are rebuilt from the plans stored there.

It announces freed capacity itself: `on_freed` is called at the end of every change that may let waiting work in, when
the ledger is consistent again. `withdraw` and `forget` announce nothing: their caller decides about the same capacity
at once.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING

from kgwe import errors
from kgwe.model.devices.assignment import NOWHERE, Places
from kgwe.placement.live.fleet import Fleet, Holding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from kgwe.placement.fleet.snapshot import Grant

Seat = tuple[str, int]

_NO_SEATS: dict[int, Holding] = {}


class Ledger:
    """Bookings on one live fleet."""

    def __init__(self, fleet: Fleet | None = None, *, on_freed: Callable[[], None] | None = None) -> None:
        """`on_freed` is called after capacity was freed."""
        self.fleet = fleet or Fleet()
        self._on_freed = on_freed
        self._seats: dict[str, dict[int, Holding]] = {}  # owner -> its seats
        self._taken: dict[Seat, str] = {}  # seat -> the bound pod that has it
        self._seat_of: dict[str, Seat] = {}  # pod -> its seat
        self._beside: dict[Seat, dict[str, None]] = {}  # seat -> bound pods made for it while another has it
        self._wants: dict[str, Seat] = {}  # such a pod -> the seat it was made for
        self._until: dict[str, float] = {}  # pod that is about to be bound -> until when that is believed

    # --- pods -------------------------------------------------------------------------------------------

    def set_pod(
        self,
        uid: str,
        node: str,
        wanted: Mapping[str, int],
        seat: Seat | None = None,
        *,
        given: Places = NOWHERE,
        observed: Places = NOWHERE,
    ) -> None:
        """Count a pod that is bound to `node` and has not ended.

        `seat` is the seat it was created for, if any; `given` the devices it was assigned, unless its seat names them;
        `observed` the devices its kubelet reports, which override every plan.
        """
        before = self.fleet.recorded(uid)
        devices = observed or given
        self._book_pod(uid, Holding(node, wanted, devices.cards, devices.slices, certain=bool(observed)), seat)
        self._announce(before is not None and (before.node, before.amounts) != (node, wanted))

    def _book_pod(self, uid: str, holding: Holding, seat: Seat | None) -> None:
        self._until.pop(uid, None)
        self._stand_aside(uid, seat if seat is not None and self._taken.get(seat, uid) != uid else None)
        planned = self._seats.get(seat[0], _NO_SEATS).get(seat[1]) if seat is not None else None
        if planned is None or seat is None or planned.node != holding.node or self._taken.get(seat, uid) != uid:
            self._leave(uid)
            self.fleet.hold(uid, holding)
            return
        if not holding.certain:
            cards, slices = planned.cards or holding.cards, planned.slices or holding.slices
            holding = replace(holding, cards=cards, slices=slices)
        if self._seat_of.get(uid) == seat:
            self.fleet.hold(uid, holding)
            return
        self._leave(uid)
        self._taken[seat], self._seat_of[uid] = uid, seat
        self.fleet.move(seat_key(*seat), uid, holding)

    def _stand_aside(self, uid: str, seat: Seat | None) -> None:
        """Remember which seat the pod was made for while another pod has it."""
        if (before := self._wants.pop(uid, None)) is not None:
            beside = self._beside[before]
            del beside[uid]
            if not beside:
                del self._beside[before]
        if seat is not None:
            self._wants[uid] = seat
            self._beside.setdefault(seat, {})[uid] = None

    def successors(self, uid: str) -> list[str]:
        """Bound pods that were made for the seat this pod has."""
        seat = self._seat_of.get(uid)
        return list(self._beside.get(seat, ())) if seat is not None else []

    def _leave(self, uid: str) -> None:
        """It has no seat any more; one that its owner keeps is reserved for the next."""
        seat = self._seat_of.pop(uid, None)
        if seat is None:
            return
        del self._taken[seat]
        planned = self._seats.get(seat[0], _NO_SEATS).get(seat[1])
        if planned is not None:
            self.fleet.hold(seat_key(*seat), planned)

    def remove_pod(self, uid: str) -> bool:
        """The pod ended or is gone; returns whether room came free."""
        self._until.pop(uid, None)
        self._stand_aside(uid, None)
        seat = self._seat_of.pop(uid, None)
        if seat is None:
            return self._announce(self.fleet.drop(uid))
        del self._taken[seat]
        planned = self._seats[seat[0]][seat[1]]
        had = self.fleet.recorded(uid)
        self.fleet.move(uid, seat_key(*seat), planned)
        return self._announce(had is not None and (had.node, had.amounts) != (planned.node, planned.amounts))

    # --- devices of resource claims ---------------------------------------------------------------------

    def hold(self, key: str, holding: Holding) -> None:
        """Count devices that neither a pod nor a seat holds, such as those of a resource claim."""
        self.fleet.hold(key, holding)

    def drop(self, key: str) -> bool:
        """Free what `hold` counted; returns whether there was such a holder."""
        return self._announce(self.fleet.drop(key))

    # --- pods about to be bound -------------------------------------------------------------------------

    def assume(self, uid: str, wanted: Mapping[str, int], grant: Grant, until: float) -> None:
        """The pod was given that place and is expected to be bound there; InvariantBroken when it is not free."""
        self.forget(uid)
        self.fleet.seat({uid: wanted}, (grant,))
        self._until[uid] = until

    def forget(self, uid: str) -> bool:
        """It will not be bound there after all; a pod that is bound is left alone."""
        if self._until.pop(uid, None) is None:
            return False
        return self.fleet.drop(uid)

    def expire(self, now: float) -> list[str]:
        """Forget pods whose time is over; returns them."""
        # In the order they were assumed, which is that of their ends: the first that has time ends the search.
        late = [uid for uid, _ in itertools.takewhile(lambda each: each[1] <= now, self._until.items())]
        for uid in late:
            self.forget(uid)
        self._announce(bool(late))
        return late

    @property
    def assumed(self) -> Mapping[str, float]:
        return self._until

    # --- seats ------------------------------------------------------------------------------------------

    def commit(
        self,
        owner: str,
        wanted: Sequence[Mapping[str, int]],
        grants: Sequence[Grant],
        nodes: Sequence[str],
        *,
        extend: bool = False,
    ) -> int:
        """Reserve a fresh plan, a seat for each grant in turn: all of it, or InvariantBroken and nothing.

        `nodes` are the names of the grants' nodes: the plan may be of a fleet whose nodes had other numbers. Returns
        the number of the first seat: 0, or with `extend` the next after those the owner has.
        """
        if self._seats.get(owner) and not extend:
            raise errors.InvariantBroken(f"{owner} has seats already")
        start = max(self._seats.get(owner, ()), default=-1) + 1
        placed = [_at(grant, self._number(node)) for grant, node in zip(grants, nodes, strict=True)]
        self.fleet.seat({seat_key(owner, number): each for number, each in enumerate(wanted, start)}, placed)
        made = self._seats.setdefault(owner, {})
        for number in range(start, start + len(placed)):
            made[number] = self.fleet.planned(seat_key(owner, number))
        return start

    def _number(self, node: str) -> int:
        snapshot = self.fleet.snapshot
        number = snapshot.index.get(node)
        if number is None or not snapshot.ready[number]:
            raise errors.InvariantBroken(f"{node} is gone, or takes no work")
        return number

    def reserve(self, owner: str, seats: Mapping[int, Holding]) -> bool:
        """The owner has exactly these seats from now on; returns whether room came free."""
        return self._announce(self._reserve(owner, seats))

    def _reserve(self, owner: str, seats: Mapping[int, Holding]) -> bool:
        before = self._seats.pop(owner, _NO_SEATS)
        if seats:
            self._seats[owner] = dict(seats)
        freed = False
        for number, had in before.items():
            kept = seats.get(number)
            if (pod := self._taken.get((owner, number))) is not None:
                if kept is None or kept.node != had.node:
                    self._leave(pod)
            elif kept is None:
                freed |= self.fleet.drop(seat_key(owner, number))
        for number, holding in seats.items():
            if (owner, number) not in self._taken:
                self.fleet.hold(seat_key(owner, number), holding)
                had = before.get(number, holding)
                freed |= (had.node, had.amounts) != (holding.node, holding.amounts)
        return freed

    def drop_unfit(self, owner: str, numbers: Iterable[int]) -> list[int]:
        """Of these seats, drop those that no pod has and for which their node, if it is there, has no room.

        For seats that are restored from the API: a seat that does not fit beside the pods of its node reserves nothing.
        Returns those that were dropped.
        """
        unfit = self._drop_unfit(owner, numbers)
        self._announce(bool(unfit))
        return unfit

    def _drop_unfit(self, owner: str, numbers: Iterable[int]) -> list[int]:
        unfit = []
        for number in numbers:
            seat = self.seat(owner, number)
            if seat is None or (owner, number) in self._taken or self.fleet.node(seat.node) is None:
                continue
            if not self.fleet.is_whole(seat_key(owner, number)) or self.fleet.is_short(seat.node):
                self._vacate(owner, number)
                unfit.append(number)
        return unfit

    def restore(self, owner: str, number: int, holding: Holding, *, is_bound: bool = False) -> bool:
        """Reserve one more seat if there is room for it, or its node is not known yet; returns whether it is reserved.

        `is_bound`: its pod is there already and is counted next, in this seat.
        """
        self._seats.setdefault(owner, {})[number] = holding
        self.fleet.hold(seat_key(owner, number), holding)
        return is_bound or not self._drop_unfit(owner, (number,))

    def vacate(self, owner: str, number: int) -> bool:
        """The owner has this seat no longer; returns whether room came free. A pod in it counts until it ends."""
        return self._announce(self._vacate(owner, number))

    def _vacate(self, owner: str, number: int) -> bool:
        seats = self._seats.get(owner, _NO_SEATS)
        if seats.pop(number, None) is None:
            return False
        if not seats:
            del self._seats[owner]
        if (pod := self._taken.get((owner, number))) is not None:
            self._leave(pod)
            return False
        return self.fleet.drop(seat_key(owner, number))

    def release(self, owner: str) -> bool:
        """Drop the owner's seats; pods that are bound count until they end."""
        return self.reserve(owner, {})

    def withdraw(self, owner: str) -> Mapping[int, Holding]:
        """Drop the owner's seats without an announcement, to decide about them again; returns them."""
        had = self._seats.get(owner, _NO_SEATS)
        self._reserve(owner, {})
        return had

    def seats(self, owner: str) -> Mapping[int, Holding]:
        """Seat -> its place, with the cards booked for it now."""
        return {number: self._booked(owner, number, each) for number, each in self._seats.get(owner, {}).items()}

    def places(self, owner: str) -> Mapping[int, Holding]:
        """All its seats, as they were reserved."""
        return self._seats.get(owner, _NO_SEATS)

    def seat(self, owner: str, number: int) -> Holding | None:
        """One seat, as it was reserved."""
        return self._seats.get(owner, _NO_SEATS).get(number)

    def booked(self, owner: str, number: int) -> Holding | None:
        """One seat, with the cards booked for it now."""
        planned = self.seat(owner, number)
        return None if planned is None else self._booked(owner, number, planned)

    def has_seats(self, owner: str) -> bool:
        return owner in self._seats

    def grants(self, owner: str) -> list[Grant]:
        """What its seats, and the pods in them, hold."""
        return [
            grant
            for number in self._seats.get(owner, ())
            for grant in self.fleet.grants(self._taken.get((owner, number)) or seat_key(owner, number))
        ]

    def pod_in(self, owner: str, number: int) -> str:
        """Uid of the bound pod that has the seat; empty when none has."""
        return self._taken.get((owner, number), "")

    def owners(self) -> Iterator[str]:
        return iter(self._seats)

    def lacking(self, owner: str) -> list[int]:
        """Seats without a pod for which the node has not all the cards they need, or is not there."""
        return [
            number
            for number in self._seats.get(owner, _NO_SEATS)
            if (owner, number) not in self._taken and not self.fleet.is_whole(seat_key(owner, number))
        ]

    def _announce(self, freed: bool) -> bool:  # noqa: FBT001 - passed on
        if freed and self._on_freed is not None:
            self._on_freed()
        return freed

    def _booked(self, owner: str, number: int, planned: Holding) -> Holding:
        now = self.fleet.holding(self._taken.get((owner, number)) or seat_key(owner, number))
        if now is None or now.node != planned.node:
            return planned
        return replace(planned, cards=now.cards or planned.cards, slices=now.slices or planned.slices)


def _at(grant: Grant, node: int) -> Grant:
    return grant if grant.node == node else replace(grant, node=node)


def seat_key(owner: str, number: int) -> str:
    """What a reserved seat is held under in the fleet."""
    return f"{owner}/{number}"
