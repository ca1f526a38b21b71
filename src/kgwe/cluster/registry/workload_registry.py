"""Workloads of both API groups, with the priority and the device mode that the configuration gives them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kgwe.cluster.workload.effective_request import apply_decision, choose_decision, read_decision
from kgwe.cluster.workload.scheduler_policy import with_device_mode, with_priority

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kgwe.cluster.registry.fleet_state import FleetState
    from kgwe.cluster.registry.run_table import RunTable
    from kgwe.cluster.workload.effective_request import DecisionSource
    from kgwe.cluster.workload.runs import Run
    from kgwe.cluster.workload.workload import Key, Workload


class WorkloadRegistry:
    """The workloads as the API shows them."""

    def __init__(self, fleet_state: FleetState, run_table: RunTable, sources: tuple[DecisionSource, ...] = ()) -> None:
        """`sources`: decide on smaller requests, the first one first."""
        self._fleet_state = fleet_state
        self._run_table = run_table
        self._sources = sources
        self.by_key: dict[Key, Workload] = {}
        self.keys: dict[str, Key] = {}  # uid -> key
        self._uids: dict[str, set[str]] = {}  # uid of an object -> uids of its replicas
        self.priority_classes: dict[str, int] = {}  # name -> value

    def put(self, workload: Workload) -> bool:
        """Add or replace the workload; returns whether it is new."""
        is_new = workload.meta.uid not in self.keys
        self._store(self._decide(workload, self._run_table.runs.get(workload.meta.uid)))
        self.keys[workload.meta.uid] = workload.key
        if is_new:
            self._uids.setdefault(workload.object_uid, set()).add(workload.meta.uid)
        return is_new

    def keep_decision_of(self, uid: str, run: Run | None) -> Workload | None:
        """Return the workload with the request that its run was planned with; without a run, with the present one."""
        workload = self.find(uid)
        if workload is None:
            return None
        decided = self._decide(workload, run)
        if decided.decision != workload.decision:
            self._store(decided)
        return self.find(uid)

    def _store(self, workload: Workload) -> None:
        config = self._fleet_state.config
        workload = with_priority(workload, config, self.priority_classes)
        self.by_key[workload.key] = with_device_mode(workload, config)

    def _decide(self, workload: Workload, run: Run | None) -> Workload:
        kept = read_decision(workload, run) if run is not None else None
        found = choose_decision(workload, self._sources) if kept is None else kept
        # A decision that came after the run changes nothing; what is only shown may be shown.
        is_late = run is not None and kept is None and found is not None and not found.shadow
        return apply_decision(workload, None if is_late else found)

    def uids_of_object(self, uid: str) -> set[str]:
        """Uids of the registered replicas of an object."""
        return set(self._uids.get(uid, ()))

    def remove(self, uid: str) -> Key:
        """Remove the workload; returns its key."""
        key = self.keys.pop(uid)
        owner = self.by_key.pop(key).object_uid
        self._uids[owner].discard(uid)
        if not self._uids[owner]:
            del self._uids[owner]
        return key

    def find(self, uid: str) -> Workload | None:
        key = self.keys.get(uid)
        return self.by_key.get(key) if key else None

    def set_priority_class(self, name: str, value: int | None) -> list[Workload]:
        """Add, replace or (None) remove a PriorityClass; returns the workloads that name it."""
        self.priority_classes.pop(name, None)
        if value is not None:
            self.priority_classes[name] = value
        return [each for each in self.by_key.values() if each.priority_class == name]

    def list_claiming(self, claim: str) -> list[Workload]:
        """Workloads whose pods use the ResourceClaim of that key."""
        return [each for each in self.by_key.values() if claim in each.claim_keys]

    def list_active(self) -> Iterator[tuple[str, str]]:
        """(namespace, workload type) of every workload that has not finished."""
        for workload in self.by_key.values():
            if not workload.finished:
                yield workload.meta.namespace, workload.workload_type
