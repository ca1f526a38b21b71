"""An externally created gang as far as its pods exist, and the requests to the planner for it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from kgwe.cluster.gangs.gang_lifecycle import GangPhase, next_phase
from kgwe.cluster.workload.owner import Replacement
from kgwe.cluster.workload.unpinned import strip_placement
from kgwe.kube import dialects
from kgwe.kube.dialects import member_presence as presence
from kgwe.kube.translate import podrequest
from kgwe.model.units.phrasing import format_count
from kgwe.placement.disruption.partial_gang import PartialGang, PartialMember, gang_of_missing
from kgwe.placement.gang.request import GangRequest
from kgwe.placement.planning.ask import Ask

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kgwe.cluster.gangs.gang_lifecycle import GangEvent
    from kgwe.cluster.gangs.offered_seats import OfferedSeat
    from kgwe.kube.api import core
    from kgwe.kube.dialects import Gang, Key, Membership
    from kgwe.kube.dialects.member_presence import Members, Presence
    from kgwe.kube.dialects.membership import Size
    from kgwe.model.network.domains import Tree
    from kgwe.placement.disruption.running import Running
    from kgwe.placement.fleet.node import Request
    from kgwe.placement.live.fleet import LiveFleet


@dataclass
class Group:
    """One gang, as far as its pods exist."""

    key: Key
    phase: GangPhase = GangPhase.COLLECTING
    members: dict[str, tuple[core.Pod, Membership]] = field(default_factory=dict)  # by pod uid
    seats: dict[str, int] = field(default_factory=dict)  # pod uid -> seat of the plan
    gang: Gang | None = None  # as it was requested last
    start: int = 0  # number of the first seat of the last plan
    awaited: dict[int, Membership] = field(default_factory=dict)  # seat reserved for a new pod -> its last member
    kept: set[int] = field(default_factory=set)  # of those, seats of drained pods
    offered: dict[int, OfferedSeat] = field(default_factory=dict)  # seat reserved for a pod that is being created
    lost: dict[int, Request] = field(default_factory=dict)  # seat that a pod left -> what that pod asked for
    makes_way: bool = False  # it is being preempted
    release_reason: str = ""  # why its seats were released (phase RELEASED)
    last_since: str = ""  # when that happened last: it waits from then on
    revoked: set[str] = field(default_factory=set)  # pods that may still show a seat which was released
    asked_about: set[str] = field(default_factory=set)  # pods that kube-scheduler would bind by now
    problem: str = ""
    plain: Size | None = None  # the size that all pods declare, if it is complete as soon as so many exist
    lacking: int = 0  # then: how many do not exist yet
    rests_until: float = 0.0  # not looked at again before

    def advance(self, event: GangEvent) -> None:
        """Enter the phase that follows the event; InvariantBroken if it cannot happen now."""
        self.phase = next_phase(self.phase, event)

    def only_counts(self, pod: core.Pod, member: Membership) -> bool:
        """Whether the pod changes nothing but their number: a large gang is not looked at for each of them."""
        if self.plain is None or self.seats or self.awaited or not presence.is_present(pod):
            return False
        return presence.says_size_only(member) and member.size == self.plain

    def reserve_seat(self, number: int, member: Membership) -> None:
        """Reserve the seat of a drained pod for the pod that its owner creates next."""
        self.awaited[number] = member
        self.kept.add(number)

    @property
    def is_empty(self) -> bool:
        """Whether neither pods nor seats for pods to come are left."""
        return not (self.members or self.awaited or self.offered)

    def take_seat(self, uid: str, number: int) -> None:
        """The pod has the seat now."""
        self.offered.pop(number, None)
        self.seats[uid] = number
        self.lost.pop(number, None)

    def is_regaining_seats(self, partial: PartialGang) -> bool:
        """Whether the gang is broken and asks for no more than the seats it had.

        Only such a gang goes before other workloads. A pod that its user bound to a node does not prove that the whole
        gang ever had a place.
        """
        if not partial.is_broken or self.last_since:
            return False
        missing = [each.request for each in partial.members if not each.node]
        had = sorted(self.lost.values(), key=_request_size, reverse=True)
        for asked in sorted(missing, key=_request_size, reverse=True):
            fit = next((i for i, each in enumerate(had) if _asks_for_no_more(each, asked)), None)
            if fit is None:
                return False
            del had[fit]
        return True

    @property
    def unbound(self) -> list[core.Pod]:
        """Pods with a seat that have no node yet."""
        seated = (pod for uid, (pod, _) in self.members.items() if uid in self.seats)
        return [pod for pod in seated if not pod.spec.nodeName and pod.metadata.deletionTimestamp is None]

    def note_missing(self, members: Members, found: Presence) -> None:
        """Note how many pods are missing, if their number decides whether the gang is complete."""
        self.plain = presence.plain_size(members)
        self.lacking = 0 if self.plain is None else self.plain.least - found.all.total()

    def say_lacking(self) -> None:
        self.problem = f"gang {self.key.title} incomplete: waiting for {format_count(self.lacking, 'more pod')}"

    @property
    def unseated(self) -> list[core.Pod]:
        return [pod for uid, (pod, _) in self.members.items() if uid not in self.seats and not pod.spec.nodeName]

    @property
    def since(self) -> str:
        """When its first pod was created, or its seats were released."""
        return self.last_since or min(pod.metadata.creationTimestamp or "" for pod, _ in self.members.values())


def _request_size(request: Request) -> tuple[int, ...]:
    gpus = request.gpus
    return (gpus.count, gpus.slices, gpus.milli, gpus.share_mib, request.cpu_milli, request.memory_bytes)


def _asks_for_no_more(had: Request, asked: Request) -> bool:
    """Whether a pod asks for no more than the pod before it."""
    is_alike = asked.gpus.profile in ("", had.gpus.profile)
    return is_alike and all(now <= before for now, before in zip(_request_size(asked), _request_size(had), strict=True))


def ask_for(owner: str, group: Group, found: Gang, tree: Tree) -> Ask:
    """A request for the whole gang, of which no pod has a place yet."""
    return Ask(
        owner=owner,
        request=found.request.roles[0].request,
        pods=found.request.replicas,
        gang=found.request,
        first=next(found.requests_to_try(tree)) if found.preferred_domain else None,
        priority=found.request.priority,
        since=group.since,
        namespace=group.key.namespace,
        name=group.key.title,
        fields=podrequest.FIELDS,
    )


def partial_of(group: Group, nodes: Mapping[str, str], request_of: Callable[[core.Pod], Request]) -> PartialGang | None:
    """The partially placed gang (`nodes`: pod -> node); None if it is fully placed or fully unplaced."""
    alive = [
        (strip_placement(pod), member) for pod, member in group.members.values() if not pod.metadata.deletionTimestamp
    ]
    placed = [bool(nodes[pod.metadata.uid]) for pod, _ in alive]
    if not any(placed) or all(placed):
        return None
    found = dialects.gang_request(alive, request_of)
    if isinstance(found, dialects.Problem):
        return None
    members = tuple(
        PartialMember(pod.metadata.uid, request_of(pod), nodes[pod.metadata.uid])
        for pod in found.order
        if pod is not None
    )
    least = sum(role.required_replicas for role in found.request.roles)
    return PartialGang(members, found.request, least if least < len(members) else None)


def ask_beside(owner: str, fleet: LiveFleet, partial: PartialGang, *, since: str, namespace: str, name: str) -> Ask:
    """A request for the pods without a place, near those that have one."""
    gang = gang_of_missing(fleet.fitter, fleet.tree, partial)
    return Ask(
        owner=owner,
        request=gang.roles[0].request,
        pods=gang.replicas,
        gang=gang,
        partial=partial,
        priority=gang.priority,
        since=since,
        namespace=namespace,
        name=name,
    )


def ask_for_lost(running: Running, fleet: LiveFleet, namespace: str, name: str) -> Ask | None:
    """A request for new places for the failed members, before others of their priority; None: none failed."""
    nodes = fleet.snapshot.nodes
    members = tuple(
        PartialMember(
            member.name,
            member.request,
            "" if member.failed or member.grant is None else nodes[member.grant.node].name,
        )
        for member in running.members
    )
    gang = running.gang or GangRequest.uniform(members[0].request, len(members), priority=running.priority)
    partial = PartialGang(members, gang, running.min_members)
    if not partial.missing:
        return None
    found = ask_beside(Replacement(running.name).text, fleet, partial, since="", namespace=namespace, name=name)
    return replace(found, first_claim=True, priority=running.priority)
