"""What KGWE knows of a cluster: builds the registries, connects them, and says which kind feeds which handler.

Informers feed it and nothing else. Every replica keeps it up to date, leader or not, so that a new leader knows the
cluster at once. Subscribers of `announcer` are called for changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kgwe.cluster import names
from kgwe.cluster.gangs.external_gangs import ExternalGangs
from kgwe.cluster.gangs.gang_table import GangTable
from kgwe.cluster.gangs.group_objects import GroupObjects
from kgwe.cluster.gangs.plain_pods import PlainPods
from kgwe.cluster.registry.announcer import Announcer, ClusterListener, ignore
from kgwe.cluster.registry.claim_names import ClaimNames
from kgwe.cluster.registry.dra_allocations import DraAllocations
from kgwe.cluster.registry.fleet_state import FleetState
from kgwe.cluster.registry.nominations import Nominations
from kgwe.cluster.registry.pod_booking import PodBooking
from kgwe.cluster.registry.pod_index import PodIndex
from kgwe.cluster.registry.pod_registry import PodRegistry
from kgwe.cluster.registry.replica_groups import ReplicaGroups
from kgwe.cluster.registry.run_registry import RunRegistry
from kgwe.cluster.registry.run_table import RunTable
from kgwe.cluster.registry.workload_registry import WorkloadRegistry
from kgwe.cluster.state.owner_directory import OwnerDirectory
from kgwe.cluster.workload import metadata_keys, replica_uid, runs, scheduler_policy
from kgwe.cluster.workload.rightsizing import RightsizingDecisions
from kgwe.cluster.workload.workload import Workload, from_kgwe, from_warp
from kgwe.kube.api import resources

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kgwe.cluster.workload.effective_request import DecisionSource
    from kgwe.cluster.workload.runs import Run
    from kgwe.cluster.workload.signatures import Signer
    from kgwe.cluster.workload.workload import Key, Status
    from kgwe.kube.api import apps, core, policy
    from kgwe.kube.api.kgwe.gpunode import GPUNode
    from kgwe.kube.api.kgwe.gpuworkload import GPUWorkload
    from kgwe.kube.api.kgwe.migstrategy import MIGStrategy
    from kgwe.kube.api.kgwe.rightsizingdecision import RightsizingDecision
    from kgwe.kube.api.kgwe.schedulerconfig import SchedulerConfig
    from kgwe.kube.api.kgwe.topologydomain import TopologyDomain
    from kgwe.kube.api.kgwe.warp import WarpGPUWorkload
    from kgwe.kube.api.resource import ResourceClaim, ResourceSlice
    from kgwe.kube.api.resources import Resource
    from kgwe.kube.api.scheduling import PriorityClass
    from kgwe.kube.client.informer import Change
    from kgwe.placement.disruption.rollout import Surge
    from kgwe.placement.live.fleet import LiveFleet
    from kgwe.placement.live.ledger import Seat


@dataclass(frozen=True, slots=True)
class Selector:
    """Which objects of a kind are read; empty: all."""

    label: str = ""
    field: str = ""


_SELECTORS: Final[Mapping[Resource[Any], Selector]] = {
    resources.DEPLOYMENT: Selector(label=metadata_keys.SELECTOR),
    # Ended pods hold nothing; leaving them out keeps memory flat however many Jobs have run.
    resources.POD: Selector(field="status.phase!=Succeeded,status.phase!=Failed"),
}


def selector_of(kind: Resource[Any]) -> Selector:
    return _SELECTORS.get(kind, Selector())


class ClusterState:
    """The registries of one replica, and the handlers that feed them."""

    def __init__(
        self,
        signer: Signer | None = None,
        report_error: Callable[[str, str, Exception], None] = ignore,
        decision_sources: tuple[DecisionSource, ...] = (),
    ) -> None:
        """`signer`: decisions it has not signed are ignored; None: a read-only tool that trusts what is written.

        `report_error` is called with a stage, an object, and the error that concerns this object only.
        `decision_sources` decide on smaller requests of workloads, the first one first.
        """
        self.signer = signer
        #: the kube-scheduler that asks this replica about pods of workloads
        self.scheduler_name = names.DEFAULT_SCHEDULER
        self._report_error = report_error
        self.announcer = Announcer()
        self.fleet_state = FleetState(self.announcer)
        self.ledger, self.reader = self.fleet_state.ledger, self.fleet_state.reader
        self.pod_index = PodIndex()
        self.pods = self.pod_index.by_uid
        self.run_table = RunTable()
        self.runs, self.orphans = self.run_table.runs, self.run_table.orphans
        self.replicas = ReplicaGroups(self.run_table, self.pod_index)
        self._rightsizing = RightsizingDecisions()
        sources = (*decision_sources, self._rightsizing)
        self.workload_registry = WorkloadRegistry(self.fleet_state, self.run_table, sources)
        self.workloads, self.keys = self.workload_registry.by_key, self.workload_registry.keys
        self.priority_classes = self.workload_registry.priority_classes
        self.claim_names = ClaimNames()
        self.budgets: dict[str, policy.PodDisruptionBudget] = {}
        gang_table = GangTable()
        self._claims = DraAllocations(self.fleet_state, self.pod_index, self.run_table)
        self.booking = PodBooking(
            fleet_state=self.fleet_state,
            pods=self.pod_index,
            run_table=self.run_table,
            claims=self._claims,
            external_seats=gang_table,
            report_error=report_error,
            signer=signer,
        )
        self.run_registry = RunRegistry(
            fleet_state=self.fleet_state,
            workloads=self.workload_registry,
            table=self.run_table,
            pods=self.pod_index,
            claims=self._claims,
            booking=self.booking,
            announcer=self.announcer,
            signer=signer,
        )
        self._pod_registry = PodRegistry(
            fleet_state=self.fleet_state,
            index=self.pod_index,
            run_table=self.run_table,
            run_registry=self.run_registry,
            booking=self.booking,
            gangs=gang_table,
            announcer=self.announcer,
            signer=signer,
        )
        self.group_objects = GroupObjects(self.fleet_state)
        self.gangs = ExternalGangs(
            fleet_state=self.fleet_state,
            pods=self.pod_index,
            run_table=self.run_table,
            table=gang_table,
            objects=self.group_objects,
            booking=self.booking,
            report_error=report_error,
        )
        self.owners = OwnerDirectory(self.workload_registry, self.run_table, self.pod_index, gang_table)
        self.nominations = Nominations(self.ledger)
        self.plain_pods = PlainPods()
        self.announcer.subscribe(
            ClusterListener(
                external_pod_changed=self._on_external_pod,
                nodes_changed=self.gangs.on_nodes_changed,
                devices_reported=self.booking.book_node,
            )
        )

    def listeners(self) -> Mapping[Resource[Any], Callable[[Any], None]]:
        """Kind -> handler of its changes, in the order in which objects can be understood."""
        return {
            resources.SCHEDULER_CONFIG: self.on_config,
            resources.PRIORITY_CLASS: self.on_priority_class,
            resources.RIGHTSIZING_DECISION: self.on_rightsizing,
            resources.TOPOLOGY_DOMAIN: self.on_domain,
            resources.MIG_STRATEGY: self.on_strategy,
            resources.NODE: self.on_node,
            resources.GPU_NODE: self.on_gpunode,
            resources.RESOURCE_SLICE: self.on_slice,
            resources.POD_DISRUPTION_BUDGET: self.on_budget,
            resources.WARP_GPU_WORKLOAD: self.on_warp,
            resources.GPU_WORKLOAD: self.on_kgwe,
            resources.JOB: self.on_job,
            resources.DEPLOYMENT: self.on_deployment,
            resources.POD: self._pod_registry.on_pod,
            resources.RESOURCE_CLAIM: self.on_claim,
        }

    # --- nodes and configuration ------------------------------------------------------------------------

    @property
    def fleet(self) -> LiveFleet:
        """The fleet after the last change; rebuilt only if nodes changed since the last call."""
        return self.fleet_state.fleet

    @property
    def config(self) -> SchedulerConfig | None:
        return self.fleet_state.config

    def on_node(self, change: Change[core.Node]) -> None:
        self.fleet_state.on_node(change)

    def on_gpunode(self, change: Change[GPUNode]) -> None:
        self.fleet_state.on_gpunode(change)

    def on_domain(self, change: Change[TopologyDomain]) -> None:
        self.fleet_state.on_domain(change)

    def on_strategy(self, change: Change[MIGStrategy]) -> None:
        self.fleet_state.on_strategy(change)

    def on_slice(self, change: Change[ResourceSlice]) -> None:
        self.fleet_state.on_slice(change)
        self.booking.book_all(self._claims.update_slice(change))

    def on_claim(self, change: Change[ResourceClaim]) -> None:
        self.booking.book_all(self._claims.update_claim(change))
        if self.claim_names.update(change):
            for workload in self.workload_registry.list_claiming(change.key):
                self.announcer.workload_touched(workload.key)

    def on_budget(self, change: Change[policy.PodDisruptionBudget]) -> None:
        self.budgets.pop(change.key, None)
        if change.new is not None:
            self.budgets[change.key] = change.new
        self.announcer.budgets_changed()

    def on_config(self, change: Change[SchedulerConfig]) -> None:
        had_gangs = scheduler_policy.spec_of(self.config).enableGangScheduling
        if not self.fleet_state.set_config(change.new):
            return
        if scheduler_policy.spec_of(change.new).enableGangScheduling != had_gangs:
            self.gangs.on_config_changed()
        for workload in list(self.workloads.values()):
            self.announcer.workload_touched(self._put_workload(workload))

    def on_priority_class(self, change: Change[PriorityClass]) -> None:
        value = change.new.value if change.new is not None else None
        for workload in self.workload_registry.set_priority_class(change.key, value):
            self.announcer.workload_touched(self._put_workload(workload))

    def on_rightsizing(self, change: Change[RightsizingDecision]) -> None:
        if namespace := self._rightsizing.update(change):
            self.renew_decisions(namespace)

    # --- workloads --------------------------------------------------------------------------------------

    def on_warp(self, change: Change[WarpGPUWorkload]) -> None:
        if change.new is not None:
            self._set_object(from_warp(change.new))
        elif change.old is not None:
            self._remove_object(change.old.metadata.uid)

    def on_kgwe(self, change: Change[GPUWorkload]) -> None:
        if change.new is not None:
            self._set_object(from_kgwe(change.new))
        elif change.old is not None:
            self._remove_object(change.old.metadata.uid)

    def _set_object(self, workload: Workload) -> None:
        """A GPUWorkload was added or changed: register its replicas."""
        for key in self._put_replicas(workload):
            self.announcer.workload_changed(key)

    def _put_replicas(self, workload: Workload) -> list[Key]:
        """Register the replicas of an object, and no others; returns their keys."""
        uid = workload.meta.uid
        keys = [self._put_workload(each) for each in self.replicas.expand(workload)]
        for dropped in self.replicas.list_dropped(uid, self.workload_registry.uids_of_object(uid)):
            self._remove_workload(dropped)
        return keys

    def update_replicas(self, uid: str, surge: Surge) -> None:
        """Decide again which replicas of an object should run; `surge`: what the planner says of one more."""
        group = self.replicas.find(uid)
        if group is None:
            return
        before = {number: self.find_workload(replica_uid.make_uid(uid, number)) for number in group.numbers}
        group.surge = surge
        for key in self._put_replicas(group.parent):
            now = self.workloads[key]
            was = before.get(now.replica)
            if was is None or was.suspend != now.suspend:
                self.announcer.workload_touched(key)

    def set_replica_status(self, workload: Workload, status: Status) -> None:
        """Remember the status of one of several replicas."""
        if self.find_workload(workload.meta.uid) is not None:
            self._put_workload(self.replicas.set_status(workload, status))

    def _put_workload(self, workload: Workload) -> Key:
        if self.workload_registry.put(workload):
            self.run_registry.adopt_claimed(workload.meta.uid)
        return workload.key

    def renew_decisions(self, namespace: str) -> None:
        """A source decides otherwise on workloads of this namespace: read those without a run again."""
        for workload in list(self.workloads.values()):
            if workload.meta.namespace == namespace and not workload.finished:
                before = workload.decision
                key = self._put_workload(workload)
                if self.workloads[key].decision != before:
                    self.announcer.workload_touched(key)

    def _remove_object(self, uid: str) -> None:
        self.replicas.remove(uid)
        for each in sorted(self.workload_registry.uids_of_object(uid)):
            self._remove_workload(each)

    def _remove_workload(self, uid: str) -> None:
        key = self.workload_registry.remove(uid)
        run = self.run_registry.abandon_run(uid)
        self.announcer.workload_removed(uid)
        if run is not None and run.meta.deletionTimestamp is None:
            self.orphans[key] = run
            self.announcer.workload_touched(key)

    def find_workload(self, uid: str) -> Workload | None:
        return self.workload_registry.find(uid)

    # --- runs and pods ----------------------------------------------------------------------------------

    def on_job(self, change: Change[core.Job]) -> None:
        self.run_registry.set_run(change, runs.read_job)

    def on_deployment(self, change: Change[apps.Deployment]) -> None:
        if group := self.replicas.find(self.replicas.record_deployment(change)):
            self._put_replicas(group.parent)
        self.run_registry.set_run(change, runs.read_deployment)

    def on_pod(self, change: Change[core.Pod]) -> None:
        self._pod_registry.on_pod(change)

    def _on_external_pod(self, uid: str, pod: core.Pod | None) -> None:
        try:
            self.nominations.on_pod(uid, pod)
        except Exception as exc:  # noqa: BLE001 - an error of one pod
            self._report_error("nomination", uid, exc)
        self.gangs.on_pod(uid, pod)
        is_plain = pod is not None and bool(pod.spec.nodeName) and not self.gangs.owner_of(uid)
        self.plain_pods.set(uid, pod if is_plain else None)

    def expire_assumed(self, now: float) -> None:
        """Release the places of pods that were not bound or nominated in time."""
        self.ledger.expire_assumed(now)
        self.nominations.expire(now)

    def pods_of(self, run: Run) -> Mapping[str, core.Pod]:
        """Pods of the run that have not ended, by uid."""
        return self.pod_index.of_run(run)

    def seat_of(self, pod: core.Pod) -> Seat | None:
        """(owner, number) of the seat that the pod was created for."""
        return self.booking.seat_of(pod)

    def run_of(self, pod: core.Pod) -> Run | None:
        """The run that created the pod."""
        return self.run_table.run_of(pod)

    def is_external(self, pod: core.Pod) -> bool:
        """Whether no workload owns the pod."""
        return self.run_table.is_external(pod)

    def is_early(self, pod: core.Pod) -> bool:
        """Whether the watch of pods shows a pod of a workload before the watch of Jobs shows its Job."""
        workload = self.find_workload(pod.metadata.labels.get(metadata_keys.UID_LABEL, ""))
        return workload is not None and workload.meta.namespace == pod.metadata.namespace and self.run_of(pod) is None
