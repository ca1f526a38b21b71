"""The replicas of inference workloads: each is registered as a workload of its own, with uid, key, run and status.

A replica that should not run is registered as suspended until it holds nothing. The object of the workload has one
status for all; those of single replicas are memory only, and are found again from their runs after a restart.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import msgspec

from kgwe.cluster.workload import effective_request, metadata_keys, pod_changes, replica_uid, runs
from kgwe.cluster.workload.conditions import SUSPENDED
from kgwe.cluster.workload.manifests import run_metadata
from kgwe.cluster.workload.workload import Status
from kgwe.placement.disruption.rollout import Replica, RolloutStep, Surge, decide_step

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kgwe.cluster.registry.pod_index import PodIndex
    from kgwe.cluster.registry.run_table import RunTable
    from kgwe.cluster.workload.runs import Run
    from kgwe.cluster.workload.workload import Workload
    from kgwe.kube.api import apps
    from kgwe.kube.client.informer import Change


@dataclass(slots=True)
class ReplicaGroup:
    """An inference workload and its replicas."""

    #: the object as the API shows it
    parent: Workload
    #: numbers that are registered
    numbers: set[int] = field(default_factory=lambda: {0})
    step: RolloutStep = field(default_factory=lambda: RolloutStep(frozenset(), frozenset({0})))
    surge: Surge = Surge.UNKNOWN
    #: number -> its status; of a workload that is one replica the object has it
    statuses: dict[int, Status] = field(default_factory=dict)

    @property
    def is_multiple(self) -> bool:
        """Whether the status of the object is made from those of its replicas."""
        return self.parent.desired != 1 or self.numbers != {0}


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """One replica, its run if it has a place, and whether all its pods are ready."""

    workload: Workload
    run: Run | None
    is_ready: bool
    is_wanted: bool


class ReplicaGroups:
    """Groups by the uid of their object."""

    def __init__(self, table: RunTable, pods: PodIndex) -> None:
        self._table = table
        self._pods = pods
        self._groups: dict[str, ReplicaGroup] = {}
        # uid of an object -> number -> (namespace, name) of the Deployment that claims to be this replica
        self._claimed: dict[str, dict[int, tuple[str, str]]] = {}

    def find(self, uid: str) -> ReplicaGroup | None:
        """The group of a replica or of an object."""
        return self._groups.get(replica_uid.object_uid(uid))

    def is_member(self, workload: Workload) -> bool:
        """Whether the status of the workload is a part of the status of its object."""
        group = self.find(workload.meta.uid)
        return group is not None and group.is_multiple

    # --- registration -----------------------------------------------------------------------------------

    def record_deployment(self, change: Change[apps.Deployment]) -> str:
        """Note a Deployment that may be a replica; returns the uid of an object whose replicas changed by it."""
        obj = change.new or change.old
        uid = obj.metadata.labels.get(metadata_keys.UID_LABEL, "") if obj is not None else ""
        number, parent = replica_uid.number_of(uid), replica_uid.object_uid(uid)
        if obj is None or number <= 0:
            return ""
        owner = obj.metadata.controller
        claimed = self._claimed.setdefault(parent, {})
        before = claimed.pop(number, None)
        if change.new is not None and owner is not None and owner.uid == parent:
            claimed[number] = obj.metadata.namespace, obj.metadata.name
        is_changed = claimed.get(number) != before
        if not claimed:
            del self._claimed[parent]
        return parent if is_changed else ""

    def expand(self, workload: Workload) -> list[Workload]:
        """The replicas to register for an object; for one that cannot be scaled, the workload itself."""
        uid = workload.meta.uid
        if not workload.is_scalable:
            self._groups.pop(uid, None)
            return [workload]
        group = self._groups.setdefault(uid, ReplicaGroup(workload))
        group.parent = workload
        self._update_step(group)
        if not group.is_multiple:
            group.statuses.clear()
        elif 0 not in group.statuses and not self._is_status_of_all(workload):
            group.statuses[0] = workload.status  # until now it was the status of this one replica
        return [self._build_replica(group, number) for number in sorted(group.numbers)]

    def list_dropped(self, uid: str, registered: set[str]) -> list[str]:
        """Those of the registered uids of an object that are no replicas of it any more."""
        group = self._groups.get(uid)
        numbers = group.numbers if group is not None else {0}
        return sorted(registered - {replica_uid.make_uid(uid, number) for number in numbers})

    def remove(self, uid: str) -> None:
        """The object is gone."""
        self._groups.pop(uid, None)

    def _is_status_of_all(self, workload: Workload) -> bool:
        """Whether the stored status of the object was made from several replicas, by an earlier leader."""
        counts = workload.status.replicas
        return counts is not None and (counts.placed != 1 or workload.desired != 1)

    def _update_step(self, group: ReplicaGroup) -> None:
        parent = group.parent
        uid = parent.meta.uid
        found = {0} | {
            number
            for number, claim in self._claimed.get(uid, {}).items()
            if claim == (parent.meta.namespace, run_metadata.job_name(self._name_replica(parent, number)))
        }
        present = [replica for number in sorted(found | group.numbers) if (replica := self._observe(group, number))]
        group.step = decide_step(parent.desired, present, group.surge)
        leaving = {number for number in group.numbers if number and not self._is_over(group, number)}
        group.numbers = found | group.step.wanted | leaving

    def _observe(self, group: ReplicaGroup, number: int) -> Replica | None:
        """The replica as its run shows it; None: it has no run."""
        run = self._table.runs.get(replica_uid.make_uid(group.parent.meta.uid, number))
        if run is None:
            return None
        workload = self._name_replica(group.parent, number)
        return Replica(
            number,
            is_current=not runs.is_outdated(run, workload),
            is_ready=self._is_ready(run),
            since=run.meta.creationTimestamp or "",
            is_ending=run.meta.deletionTimestamp is not None,
        )

    def _is_over(self, group: ReplicaGroup, number: int) -> bool:
        """Whether a replica that is not wanted holds nothing: it has no run, and its status says that it is out."""
        if number in group.step.wanted or replica_uid.make_uid(group.parent.meta.uid, number) in self._table.runs:
            return False
        return is_out(group.statuses.get(number, Status()))

    def _name_replica(self, parent: Workload, number: int) -> Workload:
        if not number:
            return parent
        uid = replica_uid.make_uid(parent.meta.uid, number)
        return replace(parent, meta=msgspec.structs.replace(parent.meta, uid=uid), replica=number)

    def _build_replica(self, group: ReplicaGroup, number: int) -> Workload:
        parent = group.parent
        status = group.statuses.get(number, Status()) if group.is_multiple else parent.status
        is_out = number not in group.step.wanted
        return replace(self._name_replica(parent, number), status=status, suspend=parent.suspend or is_out)

    # --- what they do -----------------------------------------------------------------------------------

    def list_views(self, group: ReplicaGroup) -> Iterator[ReplicaView]:
        """Replicas in the order of their numbers."""
        for number in sorted(group.numbers):
            workload = self._build_replica(group, number)
            run = self._table.runs.get(workload.meta.uid)
            is_ready = run is not None and self._is_ready(run)
            yield ReplicaView(workload, run, is_ready, number in group.step.wanted)

    def set_status(self, workload: Workload, status: Status) -> Workload:
        """Remember the status of one replica; returns the replica with it."""
        group = self._groups[workload.object_uid]
        group.statuses[workload.replica] = status
        return replace(effective_request.as_written(workload), status=status)

    def _is_ready(self, run: Run) -> bool:
        """Whether every pod of the run is ready."""
        ready = sum(pod_changes.is_ready(pod) for pod in self._pods.of_run(run).values())
        return run.meta.deletionTimestamp is None and 0 < max(run.pods, 1) <= ready


def is_out(status: Status) -> bool:
    """Whether a replica has stopped: it holds nothing and asks for nothing."""
    return any(each.type == SUSPENDED and each.status == "True" for each in status.conditions)
