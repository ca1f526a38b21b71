"""Gangs that others made: pods that belong together, collected until they are complete, planned as a whole.

    pod ──► member of a gang? ──► all there? ──► planner ──► every pod its seat
                                    no: holds nothing, and kube-scheduler is told what is missing

A seat is held while its pod waits behind a plan or is bound. What was decided is written on the pods themselves, so
nothing but pods is needed to go on after a restart.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import structlog

from kgwe import errors
from kgwe.cluster.gangs import gang_group, plain_pods, restored_seats
from kgwe.cluster.gangs.drained_seats import DrainedSeats
from kgwe.cluster.gangs.gang_group import Group, owner_of
from kgwe.cluster.workload import placement_annotations, scheduler_policy
from kgwe.cluster.workload.unpinned import as_made, without_pin
from kgwe.kube import dialects
from kgwe.kube.api import timestamp
from kgwe.kube.translate import podrequest
from kgwe.model.units.counting import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from kgwe.cluster.state.cluster_state import ClusterState
    from kgwe.kube.api import core
    from kgwe.kube.client.informer import Change
    from kgwe.kube.dialects import Groups, Membership
    from kgwe.placement.disruption.partial_gang import Partial
    from kgwe.placement.live.fleet import Holding
    from kgwe.placement.planning.planner import Ask, Plan, Refusal

log = structlog.get_logger(__name__)

# Looks that take longer, at gangs of hundreds of pods, are made so many times as seldom: others wait for the loop too.
_LONG_LOOK_S: Final = 0.001
_RESTS: Final = 20


class Gangs:
    """Every replica collects; the leader, who has told what to do with complete ones, plans."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._groups: dict[str, Group] = {}  # owner -> gang
        self._owner: dict[str, str] = {}  # pod uid -> owner
        self._requests: dict[str, podrequest.PodAsk] = {}
        # Pods that belong to no gang -> what they said when that was read.
        self._strangers: dict[str, tuple[object, ...]] = {}
        self._unbound: set[str] = set()  # pods of others that are on no node
        self.lookup: Callable[[], Groups] = _no_groups
        self.refusal: Callable[[str], Refusal | None] = lambda _owner: None
        self._want: Callable[[Ask], None]
        self._forget: Callable[[str], None]
        self._seat: Callable[[str, core.Pod, int], None]
        self._free: Callable[[core.Pod], None]
        self._later: Callable[[Callable[[], None]], object]
        self._dirty: dict[str, None] = {}
        self._unsized: set[str] = set()  # owners of pods that ask for shares of whatever size nodes offer
        self._drained = DrainedSeats(state, self._groups, self._drop)
        #: hears of an error that concerns one pod or gang: stage, pod or gang, error
        self.on_error: Callable[[str, str, Exception], None] = _ignore
        state.on_nodes = self._nodes_changed
        self.deaf()

    def tell(
        self,
        *,
        want: Callable[[Ask], None],
        forget: Callable[[str], None],
        seat: Callable[[str, core.Pod, int], None],
        free: Callable[[core.Pod], None],
        later: Callable[[Callable[[], None]], object],
        after: Callable[[float, Callable[[], None]], object] = lambda _delay_s, _call: None,
    ) -> None:
        """`want`: plan this; `forget`: no longer; `seat`: give the pod that seat; `free`: it needs none; `later`: call
        this in a moment; `after`: call it after so many seconds."""
        self._want, self._forget, self._seat, self._free, self._later = want, forget, seat, free, later
        self._drained.after = after
        self._dirty = {}  # what came while nobody listened is looked at now
        _ = self._state.fleet
        for owner, group in list(self._groups.items()):
            try:
                restored_seats.check(self._state, owner, group)
                self._seat_again(owner, group)
                self._look(owner)
                self._drained.arm(owner, group)
            except Exception as exc:  # noqa: BLE001 - an error of one gang; the term begins for the others
                self.on_error("gang", owner, exc)
        for uid in self._unbound - self._owner.keys():
            pod = self._state.pods.get(uid)
            if pod is not None and placement_annotations.is_gated(pod):
                self._free(pod)

    def deaf(self) -> None:
        """Only collect (a standby)."""
        self._want = self._forget = self._seat = self._free = self._later = self._drained.after = _ignore
        self._dirty = {}

    # --- pods -------------------------------------------------------------------------------------------

    def on_pod(self, uid: str, pod: core.Pod | None) -> None:
        """A pod that no workload of ours owns came, changed or (None) went. An error is this pod's alone."""
        try:
            self._on_pod(uid, pod)
        except Exception as exc:  # noqa: BLE001 - reported; the pod is looked at again when it changes
            self.on_error("gang", pod.metadata.key if pod is not None else uid, exc)

    def _on_pod(self, uid: str, pod: core.Pod | None) -> None:
        if pod is None or pod.spec.nodeName:
            self._unbound.discard(uid)
        else:
            self._unbound.add(uid)
        if pod is None:
            self._strangers.pop(uid, None)
            self._gone(uid)
            return
        member = self._member(uid, pod)
        if member is None:
            self._is_plain(uid, pod)
            return
        owner = owner_of(member.key)
        if self._owner.get(uid, owner) != owner:
            self._gone(uid)
        self._owner[uid] = owner
        group = self._groups.setdefault(owner, Group(member.key))
        known = group.members.get(uid)
        pod = restored_seats.restore(self._state, owner, group, pod)
        one_more = known is None and group.only_counts(pod, member)
        group.members[uid] = (pod, member)
        if known is None and not pod.spec.nodeName:
            # One by one as they come: all of a large gang at once would keep kube-scheduler waiting.
            with contextlib.suppress(errors.Permanent):
                self._request_of(pod)
        if one_more and group.lacking > 1:
            group.lacking -= 1
            group.say_lacking()
        elif known is None or known[1] != member or _came_elsewhere(group, known[0], pod):
            self._look_soon(owner)
        elif uid in group.seats and placement_annotations.is_gated(pod):
            self._seat(owner, pod, group.seats[uid])

    def _is_plain(self, uid: str, pod: core.Pod) -> None:
        """The pod belongs to no gang, or was queued and is bound now."""
        if pod.spec.nodeName and self.seat(uid) is not None:
            self._state.book(pod)  # in its seat: what it holds is not free for a moment
        self._gone(uid)
        if placement_annotations.is_gated(pod) and not pod.spec.nodeName:
            self._free(pod)

    def _member(self, uid: str, pod: core.Pod) -> Membership | None:
        group = self._groups.get(self._owner.get(uid, ""))
        if group is not None and uid in group.seats:
            # It has its place: reading it again at every step of its life would tell nothing new.
            known = group.members[uid][1]
            return None if plain_pods.is_queued(known) and pod.spec.nodeName else known
        if scheduler_policy.spec_of(self._state.config).enableGangScheduling:
            return self._gang_member(uid, pod) or plain_pods.membership(pod)
        return plain_pods.membership(pod)

    def _gang_member(self, uid: str, pod: core.Pod) -> Membership | None:
        meta = pod.metadata
        said = (meta.labels, meta.annotations, meta.ownerReferences, pod.spec.schedulingGroup, pod.spec.workloadRef)
        member = None if self._strangers.get(uid) == said else dialects.membership(pod, self.lookup())
        if member is None:
            self._strangers[uid] = said
        return member

    def on_group(self, change: Change[Any]) -> None:
        """An object that memberships are read from changed: those of its namespace are read again."""
        found = change.new or change.old
        if found is None or (change.old is not None and change.new is not None and _same(change.old, change.new)):
            return
        self._strangers.clear()
        meta = found["metadata"] if isinstance(found, dict) else found.metadata
        namespace = meta.get("namespace", "") if isinstance(meta, dict) else meta.namespace
        for uid in list(self._unbound):
            pod = self._state.pods.get(uid)
            if pod is not None and namespace in ("", pod.metadata.namespace) and self._state.is_foreign(pod):
                self.on_pod(uid, pod)
                if uid in self._owner:
                    self._look_soon(self._owner[uid])

    def _gone(self, uid: str) -> None:
        group = self._groups.get(self._owner.get(uid, ""))
        if group is not None and uid in group.seats:
            self._note_lost(group, uid)
        owner = self._owner.pop(uid, "")
        self._requests.pop(uid, None)
        if group is None:
            return
        pod, member = group.members.pop(uid)
        one_fewer = group.only_counts(pod, member)
        number = group.seats.pop(uid, None)
        kept = number is not None and self._drained.keep(owner, group, number, pod, member)
        if number is not None and not kept:
            self._state.ledger.vacate(owner, number)
        if not group.members:
            if not group.awaited:
                self._drop(owner)
        elif one_fewer and group.lacking >= 0 and owner not in self._dirty:
            group.lacking += 1
            group.say_lacking()
            self._forget(owner)
        else:
            self._look_soon(owner)

    def _note_lost(self, group: Group, uid: str) -> None:
        """The pod leaves its seat: the gang may ask for as much again before other work."""
        with contextlib.suppress(errors.Permanent):
            group.lost[group.seats[uid]] = self._request_of(group.members[uid][0])

    def _drop(self, owner: str) -> None:
        self._drained.forget(owner, self._groups.pop(owner))
        self._unsized.discard(owner)
        self._state.ledger.release(owner)
        self._forget(owner)

    # --- planning ---------------------------------------------------------------------------------------

    def _look_soon(self, owner: str) -> None:
        """Pods of a gang come in bursts: one look for all of them."""
        if not self._dirty:
            self._later(self._look_at_dirty)
        self._dirty[owner] = None

    def _nodes_changed(self) -> None:
        """Other nodes may offer shares of another size; nodes of kept seats may take pods again."""
        for owner in (self._unsized | self._drained.owners) & self._groups.keys():
            self._look_soon(owner)

    def _look_at_dirty(self) -> None:
        dirty, self._dirty = self._dirty, {}
        for owner in dirty:
            group = self._groups.get(owner)
            if group is not None and time.monotonic() < group.rests_until:
                self._dirty[owner] = None
            elif group is not None:
                began = time.thread_time()
                self._look(owner)
                took_s = time.thread_time() - began
                group.rests_until = time.monotonic() + _RESTS * took_s if took_s > _LONG_LOOK_S else 0.0
        if self._dirty:
            self._later(self._look_at_dirty)

    def _look(self, owner: str) -> None:
        """Ask for a plan when all are there and some have no seat. An error is this gang's alone."""
        try:
            self._ask_for_plan(owner)
        except Exception as exc:  # noqa: BLE001 - reported; the gang is looked at again when one of its pods changes
            self.on_error("gang", owner, exc)
            if (group := self._groups.get(owner)) is not None:
                group.problem = f"InternalError: looking at it failed with {exc!r}"
            self._forget(owner)

    def _ask_for_plan(self, owner: str) -> None:
        group = self._groups[owner]
        self._seat_returning(owner, group)
        self._seat_latecomers(owner, group)
        waiting = group.unseated
        if not waiting:
            self._forget(owner)
            return
        if group.overdue:
            group.problem = group.overdue
            self._forget(owner)
            return
        members = list(group.members.values())
        if len(members) == 1 and plain_pods.is_queued(members[0][1]):
            self._ask_for_pod(owner, group, members[0][0])
            return
        there = dialects.look(members)
        group.count(members, there)
        if lacking := dialects.missing(members, there):
            said = next((member.problem.words for _, member in members if member.problem), "")
            group.problem = said or f"{counted(lacking, 'more pod')} of {group.key.title} to come"
            self._forget(owner)
            return
        partial = self._partial(owner, group) if there.placed or group.seats else None
        if partial is not None:
            group.problem = ""
            place = {"since": group.since, "namespace": group.key.namespace, "name": group.key.title}
            ask = gang_group.ask_beside(owner, self._state.fleet, partial, **place)
            self._want(replace(ask, first_claim=group.regains(partial)))
            return
        found = dialects.gang_request(members, self._request_of, there)
        if isinstance(found, dialects.Problem):
            group.problem = found.words
            self._forget(owner)
            return
        group.gang, group.problem = found, ""
        self._want(gang_group.ask_for(owner, group, found, self._state.fleet.tree))

    def _ask_for_pod(self, owner: str, group: Group, pod: core.Pod) -> None:
        """Queue a plain pod.

        One whose request cannot be read is left to kube-scheduler, which reports what the extender answers.
        """
        if not dialects.counts(pod):
            self._forget(owner)  # it is being deleted, or held back by the gate of another system
            return
        try:
            found = self._pod_ask(pod)
        except errors.Permanent as exc:
            group.problem = str(exc)
            self._forget(owner)
            self._free(pod)
            return
        group.gang, group.problem = None, ""
        self._want(plain_pods.ask_for(owner, group, pod, found))

    def _partial(self, owner: str, group: Group) -> Partial | None:
        nodes = {uid: self._node_of(owner, group, pod) for uid, (pod, _) in group.members.items()}
        return gang_group.partial_of(group, nodes, self._request_of)

    def _seat_again(self, owner: str, group: Group) -> None:
        """Pods whose seats were decided in an earlier term of this process, which ended before they were written."""
        for uid, (pod, _) in group.members.items():
            unwritten = not pod.spec.nodeName and placement_annotations.SEAT_ANNOTATION not in pod.metadata.annotations
            if unwritten and (number := group.seats.get(uid)) is not None:
                self._seat(owner, pod, number)

    def _seat_latecomers(self, owner: str, group: Group) -> None:
        """Pods that were made only when others had their nodes: their seats have been waiting for them."""
        if group.gang is None or not group.seats:
            return
        taken = set(group.seats.values())
        for uid, (pod, member) in group.members.items():
            rank = None if uid in group.seats or pod.spec.nodeName else group.gang.rank_of(member)
            if rank is None or group.start + rank in taken:
                continue
            number = group.start + rank
            if self._state.ledger.seat(owner, number) is not None:
                group.take(uid, number)
                taken.add(number)
                self._seat(owner, pod, number)

    # --- recovery ---------------------------------------------------------------------------------------

    def move(self, owner: str, places: Mapping[int, Holding], restarted: Iterable[int] = ()) -> list[str]:
        """Seats get other places, and with those of `restarted` wait for new pods; returns who has them now."""
        group = self._groups[owner]
        self._state.ledger.reserve(owner, {**self._state.ledger.places(owner), **places})
        numbers = {*places, *restarted}
        left = [uid for uid, number in group.seats.items() if number in numbers]
        for uid in left:
            self._note_lost(group, uid)
            group.awaited[group.seats.pop(uid)] = group.members[uid][1]
        return left

    def _seat_returning(self, owner: str, group: Group) -> None:
        """Pods made anew in place of some that were lost: their seats have been kept for them."""
        for uid, (pod, member) in group.members.items():
            if not group.awaited or uid in group.seats or pod.spec.nodeName or pod.metadata.deletionTimestamp:
                continue
            alike = [number for number, was in group.awaited.items() if was.role == member.role]
            alike = [number for number in alike if number not in group.kept or self._drained.is_usable(owner, number)]
            own = [number for number in alike if group.awaited[number].index == member.index]
            number = next(iter([*own, *alike]), None)
            if number is not None:
                del group.awaited[number]
                self._drained.give(owner, group, number)
                group.take(uid, number)
                self._seat(owner, pod, number)

    def make_way(self, owner: str) -> None:
        """The gang is stopped for more important work: no seats are kept for its pods."""
        group = self._groups.get(owner)
        if group is not None:
            group.makes_way = True
            self._drained.release(owner, group)

    def give_up(self, owner: str) -> None:
        """Nobody has come for the seats that were kept."""
        group = self._groups.get(owner)
        if group is None:
            return
        unclaimed = list(group.awaited)
        group.awaited.clear()
        self._drained.forget(owner, group)
        for number in unclaimed:
            self._state.ledger.vacate(owner, number)
        if not group.members:
            self._drop(owner)

    def _request_of(self, pod: core.Pod) -> Any:
        return self._pod_ask(pod).request

    def _pod_ask(self, pod: core.Pod) -> podrequest.PodAsk:
        known = self._requests.get(pod.metadata.uid)
        if known is None:
            if not podrequest.says_its_share(pod):
                self._unsized.add(self._owner[pod.metadata.uid])
                return podrequest.read(as_made(pod), pieces=self._state.fleet.pieces(""))
            known = self._requests[pod.metadata.uid] = podrequest.read(as_made(pod))
        return known

    def _node_of(self, owner: str, group: Group, pod: core.Pod) -> str:
        number = group.seats.get(pod.metadata.uid)
        seat = self._state.ledger.seat(owner, number) if number is not None else None
        return pod.spec.nodeName or (seat.node if seat is not None else "")

    def planned(self, owner: str, plan: Plan) -> None:
        """The planner has reserved seats for all: give every pod its own."""
        group = self._groups.get(owner)
        if group is None:
            return
        group.makes_way = False
        if group.kept:
            self._drained.release(owner, group)  # the plan has a place for every pod
        group.lost.clear()
        pods = plan.pods or (group.members if plan.gang is None else ())
        for number, uid in enumerate(list(pods), plan.start):
            self._give(owner, group, uid, number)
        if group.gang is None or plan.gang is None:
            return
        group.start = plan.start
        for pod, seat in group.gang.seated(plan.gang):
            self._give(owner, group, pod.metadata.uid, plan.start + seat.rank)

    def forget_plan(self, owner: str, plan: Plan) -> None:
        """Carrying out the plan failed: its seats are given back, and its pods have none."""
        group = self._groups.get(owner)
        made = range(plan.start, plan.start + len(plan.seats))
        if group is not None:
            for uid in [uid for uid, number in group.seats.items() if number in made]:
                self._note_lost(group, uid)
                del group.seats[uid]

    def _give(self, owner: str, group: Group, uid: str, number: int) -> None:
        if uid not in group.members:
            return
        pod, _ = group.members[uid]
        group.revoked.discard(uid)
        group.seats[uid] = number
        self._seat(owner, pod, number)
        if pod.spec.nodeName:  # bound while it was planned
            self._state.book(pod)

    # --- gangs that are not bound -----------------------------------------------------------------------

    def release(self, owner: str, words: str) -> list[core.Pod]:
        """Release the seats that no bound pod has; the gang is not planned before `retry`. Returns the pods in them."""
        group = self._groups[owner]
        pods = group.unbound
        bound = {number for uid, number in group.seats.items() if group.members[uid][0].spec.nodeName}
        unbound = set(self._state.ledger.places(owner)) - bound
        group.seats = {uid: number for uid, number in group.seats.items() if number in bound}
        group.awaited.clear()
        group.lost.clear()
        self._drained.forget(owner, group)
        for pod in pods:
            group.revoked.add(pod.metadata.uid)
            self._requests.pop(pod.metadata.uid, None)  # what it asks for now includes the node it is pinned to
        group.overdue = group.problem = words
        group.last_since = timestamp.seconds()
        group.asked_about.clear()
        self._forget(owner)
        for number in unbound:
            self._state.ledger.vacate(owner, number)
        return pods

    def retry(self, owner: str) -> None:
        """Plan a gang again whose seats were released."""
        group = self._groups.get(owner)
        if group is not None and group.overdue:
            group.overdue = group.problem = ""
            self._look_soon(owner)

    def ask_unpinned(self, owner: str) -> Ask | None:
        """What the gang would ask for if its owner made all its pods again; None: that cannot be told."""
        group = self._groups[owner]
        members = [(without_pin(pod), member) for pod, member in group.members.values()]
        found = dialects.gang_request(members, lambda pod: podrequest.read(pod).request)
        if isinstance(found, dialects.Problem):
            return None
        return gang_group.ask_for(owner, group, found, self._state.fleet.tree)

    def _note_asked(self, owner: str, group: Group, uid: str) -> None:
        """kube-scheduler would bind the pod to the node it is pinned to: once that holds for all, none has to wait."""
        group.asked_about.add(uid)
        if group.asked_about.issuperset(pod.metadata.uid for pod in group.unseated):
            self.retry(owner)

    # --- what the extender asks -------------------------------------------------------------------------

    def seat(self, uid: str) -> tuple[str, int] | None:
        owner = self._owner.get(uid, "")
        number = self._groups[owner].seats.get(uid) if owner in self._groups else None
        return None if number is None else (owner, number)

    def waits(self, pod: core.Pod) -> str | None:
        """Why a member of a gang may not be bound yet; None for pods of no gang, and for those with a seat."""
        uid = pod.metadata.uid
        if uid not in self._owner:
            if pod.spec.nodeName or not self._state.is_foreign(pod):
                return None
            self.on_pod(uid, self._state.believed(pod))
        owner = self._owner.get(uid)
        if owner is None or uid in self._groups[owner].seats:
            return None
        group = self._groups[owner]
        if plain_pods.is_queued(group.members[uid][1]):
            return None  # its gate is gone: kube-scheduler asks, and gets an answer for a plain pod
        if group.overdue and placement_annotations.pinned_to(pod.spec):
            self._note_asked(owner, group, uid)
        if group.problem:
            return f"kgwe: gang waits: {group.problem}"
        held = self.refusal(owner)
        return f"kgwe: gang waits: {held.message if held else 'being planned'}"

    def owners(self) -> Iterator[str]:
        return iter(self._groups)

    def owner_of(self, uid: str) -> str:
        """The gang a pod belongs to; empty: none."""
        return self._owner.get(uid, "")

    def group(self, owner: str) -> Group | None:
        return self._groups.get(owner)

    def snapshot(self) -> Mapping[str, object]:
        return {
            owner: {"members": len(group.members), "seated": len(group.seats), "problem": group.problem}
            for owner, group in self._groups.items()
        }


def _came_elsewhere(group: Group, old: core.Pod, new: core.Pod) -> bool:
    """Whether it was bound, unbound or let through a gate, other than to its seat: that was to be expected."""
    if new.metadata.uid in group.seats:
        return False
    return bool(old.spec.nodeName) != bool(new.spec.nodeName) or old.spec.schedulingGates != new.spec.schedulingGates


def _ignore(*_: object) -> None:
    pass


def _same(old: Any, new: Any) -> bool:
    """Whether nothing but its version changed."""
    try:
        return bool(old.spec == new.spec and getattr(old, "status", None) == getattr(new, "status", None))
    except AttributeError:
        return False


def _no_groups() -> Groups:
    raise errors.InvariantBroken("nobody has said where gangs are described")
