"""Offers the pods of a gang their seats while they are created.

first pod ──► the whole gang is queued ──► its seats are reserved for 10 s ──► each pod gets one while it is created
                no plan within a second: the pods keep their gates, and are planned when all exist

The size of a gang is a claim. What it can have before its pods exist is limited: the queue places it like any other
gang, so it holds no more than its turn, its budget and its priority allow, and it stops no other work. ResourceQuotas
must leave room for all its pods and for the seats of other offers. Seats for which no pod came are free after 10 s, and
the namespace gets no offers for a pause, which doubles each time. A namespace has few offers at a time. All of this is
in memory: a new leader knows the seats of pods that exist, no others.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import msgspec
import structlog

from kgwe import errors
from kgwe.cluster.gangs import gang_group, offered_seats
from kgwe.cluster.gangs.gang_group import Group
from kgwe.cluster.gangs.gang_lifecycle import GangPhase
from kgwe.cluster.workload import creation_patch, metadata_keys, placement_annotations, scheduler_policy
from kgwe.cluster.workload.owner import ExternalGangOwner
from kgwe.kube import dialects
from kgwe.kube.api import core, timestamp
from kgwe.kube.translate import podrequest, quota_room
from kgwe.placement.planning.plan import Plan
from kgwe.placement.planning.planner import pod_amounts

if TYPE_CHECKING:
    from collections.abc import Callable

    from kgwe.apps.scheduler.deps import Deps
    from kgwe.kube.dialects import Membership
    from kgwe.kube.translate.admission_wire import AdmissionRequest, Patch
    from kgwe.placement.fleet.node import Request
    from kgwe.placement.planning.ask import Ask
    from kgwe.placement.refusal import Refusal

log = structlog.get_logger(__name__)

# The API server waits 2 s for an answer.
_PLAN_S: Final = 1.0
# A gang of more pods is planned when its pods exist: its size is a claim, and planning takes time.
_MOST_PODS: Final = 1024
# The pause of a namespace after an offer that its pods did not take, and the longest one.
_PAUSE_S: Final = 60.0
_LONGEST_PAUSE_S: Final = 3600.0
# So long after a pause the next one is still twice as long, even if pods take their seats.
_MEMORY_S: Final = 3600.0
# The offers of a namespace that have seats without pods, and these seats.
_MOST_OPEN: Final = 64
_MOST_OPEN_SEATS: Final = _MOST_PODS
_MOST_NAMESPACES: Final = 10_000
_GROUP_KINDS_OF_ONE: Final = "Pod"


@dataclass(frozen=True, slots=True)
class Member:
    """A pod that is being created, as a member of its gang."""

    pod: core.Pod
    membership: Membership
    request: Request

    @property
    def owner(self) -> str:
        return ExternalGangOwner(self.membership.key).text

    @property
    def facts(self) -> tuple[object, ...]:
        """What all pods of the gang must have in common."""
        return dataclasses.replace(self.membership, index=None, done=None), self.request, self.pod.spec.priority


@dataclass
class _Offer:
    first: Member
    pods: int
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    is_planned: bool = False
    timer: asyncio.TimerHandle | None = None


@dataclass(frozen=True, slots=True)
class _Pause:
    until_s: float
    length_s: float


class SeatOffers:
    """One term's offers."""

    def __init__(
        self,
        deps: Deps,
        *,
        request_plan: Callable[[Ask], None],
        withdraw_request: Callable[[str], None],
        track: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`track`: check whether the pods of a gang are bound in time."""
        self._state = deps.state
        self._gangs = deps.gangs
        self._metrics = deps.metrics
        self._hold_s = deps.settings.offer_hold_seconds
        self._request_plan = request_plan
        self._withdraw_request = withdraw_request
        self._track = track
        self._list_quotas = deps.list_quotas
        self._clock = clock
        self._wall = wall
        self._offers: dict[str, _Offer] = {}
        self._pauses: dict[str, _Pause] = {}

    # --- a pod is being created -------------------------------------------------------------------------

    async def find_seat(self, request: AdmissionRequest) -> Patch:
        """Return the changes that give the pod a seat of its gang; empty: it is created as it is."""
        if request.dryRun or request.operation != "CREATE" or request.object is None:
            return []
        member = self._read_member(request)
        if member is None:
            return []
        offer = self._offers.get(member.owner) or self._open(member)
        if offer is None:
            return []
        if member.facts != offer.first.facts or not await self._wait_for_plan(offer):
            # Its gang is not what its first pod said, or has no plan yet: it is planned when all its pods exist.
            if self._offers.get(member.owner) is offer:
                self._close(member.owner)
            return []
        return self._give_seat(member, request) if offer.is_planned else []

    @staticmethod
    async def _wait_for_plan(offer: _Offer) -> bool:
        """Return whether the planner decided in time."""
        try:
            async with asyncio.timeout(_PLAN_S):
                await offer.asked.wait()
        except TimeoutError:
            return offer.asked.is_set()
        return True

    def _read_member(self, request: AdmissionRequest) -> Member | None:
        try:
            pod = msgspec.convert(request.object, core.Pod, strict=False)
        except msgspec.ValidationError:
            return None
        meta, spec = msgspec.structs.replace(pod.metadata, namespace=request.namespace), pod.spec
        pod = msgspec.structs.replace(pod, metadata=meta)
        if spec.nodeName or spec.resourceClaims or metadata_keys.UID_LABEL in meta.labels:
            return None
        if placement_annotations.OFFER_ANNOTATION in meta.annotations or not dialects.is_present(pod):
            return None
        if not scheduler_policy.spec_of(self._state.config).enableGangScheduling:
            return None
        found = dialects.find_membership(pod, self._state.group_objects.groups())
        if found is None or found.key.kind == _GROUP_KINDS_OF_ONE or not _is_uniform(found):
            return None
        try:
            wanted = podrequest.read_request(pod).request
        except errors.Permanent:
            return None
        # Only whole GPUs: a slice or a share is a device, and the node's agent does not read offers.
        return Member(pod, found, wanted) if wanted.gpus.count else None

    # --- offers -----------------------------------------------------------------------------------------

    def _open(self, first: Member) -> _Offer | None:
        """Queue the gang of a first pod; None: it is planned when all its pods exist."""
        member, owner, namespace = first.membership, first.owner, first.pod.metadata.namespace
        pods = _count_pods(member)
        if not 0 < pods <= _MOST_PODS or self._gangs.group(owner) is not None or self._is_paused(namespace):
            return None
        if not self._has_room(first, pods):
            return None
        found = dialects.gang_request(_list_copies(first, pods), lambda _pod: first.request)
        if isinstance(found, dialects.Problem):
            return None
        group = Group(member.key, last_since=timestamp.seconds())
        offer = self._offers[owner] = _Offer(first, pods)
        self._request_plan(gang_group.ask_for(owner, group, found, self._state.fleet.tree))
        return offer

    def _has_room(self, first: Member, pods: int) -> bool:
        """Whether the namespace may have these seats beside those that its other offers keep."""
        namespace = first.pod.metadata.namespace
        offers = seats = 0
        wanted = Counter(_multiply(first, pods))
        for owner, offer in self._offers.items():
            if offer.first.pod.metadata.namespace == namespace and (unclaimed := self._count_unclaimed(owner, offer)):
                offers += 1
                seats += unclaimed
                wanted.update(_multiply(offer.first, unclaimed))
        if offers >= _MOST_OPEN or seats + pods > _MOST_OPEN_SEATS:
            return False
        return quota_room.has_room(self._list_quotas(), namespace, wanted)

    def _count_unclaimed(self, owner: str, offer: _Offer) -> int:
        """Return the seats of an offer that no pod has yet. ResourceQuotas count the pods that exist."""
        if not offer.is_planned:
            return offer.pods
        group = self._gangs.group(owner)
        return 0 if group is None else len(group.offered)

    def _is_paused(self, namespace: str) -> bool:
        pause = self._pauses.get(namespace)
        return pause is not None and self._clock() < pause.until_s

    def is_asking(self, owner: str) -> bool:
        """Whether the gang is queued for an offer."""
        offer = self._offers.get(owner)
        return offer is not None and not offer.asked.is_set()

    def decide(self, owner: str, decision: Plan | Refusal) -> None:
        """Deliver the decision of the planner. The seats of a plan are reserved."""
        offer = self._offers[owner]
        if not isinstance(decision, Plan) or decision.gang is None:
            self._end(owner)
            return
        has_index = offer.first.membership.index is not None
        seats = {decision.start + seat.rank: seat.index if has_index else None for seat in decision.gang.seats}
        self._gangs.offer_seats(owner, offer.first.membership.key, seats)
        if (group := self._gangs.group(owner)) is not None:
            group.start = decision.start
        offer.is_planned = True
        offer.asked.set()
        self._metrics.offers.labels("made").inc()
        offer.timer = asyncio.get_running_loop().call_later(self._hold_s, functools.partial(self._expire, owner))

    def _give_seat(self, member: Member, request: AdmissionRequest) -> Patch:
        owner, pod = member.owner, member.pod
        group, signer = self._gangs.group(owner), self._state.signer
        if group is None or signer is None or request.object is None:
            return []
        number = offered_seats.choose_seat(group, member.membership, pod.metadata.name, self._clock())
        place = None if number is None else self._state.ledger.booked_seat(owner, number)
        if number is None or place is None:
            return []
        text = signer.sign_offer(request.namespace, owner, number, place, int(self._wall()))
        meta, body = (creation_patch.read_map(request.object, part) for part in ("metadata", "spec"))
        self._metrics.offers.labels("seat").inc()
        return [
            *creation_patch.begin_annotations(meta),
            creation_patch.annotate(placement_annotations.OFFER_ANNOTATION, text),
            *creation_patch.remove_gate(body),
            *creation_patch.pin_to_node(body, place.node),
        ]

    # --- the end of an offer ----------------------------------------------------------------------------

    def _expire(self, owner: str) -> None:
        namespace = self._offers[owner].first.pod.metadata.namespace
        if not self._close(owner):
            self._forget_pause(namespace)

    def _close(self, owner: str) -> int:
        """End an offer during the term: seats that no pod took pause the namespace. Returns how many these are."""
        namespace = self._offers[owner].first.pod.metadata.namespace
        unclaimed = self._end(owner)
        if unclaimed:
            self._pause(namespace)
            log.info("offer_expired", gang=owner, unclaimed=unclaimed)
            self._metrics.offers.labels("expired").inc()
        return unclaimed

    def _forget_pause(self, namespace: str) -> None:
        """Pods took their seats. That ends no pause: else a gang of one would pay for a large one that never comes."""
        pause = self._pauses.get(namespace)
        if pause is not None and self._clock() >= pause.until_s + _MEMORY_S:
            del self._pauses[namespace]

    def _pause(self, namespace: str) -> None:
        if self._is_paused(namespace):
            return  # several offers ended together
        before = self._pauses.pop(namespace, None)
        length_s = _PAUSE_S if before is None else min(2 * before.length_s, _LONGEST_PAUSE_S)
        self._pauses[namespace] = _Pause(self._clock() + length_s, length_s)
        if len(self._pauses) > _MOST_NAMESPACES:
            del self._pauses[next(iter(self._pauses))]

    def _end(self, owner: str) -> int:
        """End the offer; returns how many of its seats no pod has."""
        offer = self._offers.pop(owner, None)
        if offer is None:
            return 0
        if offer.timer is not None:
            offer.timer.cancel()
        offer.asked.set()
        if not offer.is_planned:
            self._metrics.offers.labels("refused").inc()
            group = self._gangs.group(owner)
            if group is None or group.phase is GangPhase.COLLECTING:
                self._withdraw_request(owner)
            return 0
        unclaimed = self._gangs.end_offer(owner)
        self._track(owner)
        return unclaimed

    def stop(self) -> None:
        """The term ends: no seat stays reserved for a pod that does not exist."""
        for owner in list(self._offers):
            self._end(owner)


def _is_uniform(member: Membership) -> bool:
    """Whether the first pod of a gang says all about the others."""
    if member.problem is not None or member.followers is not None or member.size is None or member.done:
        return False
    return len(member.roles) <= 1 and not member.block


def _count_pods(member: Membership) -> int:
    return 0 if member.size is None else member.size.most or member.size.least


def _list_copies(first: Member, pods: int) -> list[tuple[core.Pod, Membership]]:
    """The pods of a gang, as they will be."""
    return [(first.pod, dataclasses.replace(first.membership, index=index)) for index in range(pods)]


def _multiply(member: Member, pods: int) -> dict[str, int]:
    """What so many pods take."""
    return {name: amount * pods for name, amount in pod_amounts(member.request).items()}
