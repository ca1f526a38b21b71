"""Which account an owner spends from: as the cost engine will attribute its pods."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kgwe.cluster.workload.owner import WorkloadOwner
from kgwe.costing.attribution import attribute_pod

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kgwe.apps.scheduler.budgets.objects import BudgetObjects
    from kgwe.cluster.state.cluster_state import ClusterState
    from kgwe.cluster.workload.workload import Workload
    from kgwe.costing.segments import Account


class AccountDirectory:
    """Accounts of owners. Labels are those that pods will have, not those of the workload object."""

    def __init__(self, state: ClusterState, objects: BudgetObjects) -> None:
        self._state = state
        self._objects = objects

    def find(self, owner: str, namespace: str = "") -> Account:
        """Return the account of an owner."""
        labels, annotations = self.read_metadata(owner)
        namespace = namespace or self._state.owners.namespace(owner)
        found = self._objects.labels_of(namespace)
        return attribute_pod(self._objects.attribution, namespace, labels, annotations, found)

    def read_metadata(self, owner: str) -> tuple[Mapping[str, str], Mapping[str, str]]:
        """Return labels and annotations of the owner's pods."""
        found = self._state.owners.resolve(owner)
        workload = self._state.find_workload(found.uid) if isinstance(found, WorkloadOwner) else None
        if workload is not None:
            return _read_template(workload, "labels"), _read_template(workload, "annotations")
        pods = self._state.owners.pods(owner)
        return (pods[0].metadata.labels, pods[0].metadata.annotations) if pods else ({}, {})


def _read_template(workload: Workload, part: str) -> dict[str, str]:
    """Return labels or annotations of a free-form template; what is malformed is left out."""
    meta: Any = workload.template.get("metadata")
    found = meta.get(part) if isinstance(meta, dict) else None
    if not isinstance(found, dict):
        return {}
    return {key: value for key, value in found.items() if isinstance(key, str) and isinstance(value, str)}
