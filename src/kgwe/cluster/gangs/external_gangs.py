"""Externally created gangs: pods that belong together, collected until all exist and planned as a whole.

A seat is reserved while its pod waits behind a plan or is bound. Decisions are written on the pods themselves, so that
pods are enough to go on after a restart.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from kgwe import errors
from kgwe.cluster import names
from kgwe.cluster.gangs import plain_pods
from kgwe.cluster.gangs.drained_seats import DrainedSeats
from kgwe.cluster.gangs.gang_group import Group
from kgwe.cluster.gangs.gang_lifecycle import GangEvent, GangPhase
from kgwe.cluster.gangs.gang_planning import GangPlanning
from kgwe.cluster.gangs.gang_seating import GangSeating
from kgwe.cluster.gangs.leader_actions import Leadership
from kgwe.cluster.gangs.pod_requests import PodRequests
from kgwe.cluster.gangs.restored_seats import SeatRestorer
from kgwe.cluster.workload import placement_annotations, scheduler_policy
from kgwe.cluster.workload.owner import ExternalGangOwner
from kgwe.kube import dialects

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from kgwe.cluster.gangs.gang_table import GangTable
    from kgwe.cluster.gangs.group_objects import GroupObjects
    from kgwe.cluster.gangs.leader_actions import LeaderActions
    from kgwe.cluster.registry.fleet_state import FleetState
    from kgwe.cluster.registry.pod_booking import PodBooking
    from kgwe.cluster.registry.pod_index import PodIndex
    from kgwe.cluster.registry.run_table import RunTable
    from kgwe.kube.api import core
    from kgwe.kube.client.informer import Change
    from kgwe.kube.dialects import Key, Membership
    from kgwe.placement.live.holding import Holding
    from kgwe.placement.live.ledger import Seat
    from kgwe.placement.planning.ask import Ask
    from kgwe.placement.planning.plan import Plan


class ExternalGangs:
    """Every replica collects gangs; the leader plans them."""

    def __init__(
        self,
        *,
        fleet_state: FleetState,
        pods: PodIndex,
        run_table: RunTable,
        table: GangTable,
        objects: GroupObjects,
        booking: PodBooking,
        report_error: Callable[[str, str, Exception], None],
    ) -> None:
        """`report_error`: stage, pod or gang, error."""
        self._fleet_state = fleet_state
        self._pods = pods
        self._run_table = run_table
        self._table = table
        self._objects = objects
        self._booking = booking
        self._report_error = report_error
        self._unbound: set[str] = set()  # external pods without a node
        self._leadership = Leadership()
        self._requests = PodRequests(fleet_state, table)
        self._drained = DrainedSeats(
            fleet_state=fleet_state,
            groups=table.groups,
            leadership=self._leadership,
            drop=self._drop_empty,
        )
        self._restorer = SeatRestorer(fleet_state, pods, booking)
        self._seating = GangSeating(
            ledger=fleet_state.ledger,
            booking=booking,
            requests=self._requests,
            drained=self._drained,
            leadership=self._leadership,
        )
        self._planning = GangPlanning(
            fleet_state=fleet_state,
            table=table,
            requests=self._requests,
            seating=self._seating,
            leadership=self._leadership,
            report_error=report_error,
        )

    # --- leadership -------------------------------------------------------------------------------------

    def start_leading(self, actions: LeaderActions) -> None:
        """Plan gangs with these actions, beginning with those collected so far."""
        self._leadership.begin(actions)
        self._planning.reset()
        _ = self._fleet_state.fleet  # brought up to date
        for owner, group in list(self._table.groups.items()):
            try:
                self._restorer.check_seats(owner, group)
                self._seating.assign_unwritten(owner, group)
                self._planning.request_if_complete(owner)
                self._drained.restart_timers(owner, group)
            except Exception as exc:  # noqa: BLE001 - an error of one gang; the term begins for the others
                self._report_error("gang", owner, exc)
        for uid in self._unbound - self._table.owners.keys():
            pod = self._pods.by_uid.get(uid)
            if pod is not None and placement_annotations.is_gated(pod):
                actions.remove_gate(pod)

    def stop_leading(self) -> None:
        """Only collect gangs (a standby)."""
        self._leadership.end()
        self._planning.reset()

    # --- pods -------------------------------------------------------------------------------------------

    def on_pod(self, uid: str, pod: core.Pod | None) -> None:
        """An external pod was added, changed or (None) removed. An error concerns this pod only."""
        try:
            self._on_pod(uid, pod)
        except Exception as exc:  # noqa: BLE001 - reported; the pod is looked at again when it changes
            self._report_error("gang", pod.metadata.key if pod is not None else uid, exc)

    def _on_pod(self, uid: str, pod: core.Pod | None) -> None:
        if pod is None or pod.spec.nodeName:
            self._unbound.discard(uid)
        else:
            self._unbound.add(uid)
        if pod is None:
            self._table.read_without_gang.pop(uid, None)
            self._remove_pod(uid)
            return
        member = self._find_membership(uid, pod)
        if member is None:
            self._set_plain(uid, pod)
            return
        owner = ExternalGangOwner(member.key).text
        if self._table.owners.get(uid, owner) != owner:
            self._remove_pod(uid)
        self._table.owners[uid] = owner
        group = self._table.groups.setdefault(owner, Group(member.key))
        self._set_member(owner, group, pod, member)

    def _set_member(self, owner: str, group: Group, pod: core.Pod, member: Membership) -> None:
        uid = pod.metadata.uid
        known = group.members.get(uid)
        pod = self._restorer.restore_seat(owner, group, pod)
        one_more = known is None and group.only_counts(pod, member)
        group.members[uid] = (pod, member)
        if known is None and not pod.spec.nodeName:
            # Read now, one by one: to read all pods of a large gang at once would keep kube-scheduler waiting.
            with contextlib.suppress(errors.Permanent):
                self._requests.read_request(pod)
        if one_more and group.lacking > 1:
            group.lacking -= 1
            group.say_lacking()
            self._planning.note_growth(owner, len(group.members))
        elif known is None or known[1] != member or _came_elsewhere(group, known[0], pod):
            self._planning.look_soon(owner)
        elif uid in group.seats and placement_annotations.is_gated(pod):
            self._leadership.actions.assign_seat(owner, pod, group.seats[uid])

    def _set_plain(self, uid: str, pod: core.Pod) -> None:
        """The pod belongs to no gang, or was queued and is bound now."""
        if uid in self._table.owners:
            if pod.spec.nodeName and self._table.seat(uid) is not None:
                self._booking.book(pod)  # in its seat, which is never free in between
            self._remove_pod(uid)
        if not pod.spec.nodeName and placement_annotations.is_gated(pod):
            self._leadership.actions.remove_gate(pod)

    def _find_membership(self, uid: str, pod: core.Pod) -> Membership | None:
        group = self._table.group_of(uid)
        if group is not None and uid in group.seats:
            # It has its place: to read it again at every step of its life would bring nothing new.
            known = group.members[uid][1]
            return None if plain_pods.is_queued(known) and pod.spec.nodeName else known
        if scheduler_policy.spec_of(self._fleet_state.config).enableGangScheduling:
            return self._read_membership(uid, pod) or plain_pods.read_membership(pod)
        return plain_pods.read_membership(pod)

    def _read_membership(self, uid: str, pod: core.Pod) -> Membership | None:
        meta = pod.metadata
        said = (meta.labels, meta.annotations, meta.ownerReferences, pod.spec.schedulingGroup, pod.spec.workloadRef)
        if self._table.read_without_gang.get(uid) == said:
            return None
        member = dialects.find_membership(pod, self._objects.groups())
        if member is None:
            self._table.read_without_gang[uid] = said
        return member

    def on_group(self, change: Change[Any]) -> None:
        """An object that memberships are read from changed: read those of its namespace again."""
        found = change.new or change.old
        if found is None or (
            change.old is not None and change.new is not None and _is_unchanged(change.old, change.new)
        ):
            return
        meta = found["metadata"] if isinstance(found, dict) else found.metadata
        self._read_unbound(meta.get("namespace", "") if isinstance(meta, dict) else meta.namespace)

    def on_config_changed(self) -> None:
        """Whether gangs are scheduled at all may have changed: read the memberships of all unbound pods again."""
        self._read_unbound("")

    def _read_unbound(self, namespace: str) -> None:
        """Read the memberships of unbound pods again; empty: of all namespaces."""
        self._table.read_without_gang.clear()
        for uid in list(self._unbound):
            pod = self._pods.by_uid.get(uid)
            if pod is not None and namespace in ("", pod.metadata.namespace) and self._run_table.is_external(pod):
                self.on_pod(uid, pod)
                if uid in self._table.owners:
                    self._planning.look_soon(self._table.owners[uid])

    def on_nodes_changed(self) -> None:
        """Nodes may offer shares of another size, and nodes of reserved seats may accept pods again."""
        for owner in (self._requests.unsized | self._drained.owners) & self._table.groups.keys():
            self._planning.look_soon(owner)

    def _remove_pod(self, uid: str) -> None:
        owner, group = self._table.owner_of(uid), self._table.group_of(uid)
        if group is None:
            self._table.owners.pop(uid, None)
            self._requests.forget_pod(uid)
            return
        one_fewer = group.only_counts(*group.members[uid])
        self._seating.remove_pod(owner, group, uid)
        self._table.owners.pop(uid, None)
        self._requests.forget_pod(uid)
        if not group.members:
            if group.is_empty:
                self._drop_empty(owner)
        elif one_fewer and group.lacking >= 0 and not self._planning.is_dirty(owner):
            group.lacking += 1
            group.say_lacking()
            if group.phase is not GangPhase.RELEASED:
                group.advance(GangEvent.FOUND_INCOMPLETE)
            self._leadership.actions.withdraw_request(owner)
        else:
            self._planning.look_soon(owner)

    def _drop_empty(self, owner: str) -> None:
        """Forget a gang of which neither pods nor reserved seats are left."""
        self._drained.forget(owner, self._table.groups.pop(owner))
        self._requests.unsized.discard(owner)
        self._fleet_state.ledger.release_seats(owner)
        self._leadership.actions.withdraw_request(owner)

    # --- decisions of the leader ------------------------------------------------------------------------

    def assign_plan(self, owner: str, plan: Plan) -> None:
        """Give every pod its seat of a plan that the planner has reserved."""
        if (group := self.group(owner)) is not None:
            self._seating.assign_plan(owner, group, plan)

    def forget_plan(self, owner: str, plan: Plan) -> None:
        """Take back the seats of a plan that could not be carried out."""
        if (group := self.group(owner)) is not None:
            self._seating.forget_plan(group, plan)

    def move_seats(self, owner: str, places: Mapping[int, Holding], restarted: Iterable[int] = ()) -> list[str]:
        """Move seats; these and the `restarted` ones wait for new pods. Returns the pods that have them now."""
        return self._seating.move_seats(owner, self._table.groups[owner], places, restarted)

    def make_way(self, owner: str) -> None:
        """The gang is being preempted: reserve no seats for its pods."""
        if (group := self.group(owner)) is not None:
            group.makes_way = True
            self._drained.release_all(owner, group)

    def give_up_seats(self, owner: str) -> None:
        """Release the seats for which no pods came."""
        if (group := self.group(owner)) is not None:
            self._seating.give_up(owner, group)
            if group.is_empty and owner in self._table.groups:
                self._drop_empty(owner)

    def offer_seats(self, owner: str, key: Key, seats: Mapping[int, int | None]) -> None:
        """Keep reserved seats for pods that are being created. `seats`: number -> index of its pod; None: any pod."""
        self._seating.offer(self._table.groups.setdefault(owner, Group(key)), seats)

    def end_offer(self, owner: str) -> int:
        """Release the offered seats for which no pod came; returns how many these are."""
        if (group := self.group(owner)) is None:
            return 0
        unclaimed = self._seating.end_offer(owner, group)
        if group.is_empty:
            self._drop_empty(owner)
        else:
            self._planning.look_soon(owner)
        return unclaimed

    def release_unbound(self, owner: str, reason: str) -> list[core.Pod]:
        """Release the seats that no bound pod has, and plan the gang no more before `retry`.

        Returns the pods that had the seats.
        """
        return self._seating.release_unbound(owner, self._table.groups[owner], reason)

    def plan_again(self, owner: str) -> None:
        """Plan a gang again whose seats were released."""
        group = self.group(owner)
        if group is not None and group.phase is GangPhase.RELEASED:
            group.release_reason = group.problem = ""
            group.advance(GangEvent.RETRIED)
            self._planning.look_soon(owner)

    def last_growth(self) -> float | None:
        """When an incomplete gang got its latest pod, by the monotonic clock; None: no gang is incomplete."""
        return self._planning.last_growth()

    def ask_unpinned(self, owner: str) -> Ask | None:
        """The request of the gang as if its owner created all its pods again; None if it cannot be read."""
        return self._planning.ask_unpinned(owner)

    # --- what the extender asks -------------------------------------------------------------------------

    def note_filter_call(self, pod: core.Pod) -> None:
        """kube-scheduler would bind the pod now.

        If that holds for all pods of a gang whose seats were released, it is planned again at once.
        """
        uid = pod.metadata.uid
        group = self._table.group_of(uid)
        if group is None or uid in group.seats or group.phase is not GangPhase.RELEASED:
            return
        if placement_annotations.pinned_node(pod.spec):
            group.asked_about.add(uid)
            if group.asked_about.issuperset(each.metadata.uid for each in group.unseated):
                self.plan_again(self._table.owners[uid])

    def why_waiting(self, pod: core.Pod) -> str | None:
        """Why a member of a gang may not be bound yet; None for pods of no gang and pods with a seat."""
        uid = pod.metadata.uid
        group = self._table.group_of(uid)
        if group is None or uid in group.seats or plain_pods.is_queued(group.members[uid][1]):
            # A queued pod without its gate: kube-scheduler gets the answer for a plain pod.
            return None
        if group.problem:
            return f"kgwe: {names.GANG_WAITING}: {group.problem}"
        refusal = self._leadership.actions.find_refusal(self._table.owners[uid])
        return f"kgwe: {names.GANG_WAITING}: {refusal.message if refusal else 'being planned'}"

    def seat(self, uid: str) -> Seat | None:
        """(owner, number) of the pod's seat."""
        return self._table.seat(uid)

    def owners(self) -> Iterator[str]:
        return self._table.list_owners()

    def owner_of(self, uid: str) -> str:
        """The gang a pod belongs to; empty: none."""
        return self._table.owner_of(uid)

    def group(self, owner: str) -> Group | None:
        return self._table.groups.get(owner)

    def dump(self) -> Mapping[str, object]:
        """Every gang in short, for /debug/snapshot."""
        return self._table.dump()


def _came_elsewhere(group: Group, old: core.Pod, new: core.Pod) -> bool:
    """Whether the pod was bound, unbound or lost a gate, other than to its seat, where that is expected."""
    if new.metadata.uid in group.seats:
        return False
    return bool(old.spec.nodeName) != bool(new.spec.nodeName) or old.spec.schedulingGates != new.spec.schedulingGates


def _is_unchanged(old: Any, new: Any) -> bool:
    """Whether only the resourceVersion changed."""
    try:
        return bool(old.spec == new.spec and getattr(old, "status", None) == getattr(new, "status", None))
    except AttributeError:
        return False
