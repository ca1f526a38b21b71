"""Looks at externally created gangs whose pods changed, and requests plans for complete ones.

pods ──► all exist? ──► request to the planner ──► a seat for every pod
           no: nothing is reserved, and the extender answers what is missing
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from kgwe import errors
from kgwe.cluster.gangs import gang_group, plain_pods
from kgwe.cluster.gangs.gang_lifecycle import GangEvent, GangPhase
from kgwe.cluster.workload.unpinned import without_pin
from kgwe.kube import dialects
from kgwe.kube.translate import podrequest
from kgwe.model.units.phrasing import format_count

if TYPE_CHECKING:
    from collections.abc import Callable

    from kgwe.cluster.gangs.gang_group import Group
    from kgwe.cluster.gangs.gang_seating import GangSeating
    from kgwe.cluster.gangs.gang_table import GangTable
    from kgwe.cluster.gangs.leader_actions import Leadership
    from kgwe.cluster.gangs.pod_requests import PodRequests
    from kgwe.cluster.registry.fleet_state import FleetState
    from kgwe.kube.api import core
    from kgwe.placement.disruption.partial_gang import PartialGang
    from kgwe.placement.planning.ask import Ask

# A look at a gang of hundreds of pods that takes longer is followed by a pause of so many times its length: other
# work waits for the event loop too.
_LONG_LOOK_S: Final = 0.001
_RESTS: Final = 20


class GangPlanning:
    """Requests plans for gangs."""

    def __init__(
        self,
        *,
        fleet_state: FleetState,
        table: GangTable,
        requests: PodRequests,
        seating: GangSeating,
        leadership: Leadership,
        report_error: Callable[[str, str, Exception], None],
    ) -> None:
        self._fleet_state = fleet_state
        self._groups = table.groups
        self._requests = requests
        self._seating = seating
        self._leadership = leadership
        self._report_error = report_error
        self._dirty: dict[str, None] = {}
        #: incomplete gang -> its pods, and when the latest came
        self._growing: dict[str, tuple[int, float]] = {}

    # --- when gangs are looked at -----------------------------------------------------------------------

    def look_soon(self, owner: str) -> None:
        """Look at the gang in a moment: its pods come in bursts."""
        if not self._dirty:
            self._leadership.actions.call_soon(self._look_at_dirty)
        self._dirty[owner] = None

    def is_dirty(self, owner: str) -> bool:
        return owner in self._dirty

    def reset(self) -> None:
        """A term begins or ends: every gang is looked at when the next one begins."""
        self._dirty = {}
        self._growing = {}

    def last_growth(self) -> float | None:
        """When an incomplete gang got its latest pod, by the monotonic clock; None: no gang is incomplete."""
        self._growing = {owner: each for owner, each in self._growing.items() if owner in self._groups}
        return max((grown_s for _, grown_s in self._growing.values()), default=None)

    def note_growth(self, owner: str, pods: int) -> None:
        """An incomplete gang has so many pods now."""
        if self._growing.get(owner, (0, 0.0))[0] != pods:
            self._growing[owner] = pods, time.monotonic()

    def _look_at_dirty(self) -> None:
        dirty, self._dirty = self._dirty, {}
        for owner in dirty:
            group = self._groups.get(owner)
            if group is not None and time.monotonic() < group.rests_until:
                self._dirty[owner] = None
            elif group is not None:
                began = time.thread_time()
                self.request_if_complete(owner)
                took_s = time.thread_time() - began
                group.rests_until = time.monotonic() + _RESTS * took_s if took_s > _LONG_LOOK_S else 0.0
        if self._dirty:
            self._leadership.actions.call_soon(self._look_at_dirty)

    def request_if_complete(self, owner: str) -> None:
        """Request a plan if all pods exist and some have no seat. An error concerns this gang only."""
        try:
            self._look_at(owner, self._groups[owner])
        except Exception as exc:  # noqa: BLE001 - reported; the gang is looked at again when one of its pods changes
            self._report_error("gang", owner, exc)
            if (group := self._groups.get(owner)) is not None:
                group.problem = f"InternalError: reading the gang failed with {exc!r}"
            self._leadership.actions.withdraw_request(owner)

    # --- what is requested ------------------------------------------------------------------------------

    def _look_at(self, owner: str, group: Group) -> None:
        self._seating.seat_waiting(owner, group)
        waiting = group.unseated
        if group.phase is GangPhase.RELEASED:
            if waiting:
                group.problem = group.release_reason
            self._leadership.actions.withdraw_request(owner)
            return
        if not waiting:
            group.advance(GangEvent.SEATS_KEPT if group.awaited else GangEvent.FOUND_PLACED)
            self._leadership.actions.withdraw_request(owner)
            return
        members = list(group.members.values())
        if len(members) == 1 and plain_pods.is_queued(members[0][1]):
            self._request_pod(owner, group, members[0][0])
            return
        self._request_gang(owner, group)

    def _request_gang(self, owner: str, group: Group) -> None:
        members = list(group.members.values())
        there = dialects.count_members(members)
        group.note_missing(members, there)
        if lacking := dialects.count_missing(members, there):
            self.note_growth(owner, len(members))
            said = next((member.problem.words for _, member in members if member.problem), "")
            self._withdraw_request(
                owner,
                group,
                said or f"gang {group.key.title} incomplete: waiting for {format_count(lacking, 'more pod')}",
            )
            return
        partial = self._find_partial(owner, group) if there.placed or group.seats else None
        if partial is not None:
            place = {"since": group.since, "namespace": group.key.namespace, "name": group.key.title}
            ask = gang_group.ask_beside(owner, self._fleet_state.fleet, partial, **place)
            self._request_plan(
                group, replace(ask, first_claim=group.is_regaining_seats(partial)), GangEvent.REST_REQUESTED
            )
            return
        found = dialects.gang_request(members, self._requests.request_of, there)
        if isinstance(found, dialects.Problem):
            self._withdraw_request(owner, group, found.words)
            return
        group.gang = found
        ask = gang_group.ask_for(owner, group, found, self._fleet_state.fleet.tree)
        self._request_plan(group, ask, GangEvent.WHOLE_REQUESTED)

    def _request_pod(self, owner: str, group: Group, pod: core.Pod) -> None:
        """Queue a plain pod.

        A pod whose request cannot be read is left to kube-scheduler, which reports what the extender answers.
        """
        if not dialects.is_present(pod):
            self._withdraw_request(
                owner, group, group.problem
            )  # it is being deleted, or has the gate of another system
            return
        try:
            found = self._requests.read_request(pod)
        except errors.Permanent as exc:
            self._withdraw_request(owner, group, str(exc))
            self._leadership.actions.remove_gate(pod)
            return
        group.gang = None
        self._request_plan(group, plain_pods.ask_for(owner, group, pod, found), GangEvent.WHOLE_REQUESTED)

    def _request_plan(self, group: Group, ask: Ask, event: GangEvent) -> None:
        self._growing.pop(ask.owner, None)
        group.problem = ""
        group.advance(event)
        self._leadership.actions.request_plan(ask)

    def _withdraw_request(self, owner: str, group: Group, problem: str) -> None:
        group.problem = problem
        group.advance(GangEvent.FOUND_INCOMPLETE)
        self._leadership.actions.withdraw_request(owner)

    def _find_partial(self, owner: str, group: Group) -> PartialGang | None:
        nodes = {uid: self._node_of(owner, group, pod) for uid, (pod, _) in group.members.items()}
        return gang_group.partial_of(group, nodes, self._requests.request_of)

    def _node_of(self, owner: str, group: Group, pod: core.Pod) -> str:
        number = group.seats.get(pod.metadata.uid)
        seat = self._fleet_state.ledger.reserved_seat(owner, number) if number is not None else None
        return pod.spec.nodeName or (seat.node if seat is not None else "")

    def ask_unpinned(self, owner: str) -> Ask | None:
        """The request of the gang as if its owner created all its pods again; None if it cannot be read."""
        group = self._groups[owner]
        members = [(without_pin(pod), member) for pod, member in group.members.values()]
        found = dialects.gang_request(members, lambda pod: podrequest.read_request(pod).request)
        if isinstance(found, dialects.Problem):
            return None
        return gang_group.ask_for(owner, group, found, self._fleet_state.fleet.tree)
