"""Releases the seats of externally created gangs that have seats but are not bound, as for GPUWorkloads.

kube-scheduler decides in the end: a missing volume, or anything else that KGWE does not know, keeps a pod from its
planned node, and the GPUs reserved for it would be idle. A gang that kube-scheduler refuses for `schedulingTimeout`
loses its seats. After a pause, longer each time, it is planned again, behind other workloads. Bound pods stay.

Pods whose gate was removed stay pinned to their nodes, so the gang is planned on the same nodes again. When
kube-scheduler asks about all these pods again, the obstacle is gone and the pause ends. If other workloads have taken
these nodes and there is room elsewhere, the pods are deleted if their owner creates new ones, which have no pin.
"""

from __future__ import annotations

import asyncio
import functools
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import structlog

from kgwe.cluster import names
from kgwe.cluster.state import run_state
from kgwe.cluster.state.running_view import repair_of
from kgwe.cluster.workload import placement_annotations, scheduler_policy
from kgwe.kube.api import resources, timestamp
from kgwe.kube.api.meta import ObjectMeta
from kgwe.kube.api.resources import Resource
from kgwe.kube.client.events import Event
from kgwe.model.units import backoff
from kgwe.placement.disruption.running import Repair
from kgwe.placement.planning import planner
from kgwe.placement.planning.plan import Plan

if TYPE_CHECKING:
    from collections.abc import Callable

    from kgwe.apps.scheduler.deps import Deps
    from kgwe.cluster.gangs.gang_group import Group
    from kgwe.cluster.state.run_state import Unplaced
    from kgwe.kube.api import core

log = structlog.get_logger(__name__)

# kube-scheduler may show the extender's refusal for a while after the pod has a seat. The second is of older versions.
_STALE_REFUSALS: Final = (names.GANG_WAITING, "gang waits")


@dataclass
class _Seated:
    """A gang with seats, some of them without a bound pod."""

    since: float
    unbound: int


class UnboundGangs:
    """One term's gangs whose pods are not bound yet."""

    def __init__(
        self,
        deps: Deps,
        *,
        revoke: Callable[[core.Pod], None],
        remove: Callable[[str, str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`revoke`: the pod's seat was released; `remove`: delete the pod with that uid, for that reason."""
        self._state = deps.state
        self._gangs = deps.gangs
        self._settings = deps.settings
        self._events = deps.events
        self._metrics = deps.metrics
        self._rng = deps.rng
        self._revoke = revoke
        self._remove = remove
        self._clock = clock
        self._seated: dict[str, _Seated] = {}
        self._tries: dict[str, int] = {}  # gang -> times its seats were released, one after another
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def start(self) -> None:
        """Track the gangs that got their seats in an earlier term."""
        for owner in list(self._gangs.owners()):
            self.track_gang(owner)

    def stop(self) -> None:
        for timer in self._timers.values():
            timer.cancel()

    def track_gang(self, owner: str) -> None:
        """The gang has seats: check whether its pods are bound in time."""
        group = self._gangs.group(owner)
        if group is not None and group.unbound:
            self._seated[owner] = _Seated(self._clock(), len(group.unbound))
            self._call_later(owner, self._timeout_s, self._look_at)

    @property
    def _timeout_s(self) -> float:
        return scheduler_policy.plan_timeout_s(self._state.config, self._settings.placement_timeout_seconds)

    def _call_later(self, owner: str, delay_s: float, what: Callable[[str], None]) -> None:
        if (timer := self._timers.pop(owner, None)) is not None:
            timer.cancel()
        self._timers[owner] = asyncio.get_running_loop().call_later(delay_s, functools.partial(what, owner))

    def _forget_gang(self, owner: str) -> None:
        for known in (self._seated, self._tries, self._timers):
            known.pop(owner, None)

    def _look_at(self, owner: str) -> None:
        group, seated = self._gangs.group(owner), self._seated.get(owner)
        if group is None or seated is None or not group.unbound:
            self._forget_gang(owner)
            return
        now = self._clock()
        if len(group.unbound) != seated.unbound:
            seated.since, seated.unbound = now, len(group.unbound)  # its pods are being bound
        why = self._find_refusal(group)
        patience_s = self._settings.unscheduled_timeout_seconds if why is None else self._timeout_s
        if now < seated.since + patience_s:
            # kube-scheduler may refuse the pod next.
            self._call_later(owner, min(seated.since + patience_s - now, self._timeout_s), self._look_at)
            return
        message = f"no scheduler bound its pods within {patience_s:.0f} s; check spec.schedulerName"
        self._release_seats(owner, group, why or run_state.Unplaced(run_state.NOT_SCHEDULED, message))

    def _release_seats(self, owner: str, group: Group, why: Unplaced) -> None:
        tries = self._tries.get(owner, 0)
        self._tries[owner] = tries + 1
        del self._seated[owner]
        pause_s = backoff.delay_s(self._timeout_s, tries, self._rng.random())
        left, total = len(group.unbound), len(group.members)
        words = f"{left} of {total} pods not bound: {why.message}. Their reservation was released"
        pods = self._gangs.release_unbound(owner, f"{words}. Next attempt at {timestamp.seconds_from_now(pause_s)}")
        for pod in pods:
            self._revoke(pod)
        self._metrics.failures.labels(why.reason).inc()
        self._record_events(group, pods[0], why.reason, words)
        log.warning("gang_released", gang=owner, reason=why.reason, message=why.message, again_in_s=round(pause_s, 1))
        self._call_later(owner, pause_s, self._retry_gang)

    def _retry_gang(self, owner: str) -> None:
        self._gangs.plan_again(owner)
        self._call_later(owner, self._timeout_s, self._wait_for_room)

    def _wait_for_room(self, owner: str) -> None:
        """The gang waits for room on its nodes; other nodes may have room by now."""
        group = self._gangs.group(owner)
        if group is None:
            self._forget_gang(owner)
        elif owner in self._tries and group.unseated:
            self.handle_refusal(owner)
            self._call_later(owner, self._timeout_s, self._wait_for_room)

    def handle_refusal(self, owner: str) -> None:
        """A gang was refused a plan: if only the pins of its pods are in the way, delete the pods."""
        group = self._gangs.group(owner)
        if group is None or owner not in self._tries or not group.last_since or group.seats:
            return
        pods = [pod for pod, _ in group.members.values()]
        pinned = all(placement_annotations.pinned_node(pod.spec) and not pod.spec.nodeName for pod in pods)
        if not pinned or repair_of(pods) is Repair.NONE:
            return
        ask = self._gangs.ask_unpinned(owner)
        if ask is None:
            return
        found = planner.make_plan(self._state.fleet, ask, choosers={}, rng=self._rng, explain=False)
        if isinstance(found, Plan):
            log.info("gang_replaced", gang=owner, pods=len(pods))
            for pod in pods:
                self._remove(pod.metadata.uid, "its node has no room, but another node has; it is replaced")

    def _record_events(self, group: Group, pod: core.Pod, reason: str, words: str) -> None:
        """Record an Event on a pod of the gang and on the object that created it."""
        note = f"Gang {group.key.title}: {words}."
        abouts: list[tuple[Resource[Any], ObjectMeta]] = [(resources.POD, pod.metadata)]
        if (maker := pod.metadata.controller) is not None:
            group_name, _, version = maker.apiVersion.rpartition("/")
            kind: Resource[Any] = Resource(group_name, version, "", maker.kind, namespaced=True, type=object)
            abouts.append((kind, ObjectMeta(name=maker.name, namespace=pod.metadata.namespace, uid=maker.uid)))
        for kind, about in abouts:
            self._events.record(Event(kind, about, "Warning", reason, note, "Scheduling"))

    def _find_refusal(self, group: Group) -> Unplaced | None:
        """Why kube-scheduler refuses the planned node of one of the pods."""
        for pod in group.unbound:
            said = run_state.scheduler_refusal(pod)
            if said is not None and not any(text in said.message for text in _STALE_REFUSALS):
                node = placement_annotations.pinned_node(pod.spec)
                offers = self._state.reader.offers
                return run_state.describe_refusal(said.message, node, pod.metadata.namespace, offers)
        return None
