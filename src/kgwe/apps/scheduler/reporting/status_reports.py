"""Writes the status of the SchedulerConfig and of TopologyDomains.

Written only when something changed; a TopologyDomain at most once in `domainStatusSeconds`, and few of them at a time.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import structlog

from kgwe import errors
from kgwe.kube.api import resources, timestamp
from kgwe.kube.api.kgwe.topologydomain import TopologyDomainStatus, WorkloadOutcomes
from kgwe.kube.api.meta import Condition
from kgwe.kube.client.events import Event

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from kgwe.apps.scheduler.deps import Deps
    from kgwe.apps.scheduler.reporting.outcome_history import OutcomeHistory
    from kgwe.cluster.state.cluster_state import ClusterState
    from kgwe.kube.api.kgwe.topologydomain import TopologyDomain
    from kgwe.kube.translate.label_check import LabelCheck
    from kgwe.model.network.outcomes import Outcomes

log = structlog.get_logger(__name__)

READY: Final = "Ready"
# TopologyDomains written in one look; the others wait for the next.
_PER_LOOK: Final = 4
_DIGITS: Final = 2
# Errors after which a write is not repeated: the object is gone, or has changed meanwhile.
_GONE: Final = (errors.NotFound, errors.Conflict)


def _ready_condition(stored: Sequence[Condition], verdict: LabelCheck, generation: int) -> Condition:
    """The condition Ready; its time moves only when its status does."""
    status = "True" if verdict.ready else "False"
    old = next((each for each in stored if each.type == READY), None)
    since = old.lastTransitionTime if old is not None and old.status == status else timestamp.seconds()
    return Condition(READY, status, verdict.reason, verdict.message, since, generation)


class ConfigReport:
    """The status of the SchedulerConfig."""

    def __init__(self, deps: Deps) -> None:
        self._state = deps.state
        self._client = deps.client
        self._events = deps.events
        self._judged: tuple[tuple[str, int, int], LabelCheck] | None = None

    async def write_if_changed(self) -> None:
        config = self._state.config
        if config is None or config.metadata.deletionTimestamp is not None:
            return
        meta, stored = config.metadata, config.status
        verdict = self._check_config(meta.uid, meta.generation)
        condition = _ready_condition(stored.conditions, verdict, meta.generation)
        if stored.conditions == (condition,) and stored.observedGeneration == meta.generation:
            return
        body = {
            "metadata": {"resourceVersion": meta.resourceVersion},
            "status": {"observedGeneration": meta.generation, "conditions": [msgspec.to_builtins(condition)]},
        }
        try:
            await self._client.patch(resources.SCHEDULER_CONFIG, meta.name, body, subresource="status")
        except _GONE:
            return
        if not verdict.ready:
            event = Event(resources.SCHEDULER_CONFIG, meta, "Warning", verdict.reason, verdict.message, "Configuring")
            self._events.record(event)
            log.warning("scheduler_config_not_ready", reason=verdict.reason, message=verdict.message)

    def _check_config(self, uid: str, generation: int) -> LabelCheck:
        """Check the labels, once for every state of the object and of the nodes."""
        key = uid, generation, self._state.fleet.generation
        if self._judged is None or self._judged[0] != key:
            self._judged = key, self._state.reader.check_config()
        return self._judged[1]


class DomainReports:
    """The status of every TopologyDomain."""

    def __init__(
        self, deps: Deps, history: OutcomeHistory, *, pause_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._state = deps.state
        self._client = deps.client
        self._history = history
        self._pause_s = pause_s
        self._clock = clock
        self._written: dict[str, float] = {}  # domain -> when
        self._settled: tuple[int, int, int] | None = None  # the state of the fleet that all of them show

    async def write_due(self) -> None:
        fleet = self._state.fleet
        state = fleet.generation, fleet.snapshot.version, self._history.version
        if state == self._settled:
            return
        objects = {obj.metadata.name: obj for obj in self._state.reader.domains()}
        self._written = {name: at for name, at in self._written.items() if name in objects}
        now = self._clock()
        due = [name for name in objects if name not in self._written or now >= self._written[name] + self._pause_s]
        found = count_domains(self._state) if due else {}
        due.sort(key=lambda name: self._written.get(name, 0.0))
        budget = _PER_LOOK
        for name in due:
            new = self._build_status(objects[name], found.get(name, (0, 0, 0)))
            if _says_the_same(objects[name].status, new):
                continue
            if not budget:
                return
            budget -= 1
            self._written[name] = now
            await self._write_status(objects[name], new)
        if budget == _PER_LOOK and len(due) == len(objects):
            self._settled = state  # nothing was left to write

    def _build_status(self, obj: TopologyDomain, found: tuple[int, int, int]) -> TopologyDomainStatus:
        nodes, gpus, free = found
        verdict = self._state.reader.check_domain(obj.metadata.name, nodes)
        return TopologyDomainStatus(
            nodes=nodes,
            gpus=gpus,
            freeGPUs=free,
            outcomes=_read_outcomes(self._history.outcomes_of(obj.metadata.name)),
            observedGeneration=obj.metadata.generation,
            conditions=(_ready_condition(obj.status.conditions, verdict, obj.metadata.generation),),
        )

    async def _write_status(self, obj: TopologyDomain, new: TopologyDomainStatus) -> None:
        status: dict[str, Any] = {
            "nodes": new.nodes,
            "gpus": new.gpus,
            "freeGPUs": new.freeGPUs,
            "outcomes": msgspec.to_builtins(new.outcomes),
            "observedGeneration": new.observedGeneration,
            "conditions": msgspec.to_builtins(new.conditions),
        }
        body = {"metadata": {"resourceVersion": obj.metadata.resourceVersion}, "status": status}
        try:
            await self._client.patch(resources.TOPOLOGY_DOMAIN, obj.metadata.name, body, subresource="status")
        except _GONE:
            self._written.pop(obj.metadata.name, None)


def _read_outcomes(past: Outcomes | None) -> WorkloadOutcomes | None:
    if past is None:
        return None
    return WorkloadOutcomes(round(past.completed, _DIGITS), round(past.lost, _DIGITS), timestamp.format_time(past.at_s))


def _says_the_same(old: TopologyDomainStatus, new: TopologyDomainStatus) -> bool:
    """Whether the status need not be written: counts of outcomes that only decayed do not matter."""
    plain = msgspec.structs.replace
    if plain(old, outcomes=None) != plain(new, outcomes=None):
        return False
    if old.outcomes is None or new.outcomes is None:
        return old.outcomes == new.outcomes
    return new.outcomes.completed <= old.outcomes.completed and new.outcomes.lost <= old.outcomes.lost


def count_domains(state: ClusterState) -> dict[str, tuple[int, int, int]]:
    """Domain -> its nodes, GPUs and free GPUs; an NVLink domain counts beside the network."""
    fleet = state.fleet
    snapshot, tree = fleet.snapshot, fleet.tree
    order = np.array([snapshot.index[name] for name in tree.nodes], np.intp)
    ones = np.ones(len(order), np.int64)
    cards = np.array([node.shape.gpu_count for node in snapshot.nodes], np.int64)[order]
    free = np.bitwise_count(snapshot.free).astype(np.int64)[order]
    found: dict[str, tuple[int, int, int]] = {}
    for names, sums in _list_levels(tree.nvlink_names, tree.sum_by_nvlink_domain, tree.levels):
        rows = zip(names, *(sums(each).tolist() for each in (ones, cards, free)), strict=True)
        found |= {name: (nodes, gpus, unused) for name, nodes, gpus, unused in rows if name}
    return found


def _list_levels(nvlink: Sequence[str], nvlink_sums: Any, levels: Sequence[Any]) -> Iterator[tuple[Sequence[str], Any]]:
    yield nvlink, nvlink_sums
    for level in levels:
        yield level.names, level.sums
