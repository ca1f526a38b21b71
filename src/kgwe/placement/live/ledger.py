"""The ledger of GPU capacity: bound pods, reserved seats, and pods assumed to be bound soon.

An *owner* (a workload, a gang) has numbered seats, one for each pod of its plan. A bound pod takes its seat: it is
counted once, as the pod, and has the seat's GPUs. When it ends while the owner keeps the seat, the seat is reserved
again atomically. A seat may move to another node while its pod runs: then both places are held, the old one by the pod
until it ends.

A pod that is about to be bound (`assume_pod`) holds its place until the watch shows it bound, or its time is over.

The ledger is memory only: pods come from the API, seats are rebuilt from the plans stored there.

It announces freed capacity itself: `on_freed` is called at the end of every change that may let a waiting workload in,
when the ledger is consistent again. `withdraw_seats` and `forget_pod` announce nothing: their caller decides about the
same capacity at once.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING

from kgwe import errors
from kgwe.model.devices.assignment import NO_DEVICES, DeviceSet
from kgwe.placement.live.fleet import LiveFleet
from kgwe.placement.live.holding import Holding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from kgwe.placement.fleet.snapshot import Grant

Seat = tuple[str, int]

_NO_SEATS: dict[int, Holding] = {}


class Ledger:
    """Pods and seats booked on one live fleet."""

    def __init__(self, fleet: LiveFleet | None = None, *, on_freed: Callable[[], None] | None = None) -> None:
        """`on_freed` is called after capacity was freed."""
        self.fleet = fleet or LiveFleet()
        self._on_freed = on_freed
        self._seats: dict[str, dict[int, Holding]] = {}  # owner -> its seats
        self._taken: dict[Seat, str] = {}  # seat -> its bound pod
        self._seat_of: dict[str, Seat] = {}  # pod -> its seat
        self._waiting_for: dict[
            Seat, dict[str, None]
        ] = {}  # seat -> bound pods created for it while another pod has it
        self._wanted_seat: dict[str, Seat] = {}  # such a pod -> the seat it was created for
        self._assumed: dict[str, float] = {}  # pod assumed to be bound soon -> until when

    # --- pods -------------------------------------------------------------------------------------------

    def set_pod(
        self,
        uid: str,
        node: str,
        wanted: Mapping[str, int],
        seat: Seat | None = None,
        *,
        given: DeviceSet = NO_DEVICES,
        observed: DeviceSet = NO_DEVICES,
    ) -> None:
        """Count a pod that is bound to `node` and has not ended.

        `seat` is the seat it was created for, if any; `given` the devices it was assigned, unless its seat names them;
        `observed` the devices its kubelet reports, which override every plan.
        """
        before = self.fleet.recorded_holding(uid)
        devices = observed or given
        self._book_pod(uid, Holding(node, wanted, devices.gpus, devices.slices, observed=bool(observed)), seat)
        self._announce(before is not None and (before.node, before.amounts) != (node, wanted))

    def _book_pod(self, uid: str, holding: Holding, seat: Seat | None) -> None:
        self._assumed.pop(uid, None)
        self._set_wanted_seat(uid, seat if seat is not None and self._taken.get(seat, uid) != uid else None)
        planned = self._seats.get(seat[0], _NO_SEATS).get(seat[1]) if seat is not None else None
        if planned is None or seat is None or planned.node != holding.node or self._taken.get(seat, uid) != uid:
            self._leave_seat(uid)
            self.fleet.hold(uid, holding)
            return
        if not holding.observed:
            gpus, slices = planned.gpus or holding.gpus, planned.slices or holding.slices
            holding = replace(holding, gpus=gpus, slices=slices)
        if self._seat_of.get(uid) == seat:
            self.fleet.hold(uid, holding)
            return
        self._leave_seat(uid)
        self._taken[seat], self._seat_of[uid] = uid, seat
        self.fleet.move(seat_key(*seat), uid, holding)

    def _set_wanted_seat(self, uid: str, seat: Seat | None) -> None:
        """Remember which seat the pod was created for while another pod has it."""
        if (before := self._wanted_seat.pop(uid, None)) is not None:
            beside = self._waiting_for[before]
            del beside[uid]
            if not beside:
                del self._waiting_for[before]
        if seat is not None:
            self._wanted_seat[uid] = seat
            self._waiting_for.setdefault(seat, {})[uid] = None

    def successors(self, uid: str) -> list[str]:
        """Bound pods that were created for the seat this pod has."""
        seat = self._seat_of.get(uid)
        return list(self._waiting_for.get(seat, ())) if seat is not None else []

    def _leave_seat(self, uid: str) -> None:
        """Take the pod out of its seat; a seat that its owner keeps is reserved again."""
        seat = self._seat_of.pop(uid, None)
        if seat is None:
            return
        del self._taken[seat]
        planned = self._seats.get(seat[0], _NO_SEATS).get(seat[1])
        if planned is not None:
            self.fleet.hold(seat_key(*seat), planned)

    def remove_pod(self, uid: str) -> bool:
        """Remove a pod that ended or was deleted; returns whether capacity was freed."""
        self._assumed.pop(uid, None)
        self._set_wanted_seat(uid, None)
        seat = self._seat_of.pop(uid, None)
        if seat is None:
            return self._announce(self.fleet.drop(uid))
        del self._taken[seat]
        planned = self._seats[seat[0]][seat[1]]
        had = self.fleet.recorded_holding(uid)
        self.fleet.move(uid, seat_key(*seat), planned)
        return self._announce(had is not None and (had.node, had.amounts) != (planned.node, planned.amounts))

    # --- devices of resource claims ---------------------------------------------------------------------

    def hold_devices(self, key: str, holding: Holding) -> None:
        """Count devices that neither a pod nor a seat holds, such as those of a resource claim."""
        self.fleet.hold(key, holding)

    def drop_devices(self, key: str) -> bool:
        """Free the devices that `hold_devices` counted; returns whether there were any."""
        return self._announce(self.fleet.drop(key))

    # --- pods about to be bound -------------------------------------------------------------------------

    def assume_pod(self, uid: str, wanted: Mapping[str, int], grant: Grant, until: float) -> None:
        """Book a pod that should be bound there soon; InvariantBroken when the capacity is not free."""
        self.forget_pod(uid)
        self.fleet.reserve_plan({uid: wanted}, (grant,))
        self._assumed[uid] = until

    def try_assume_pod(
        self, uid: str, reserved_as: str, decide: Callable[[], tuple[Mapping[str, int], Grant] | None], until: float
    ) -> bool:
        """Assume what `decide` finds for a pod; when it finds nothing, returns False and its reservation is unchanged.

        `decide` sees the fleet without what the pod has already: an earlier assumption, and the seats reserved for it
        under `reserved_as`.
        """
        self.forget_pod(uid)
        reserved = self.withdraw_seats(reserved_as)
        found = decide()
        if found is None:
            self.reserve_seats(reserved_as, reserved)
            return False
        wanted, grant = found
        self.assume_pod(uid, wanted, grant, until)
        return True

    def forget_pod(self, uid: str) -> bool:
        """Give up the assumed place of a pod; a bound pod keeps its place."""
        if self._assumed.pop(uid, None) is None:
            return False
        return self.fleet.drop(uid)

    def expire_assumed(self, now: float) -> list[str]:
        """Give up the places of pods that were not bound in time; returns those pods."""
        if next(iter(self._assumed.values()), now + 1) > now:
            return []
        # Pods are in the order of their deadlines: stop at the first that still has time.
        late = [uid for uid, _ in itertools.takewhile(lambda each: each[1] <= now, self._assumed.items())]
        for uid in late:
            self.forget_pod(uid)
        self._announce(bool(late))
        return late

    @property
    def assumed(self) -> Mapping[str, float]:
        return self._assumed

    # --- seats ------------------------------------------------------------------------------------------

    def commit_plan(
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
        placed = [_on_node(grant, self._node_number(node)) for grant, node in zip(grants, nodes, strict=True)]
        reserved = self.fleet.reserve_plan(
            {seat_key(owner, number): each for number, each in enumerate(wanted, start)}, placed
        )
        made = self._seats.setdefault(owner, {})
        made.update(enumerate(reserved, start))
        return start

    def _node_number(self, node: str) -> int:
        snapshot = self.fleet.snapshot
        number = snapshot.index.get(node)
        if number is None or not snapshot.ready[number]:
            raise errors.InvariantBroken(f"{node} is gone or unschedulable")
        return number

    def reserve_seats(self, owner: str, seats: Mapping[int, Holding]) -> bool:
        """Give the owner exactly these seats; returns whether capacity was freed."""
        return self._announce(self._reserve_seats(owner, seats))

    def _reserve_seats(self, owner: str, seats: Mapping[int, Holding]) -> bool:
        before = self._seats.pop(owner, _NO_SEATS)
        if seats:
            self._seats[owner] = dict(seats)
        freed = False
        for number, had in before.items():
            kept = seats.get(number)
            if (pod := self._taken.get((owner, number))) is not None:
                if kept is None or kept.node != had.node:
                    self._leave_seat(pod)
            elif kept is None:
                freed |= self.fleet.drop(seat_key(owner, number))
        for number, holding in seats.items():
            if (owner, number) not in self._taken:
                self.fleet.hold(seat_key(owner, number), holding)
                had = before.get(number, holding)
                freed |= (had.node, had.amounts) != (holding.node, holding.amounts)
        return freed

    def drop_unfit_seats(self, owner: str, numbers: Iterable[int]) -> list[int]:
        """Drop those of these seats that no pod has and that do not fit on their node, if the node is known.

        For seats restored from the API: a seat that does not fit beside the pods of its node reserves nothing. Returns
        the dropped seats.
        """
        unfit = self._drop_unfit_seats(owner, numbers)
        self._announce(bool(unfit))
        return unfit

    def _drop_unfit_seats(self, owner: str, numbers: Iterable[int]) -> list[int]:
        unfit = []
        for number in numbers:
            seat = self.reserved_seat(owner, number)
            if seat is None or (owner, number) in self._taken or self.fleet.node(seat.node) is None:
                continue
            if not self.fleet.is_fully_booked(seat_key(owner, number)) or self.fleet.is_overbooked(seat.node):
                self._release_seat(owner, number)
                unfit.append(number)
        return unfit

    def restore_seat(self, owner: str, number: int, holding: Holding, *, is_bound: bool = False) -> bool:
        """Reserve one more seat if it fits, or its node is not known yet; returns whether it is reserved.

        `is_bound`: its pod is bound already and is counted next, in this seat.
        """
        self._seats.setdefault(owner, {})[number] = holding
        self.fleet.hold(seat_key(owner, number), holding)
        return is_bound or not self._drop_unfit_seats(owner, (number,))

    def release_seat(self, owner: str, number: int) -> bool:
        """Release one seat; returns whether capacity was freed. A pod in it counts until it ends."""
        return self._announce(self._release_seat(owner, number))

    def _release_seat(self, owner: str, number: int) -> bool:
        seats = self._seats.get(owner, _NO_SEATS)
        if seats.pop(number, None) is None:
            return False
        if not seats:
            del self._seats[owner]
        if (pod := self._taken.get((owner, number))) is not None:
            self._leave_seat(pod)
            return False
        return self.fleet.drop(seat_key(owner, number))

    def release_seats(self, owner: str) -> bool:
        """Release all seats of the owner; bound pods count until they end."""
        return self.reserve_seats(owner, {})

    def withdraw_seats(self, owner: str) -> Mapping[int, Holding]:
        """Drop the owner's seats without an announcement, to decide about them again; returns them."""
        had = self._seats.get(owner, _NO_SEATS)
        if had:
            self._reserve_seats(owner, {})
        return had

    def booked_seats(self, owner: str) -> Mapping[int, Holding]:
        """Seat number -> its place, with the devices booked for it now."""
        return {
            number: self._with_booked_devices(owner, number, each)
            for number, each in self._seats.get(owner, {}).items()
        }

    def reserved_seats(self, owner: str) -> Mapping[int, Holding]:
        """All its seats, as they were reserved."""
        return self._seats.get(owner, _NO_SEATS)

    def reserved_seat(self, owner: str, number: int) -> Holding | None:
        """One seat, as it was reserved."""
        return self._seats.get(owner, _NO_SEATS).get(number)

    def booked_seat(self, owner: str, number: int) -> Holding | None:
        """One seat, with the devices booked for it now."""
        planned = self.reserved_seat(owner, number)
        return None if planned is None else self._with_booked_devices(owner, number, planned)

    def has_seats(self, owner: str) -> bool:
        return owner in self._seats

    def grants(self, owner: str) -> list[Grant]:
        """Grants of its seats and of the pods in them."""
        return [
            grant
            for number in self._seats.get(owner, ())
            for grant in self.fleet.grants(self._taken.get((owner, number)) or seat_key(owner, number))
        ]

    def pod_in(self, owner: str, number: int) -> str:
        """Uid of the bound pod in the seat; empty: none."""
        return self._taken.get((owner, number), "")

    def seat_of(self, uid: str) -> Seat | None:
        """(owner, number) of the seat that the bound pod has."""
        return self._seat_of.get(uid)

    def owners(self) -> Iterator[str]:
        return iter(self._seats)

    def find_short_seats(self, owner: str) -> list[int]:
        """Seats without a pod that are short of devices, or whose node is unknown."""
        return [
            number
            for number in self._seats.get(owner, _NO_SEATS)
            if (owner, number) not in self._taken and not self.fleet.is_fully_booked(seat_key(owner, number))
        ]

    def _announce(self, freed: bool) -> bool:  # noqa: FBT001 - passed on
        if freed and self._on_freed is not None:
            self._on_freed()
        return freed

    def _with_booked_devices(self, owner: str, number: int, planned: Holding) -> Holding:
        now = self.fleet.holding(self._taken.get((owner, number)) or seat_key(owner, number))
        if now is None or now.node != planned.node:
            return planned
        return replace(planned, gpus=now.gpus or planned.gpus, slices=now.slices or planned.slices)


def _on_node(grant: Grant, node: int) -> Grant:
    return grant if grant.node == node else replace(grant, node=node)


def seat_key(owner: str, number: int) -> str:
    """The key of a reserved seat in the fleet."""
    return f"{owner}/{number}"
