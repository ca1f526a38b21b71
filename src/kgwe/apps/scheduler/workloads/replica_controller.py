"""Replicas of inference workloads: decides which should run, and reports them in one status."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import structlog

from kgwe.apps.scheduler.workloads import replica_status
from kgwe.cluster.workload import replica_uid
from kgwe.kube.api import timestamp
from kgwe.placement.disruption.rollout import Mode, Surge
from kgwe.placement.refusal import Reason

if TYPE_CHECKING:
    from collections.abc import Callable

    from kgwe.apps.scheduler.planning.planner import Planner
    from kgwe.apps.scheduler.workloads.writer import StatusWriter
    from kgwe.cluster.registry.replica_groups import ReplicaGroup
    from kgwe.cluster.state.cluster_state import ClusterState
    from kgwe.cluster.workload.workload import Key, Workload

log = structlog.get_logger(__name__)

# Changes of several replicas within this time are one write.
_GATHER_S: Final = 0.2
# Each of many replicas asks for a decision about all of them. Above this number they are decided about only so often.
_FEW: Final = 8


class ReplicaController:
    """Each replica is reconciled like a workload; this says which of them should exist."""

    def __init__(
        self, state: ClusterState, planner: Planner, writer: StatusWriter, *, requeue: Callable[[Key, float], None]
    ) -> None:
        self._state = state
        self._planner = planner
        self._writer = writer
        self._requeue = requeue
        #: uid of an object with many replicas -> when they may be decided about again
        self._next_s: dict[str, float] = {}

    def handle_status(self, workload: Workload) -> None:
        """The status of one of several replicas changed: report the workload soon."""
        self._requeue(workload.object_key, _GATHER_S)

    def update(self, uid: str) -> None:
        """Decide which replicas of the workload should run; those that change are reconciled."""
        group = self._state.replicas.find(uid)
        owner = replica_uid.object_uid(uid)
        if group is None or len(group.numbers) <= _FEW:
            self._next_s.pop(owner, None)
        if group is None:
            return
        now_s = time.monotonic()
        if now_s < self._next_s.get(owner, 0.0):
            self._requeue(group.parent.object_key, _GATHER_S)
            return
        if len(group.numbers) > _FEW:
            self._next_s[owner] = now_s + _GATHER_S
        surge = self._find_surge(group)
        before, had = group.step, set(group.numbers)
        self._state.update_replicas(owner, surge)
        if group.step != before or group.numbers != had:
            self._requeue(group.parent.object_key, _GATHER_S)
            log.info(
                "replicas_decided",
                workload=group.parent.meta.key,
                kept=sorted(group.step.kept),
                asking=sorted(group.step.asking),
                mode=str(group.step.mode),
            )
        if group.step.mode is Mode.ONE_BY_ONE:
            for number in group.step.asking:
                self._let_follow(replica_uid.make_uid(owner, number))

    def _let_follow(self, uid: str) -> None:
        """The replica gets the place of the one that stops for it: it comes first among its priority."""
        key = self._state.keys.get(uid)
        if key is not None and self._planner.interruptions.get(uid) is None:
            words = "its predecessor stops to make room for it"
            self._planner.interruptions.record(uid, Reason.RECOVERING, words)
            self._requeue(key, 0.0)

    def _find_surge(self, group: ReplicaGroup) -> Surge:
        uid = group.parent.meta.uid
        refusals = [self._planner.refusal_of(replica_uid.make_uid(uid, number)) for number in group.step.asking]
        found = [each for each in refusals if each is not None]
        if not found:
            return Surge.UNKNOWN
        return Surge.NO_ROOM if any(each.possible for each in found) else Surge.IMPOSSIBLE

    async def report(self, workload: Workload) -> None:
        """Write the status of a workload with several replicas."""
        group = self._state.replicas.find(workload.meta.uid)
        if group is None or not group.is_multiple or workload.replica:
            return
        views = list(self._state.replicas.list_views(group))
        if not replica_status.is_complete(views):
            self._requeue(workload.object_key, _GATHER_S)
            return
        status = replica_status.build_status(group, views, timestamp.seconds())
        await self._writer.write_object_status(group.parent, status)
