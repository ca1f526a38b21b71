"""Looks up owners: their type, name and pods, and the object for their Events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, assert_never

from kgwe.cluster.workload.owner import ExternalGangOwner, PodOwner, WorkloadOwner, parse_gang, requester_of
from kgwe.kube.api import resources

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kgwe.cluster.gangs.gang_table import GangTable
    from kgwe.cluster.registry.pod_index import PodIndex
    from kgwe.cluster.registry.run_table import RunTable
    from kgwe.cluster.registry.workload_registry import WorkloadRegistry
    from kgwe.cluster.workload.owner import Owner
    from kgwe.kube.api import core
    from kgwe.kube.api.meta import ObjectMeta
    from kgwe.kube.api.resources import Resource

_KINDS: Final[Mapping[type[Owner], str]] = {WorkloadOwner: "workload", ExternalGangOwner: "gang", PodOwner: "pod"}


@dataclass(frozen=True, slots=True)
class EventTarget:
    """The object on which Events about an owner are recorded."""

    resource: Resource[Any]
    meta: ObjectMeta


class OwnerDirectory:
    """Looks owners up by their text; a request for lost members counts as its owner."""

    def __init__(self, workloads: WorkloadRegistry, run_table: RunTable, pods: PodIndex, gang_table: GangTable) -> None:
        self._workloads = workloads
        self._run_table = run_table
        self._pods = pods
        self._gang_table = gang_table

    def resolve(self, text: str) -> Owner:
        """The type of the owner; a uid of no workload counts as that of a pod."""
        text = requester_of(text)
        gang = parse_gang(text)
        if gang is not None:
            return gang
        is_workload = text in self._workloads.keys or text in self._run_table.runs
        return WorkloadOwner(text) if is_workload else PodOwner(text)

    def pods(self, text: str) -> list[core.Pod]:
        """The pods of the owner that exist and have not ended."""
        match owner := self.resolve(text):
            case WorkloadOwner(uid):
                run = self._run_table.runs.get(uid)
                return list(self._pods.of_run(run).values()) if run is not None else []
            case ExternalGangOwner():
                group = self._gang_table.groups.get(owner.text)
                return [pod for pod, _ in group.members.values()] if group is not None else []
            case PodOwner(uid):
                return [pod] if (pod := self._pods.by_uid.get(uid)) is not None else []
            case _:
                assert_never(owner)

    def key(self, text: str) -> str:
        """Namespace and name of the owner, as in `team/train`; its text if it is not known."""
        match owner := self.resolve(text):
            case WorkloadOwner(uid):
                workload = self._workloads.find(uid)
                return workload.meta.key if workload is not None else uid
            case ExternalGangOwner(gang):
                return gang.title
            case PodOwner(uid):
                pod = self._pods.by_uid.get(uid)
                return pod.metadata.key if pod is not None else uid
            case _:
                assert_never(owner)

    def namespace(self, text: str) -> str:
        """Namespace of the owner; empty if it is not known."""
        namespace, slash, _ = self.key(text).partition("/")
        return namespace if slash else ""

    def title(self, text: str) -> str:
        """The owner for users: its kind, namespace and name; its text if it is not known."""
        key = self.key(text)
        return f"{_KINDS[type(self.resolve(text))]} {key}" if "/" in key else key

    def event_target(self, text: str) -> EventTarget | None:
        """The workload's object, else the first pod; None if there is neither."""
        owner = self.resolve(text)
        workload = self._workloads.find(owner.uid) if isinstance(owner, WorkloadOwner) else None
        if workload is not None:
            return EventTarget(workload.kind.resource, workload.meta)
        pods = self.pods(text)
        return EventTarget(resources.POD, pods[0].metadata) if pods else None
