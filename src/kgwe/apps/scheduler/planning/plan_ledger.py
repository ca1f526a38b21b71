"""What the planner writes to the ledger: plans that the API does not show yet, and capacity reserved for one owner."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kgwe.cluster.workload.owner import Reservation

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kgwe.cluster.state.cluster_state import ClusterState
    from kgwe.placement.live.holding import Holding
    from kgwe.placement.planning.plan import Plan


class PlanLedger:
    """A plan is assumed when it is made, confirmed when the API shows it, and discarded when it was not executed."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._assumed: set[str] = set()  # owners
        self._ready: dict[str, bool] = {}  # owner -> whether the capacity reserved for it is free

    # --- plans ------------------------------------------------------------------------------------------

    def assume_plan(self, plan: Plan, *, extend: bool) -> Plan:
        """Reserve the seats of the plan; InvariantBroken when they are no longer free. Returns it with their numbers.

        `extend`: the owner may have seats already.
        """
        owner, nodes = plan.ask.owner, [seat.node for seat in plan.seats]
        start = self._state.ledger.commit_plan(owner, plan.amounts_by_seat, plan.grants, nodes, extend=extend)
        self._assumed.add(owner)
        return replace(plan, start=start)

    def undo_plan(self, plan: Plan) -> None:
        """Free the seats of a plan that was assumed a moment ago."""
        self._assumed.discard(plan.ask.owner)
        for number in range(plan.start, plan.start + len(plan.seats)):
            self._state.ledger.release_seat(plan.ask.owner, number)

    def is_assumed(self, owner: str) -> bool:
        return owner in self._assumed

    def confirm_plan(self, owner: str) -> None:
        """The API shows the plan."""
        self._assumed.discard(owner)

    def discard_plan(self, owner: str) -> None:
        """Free the seats of a plan that was not executed."""
        if owner in self._assumed:
            self._assumed.remove(owner)
            if owner not in self._state.runs:
                self._state.ledger.release_seats(owner)

    # --- capacity reserved for one owner ----------------------------------------------------------------

    def reserve_seats(self, owner: str, seats: Mapping[int, Holding], *, ready: bool) -> None:
        self._ready[owner] = ready
        self._state.ledger.reserve_seats(Reservation(owner).text, seats)

    def release_reservation(self, owner: str) -> None:
        """The owner no longer needs what is reserved for it."""
        if self._ready.pop(owner, None) is not None:
            self._state.ledger.release_seats(Reservation(owner).text)

    def withdraw_reservation(self, owner: str) -> None:
        """The owner is placed now, in what is reserved for it."""
        self._ready.pop(owner, None)
        self._state.ledger.withdraw_seats(Reservation(owner).text)

    def set_ready(self, owner: str) -> None:
        """What is reserved for the owner is free."""
        self._ready[owner] = True

    def is_ready(self, owner: str) -> bool:
        return self._ready.get(owner, False)

    def owners(self) -> set[str]:
        """Owners with a plan that is assumed, or with a reservation."""
        return self._assumed | self._ready.keys()
