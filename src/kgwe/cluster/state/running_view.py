"""Running workloads, gangs and pods as preemption and recovery see them (`kgwe.placement.disruption.running`).

What a workload needs is read from its spec, and how its GPUs were divided from its run. An externally created gang is
read from its pods as they were before they got their places. A member is named by the number of its seat, or by the
uid of the pod if there is no seat. Members are in the order of ranks.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import structlog

from kgwe import errors
from kgwe.cluster.state import effective_seats
from kgwe.cluster.workload import runs
from kgwe.cluster.workload.manifests import pod_template, workload_ask
from kgwe.cluster.workload.unpinned import strip_placement
from kgwe.kube import dialects
from kgwe.kube.api import timestamp
from kgwe.kube.api.kgwe.gpuworkload import RecoveryPolicy
from kgwe.kube.translate import podrequest
from kgwe.model.units import amounts as resources
from kgwe.placement.disruption.running import Member, Repair, Running
from kgwe.placement.live.holding import Holding
from kgwe.placement.live.ledger import seat_key
from kgwe.placement.planning import planner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from kgwe.cluster.gangs.external_gangs import ExternalGangs
    from kgwe.cluster.gangs.gang_group import Group
    from kgwe.cluster.state.cluster_state import ClusterState
    from kgwe.cluster.workload.runs import Flavor, Run
    from kgwe.cluster.workload.workload import Workload
    from kgwe.kube.api import core
    from kgwe.placement.fleet.node import Request
    from kgwe.placement.fleet.snapshot import Grant
    from kgwe.placement.gang.request import GangRequest
    from kgwe.placement.planning.ask import Ask

log = structlog.get_logger(__name__)

#: on external pods: what recovery does when a pod of the gang is lost (ReplaceFailed, RestartGang, None)
RECOVERY_ANNOTATION: Final = "kgwe.nvidia.io/recovery"
#: on external pods: "true" allows workloads of higher priority to preempt them
PREEMPTIBLE_ANNOTATION: Final = podrequest.PREEMPTIBLE

_REPAIRS: Final = {
    RecoveryPolicy.REPLACE_FAILED: Repair.REPLACE_FAILED,
    RecoveryPolicy.RESTART_GANG: Repair.RESTART_GANG,
    RecoveryPolicy.NONE: Repair.NONE,
}


def _is_never_lost(_: Holding) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class _Pods:
    """The existing pods of an externally created gang, and the request of each."""

    order: tuple[core.Pod, ...]
    request: GangRequest
    least: int


class RunningView:
    """What runs; the request of a workload is read once per spec."""

    def __init__(self, state: ClusterState, gangs: ExternalGangs, default_image: str) -> None:
        self._state = state
        self._gangs = gangs
        self._image = default_image
        self._asks: dict[str, tuple[tuple[int, str, Flavor | None], Ask | None]] = {}

    def forget(self, owner: str) -> None:
        self._asks.pop(owner, None)

    def find(self, owner: str, is_lost: Callable[[Holding], bool] = _is_never_lost) -> Running | None:
        """The owner with its members; a member must leave its place if `is_lost` is true for it. None: not known."""
        if self._gangs.group(owner) is not None:
            return self._of_gang(owner, is_lost)
        return self._of_workload(owner, is_lost)

    def list_all(self) -> Iterator[Running]:
        """All owners that have seats."""
        for owner in list(self._state.ledger.owners()):
            found = self.find(owner)
            if found is not None:
                yield found

    def list_preemptible(self, on_error: Callable[[str, str, Exception], None] | None = None) -> Iterator[Running]:
        """All preemptible owners; a gang that loses a member stops as a whole.

        `on_error` is called for an owner that cannot be read; without it the error is raised.
        """
        for read, keys in (
            (self._preemptible_workload, list(self._state.runs)),
            (self._preemptible_gang, list(self._gangs.owners())),
            (self._preemptible_pod, list(self._state.pods)),
        ):
            for key in keys:
                try:
                    found = read(key)
                except Exception as exc:
                    if on_error is None:
                        raise
                    on_error("census", key, exc)
                    continue
                if found is not None and found.placed_members:
                    yield found

    def _preemptible_workload(self, owner: str) -> Running | None:
        run, workload = self._state.runs.get(owner), self._state.find_workload(owner)
        if run is None or workload is None or not workload.preemptible or run.meta.deletionTimestamp is not None:
            return None
        found = self._of_workload(owner, _is_never_lost)
        return None if found is None else replace(found, min_members=None)

    def _preemptible_gang(self, owner: str) -> Running | None:
        found = self._of_gang(owner, _is_never_lost) if self._is_preemptible(owner) else None
        return None if found is None else replace(found, min_members=None)

    def _preemptible_pod(self, uid: str) -> Running | None:
        pod = self._state.pods.get(uid)
        if pod is None or pod.metadata.annotations.get(PREEMPTIBLE_ANNOTATION) != "true" or not self._stands_alone(pod):
            return None
        grant, request = self.grant_of(uid), self._try_request(pod)
        if grant is None or request is None:
            return None
        started = _parse_start(pod.status.startTime)
        return Running(uid, (Member(uid, request, grant),), pod.spec.priority, started_at_s=started)

    def list_preemptible_priorities(self) -> Iterator[int]:
        """Priorities of everything preemptible, whether or not it holds GPUs: cheap."""
        for owner in self._state.runs:
            workload = self._state.find_workload(owner)
            if workload is not None and workload.preemptible:
                yield workload.priority
        for pod in self._state.pods.values():
            if pod.metadata.annotations.get(PREEMPTIBLE_ANNOTATION) == "true":
                yield pod.spec.priority

    def _is_preemptible(self, owner: str) -> bool:
        group = self._gangs.group(owner)
        pods = [pod for pod, _ in group.members.values()] if group is not None else []
        return all(pod.metadata.annotations.get(PREEMPTIBLE_ANNOTATION) == "true" for pod in pods)

    def _stands_alone(self, pod: core.Pod) -> bool:
        return bool(pod.spec.nodeName) and self._state.is_external(pod) and self._gangs.seat(pod.metadata.uid) is None

    def grant_of(self, key: str) -> Grant | None:
        """What the holder has, as one grant; None if its node does not exist, or it has several kinds of devices."""
        grants = self._state.fleet.grants(key)
        if len(grants) <= 1:
            return grants[0] if grants else None
        first, *others = grants
        if any(each.whole_or_shared for each in grants):
            return None
        return replace(first, slices=tuple(each for other in others for each in other.slices))

    # --- workloads --------------------------------------------------------------------------------------

    def _of_workload(self, owner: str, is_lost: Callable[[Holding], bool]) -> Running | None:
        run, workload = self._state.runs.get(owner), self._state.find_workload(owner)
        if run is None or workload is None or run.ended is not None or run.suspended:
            return None
        ask = self._ask_of_run(workload, run)
        if ask is None:
            return None
        ledger = self._state.ledger
        places = effective_seats.effective_seats(self._state, owner)
        members = tuple(
            Member(
                str(number),
                ask.request,
                self.grant_of(ledger.pod_in(owner, number) or seat_key(owner, number)),
                failed=is_lost(places[number]),
            )
            for number in sorted(places)
        )
        return Running(
            owner,
            members,
            priority=workload.priority,
            preemptible=workload.preemptible,
            started_at_s=_parse_start(run.start_time or run.meta.creationTimestamp),
            min_members=1 if workload.serves else None,
            gang=self._gang_of(replace(ask, pods=len(members))),
            repair=_REPAIRS.get(RecoveryPolicy(workload.recovery), Repair.NONE),
        )

    def find_request(self, owner: str) -> Request | None:
        """What each pod of a running workload asks for by its spec, as before it got a place; None: not known."""
        run, workload = self._state.runs.get(owner), self._state.find_workload(owner)
        ask = self._ask_of_run(workload, run) if run is not None and workload is not None else None
        return None if ask is None else ask.request

    def _ask_of_run(self, workload: Workload, run: Run) -> Ask | None:
        """What each pod of the run asks for: read from the present spec, divided as the run is."""
        key = (workload.meta.generation, run.meta.uid, run.flavor)
        known = self._asks.get(workload.meta.uid)
        if known is None or known[0] != key:
            known = self._asks[workload.meta.uid] = (key, self._read_ask(workload, run))
        return known[1]

    def _read_ask(self, workload: Workload, run: Run) -> Ask | None:
        try:
            template = pod_template.build_pod_template(workload, self._image)
            ask = workload_ask.build_ask(replace(workload, claims=run.claims), template, frozenset())
            ask = runs.apply_flavor(run, ask)
        except (errors.Permanent, KeyError, TypeError, AttributeError, ValueError) as exc:
            # Edited since into something that could not start.
            log.info("not_in_census", workload=workload.meta.key, error=str(exc))
            return None
        request = ask.request
        if request.gpus.count:
            request = replace(request, gpus=replace(request.gpus, count=run.wanted.get(resources.GPU, 0)))
        return replace(ask, request=request, amounts=run.wanted, pods=len(run.seats), divisible=False)

    @staticmethod
    def _gang_of(ask: Ask) -> GangRequest | None:
        if ask.pods == 1:
            return None
        try:
            return planner.gang_request(ask)
        except errors.Permanent:
            # Some ranks are done: its segments are no longer whole. What binds all of it still does.
            return planner.gang_request(replace(ask, nearness=replace(ask.nearness, segments=())))

    # --- externally created gangs -----------------------------------------------------------------------

    def _of_gang(self, owner: str, is_lost: Callable[[Holding], bool]) -> Running | None:
        group = self._gangs.group(owner)
        pods = self._combine_pods(group) if group is not None else None
        if group is None or pods is None:
            return None
        members = tuple(self._build_member(owner, group, pod, is_lost) for pod in pods.order)
        return Running(
            owner,
            members,
            priority=pods.request.priority,
            preemptible=self._is_preemptible(owner),
            started_at_s=min(_parse_start(pod.status.startTime) for pod in pods.order),
            min_members=pods.least if pods.least < len(members) else None,
            gang=pods.request if len(members) > 1 else None,
            repair=repair_of(pods.order),
        )

    def _build_member(self, owner: str, group: Group, pod: core.Pod, is_lost: Callable[[Holding], bool]) -> Member:
        uid = pod.metadata.uid
        real = group.members[uid][0]
        number = group.seats.get(uid)
        place = self._state.ledger.reserved_seat(owner, number) if number is not None else None
        if place is not None and number is not None:
            place = effective_seats.effective_seat(self._state, owner, number, place)
        if place is None and real.spec.nodeName:
            place = Holding(real.spec.nodeName)
        grant = None
        if place is not None:
            key = uid if uid in self._state.fleet else seat_key(owner, number if number is not None else -1)
            grant = self.grant_of(key)
        name = str(number) if number is not None else uid
        return Member(name, self._read_request(pod), grant, failed=place is not None and is_lost(place))

    def _combine_pods(self, group: Group) -> _Pods | None:
        """All pods of the gang as one request, as if none had a place yet."""
        members = [
            (strip_placement(pod), member)
            for pod, member in group.members.values()
            if pod.metadata.deletionTimestamp is None
        ]
        if not members:
            return None
        found = dialects.gang_request(members, self._read_request)
        if isinstance(found, dialects.Problem):
            return None
        order = tuple(pod for pod in found.order if pod is not None)
        least = sum(role.required_replicas for role in found.request.roles)
        return _Pods(order, found.request, least) if order else None

    def _read_request(self, pod: core.Pod) -> Request:
        return podrequest.read_request(pod, pieces=self._state.fleet.shares_per_gpu(pod.spec.nodeName)).request

    def _try_request(self, pod: core.Pod) -> Request | None:
        """The request of the pod; None if it cannot be read."""
        try:
            return self._read_request(pod)
        except errors.Permanent:
            return None


def repair_of(pods: Sequence[core.Pod]) -> Repair:
    """The recovery policy in the annotation of the pods; by default ReplaceFailed if a controller recreates them.

    A StatefulSet guarantees that no two pods of one name run, which cannot be kept on a node that does not respond:
    there recovery has to be requested. Pods without a controller are left alone, because nothing would recreate them.
    Unknown or contradicting policies mean None.
    """
    said = {pod.metadata.annotations.get(RECOVERY_ANNOTATION, "") for pod in pods} - {""}
    makers = {pod.metadata.controller.kind if pod.metadata.controller else "" for pod in pods}
    if "" in makers or len(said) > 1:
        return Repair.NONE
    if not said:
        return Repair.NONE if "StatefulSet" in makers else Repair.REPLACE_FAILED
    text = said.pop()
    return Repair(text) if text in set(Repair) else Repair.NONE


def _parse_start(text: str | None) -> float:
    """When it started; now if it has not started, because then it loses nothing."""
    return timestamp.epoch_seconds(text) if text else time.time()
