"""Nodes whose end is announced: their gangs checkpoint as a whole, then leave while the node still runs.

    notice on the Node ──► order to all pods of every gang on it ──► confirmed, or the time is nearly over ──► recovery
                                                                     (rebalance: the pods stay)

The time is that of the notice. A part of it is kept for the eviction. Other nodes' members of the gang are asked too:
one rank alone cannot checkpoint. The next leader continues an order that an earlier one began.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

import structlog

from kgwe.apps.background import TaskSet
from kgwe.cluster.checkpoint.call import find_call
from kgwe.cluster.state import effective_seats
from kgwe.kube.api import resources
from kgwe.kube.client.events import Event
from kgwe.kube.translate.interruption import find_interruption

if TYPE_CHECKING:
    from collections.abc import Callable

    from kgwe.apps.scheduler.deps import Deps
    from kgwe.apps.scheduler.disruption.evictor import Evictor
    from kgwe.cluster.checkpoint.caller import Caller, CheckpointResult
    from kgwe.kube.api import core
    from kgwe.kube.translate.interruption import AnnouncedInterruption

log = structlog.get_logger(__name__)

#: Where a notice names no time.
_USUAL_S: Final = 120.0
#: The share of the time that is left for eviction and the pods' own end, and its most.
_RESERVE: Final = 1 / 3
_MOST_RESERVE_S: Final = 30.0
_LEAST_S: Final = 1.0


def find_patience(deadline_at: float | None, now: float) -> float:
    """Return how long pods may take to checkpoint before they are evicted."""
    left = _USUAL_S if deadline_at is None else max(deadline_at - now, 0.0)
    return max(left - min(left * _RESERVE, _MOST_RESERVE_S), _LEAST_S)


class InterruptionController:
    """The announced interruptions of one term of leadership."""

    def __init__(
        self,
        deps: Deps,
        checkpoints: Caller,
        evictor: Evictor,
        *,
        on_ready: Callable[[str], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`on_ready`: called with a node whose pods may be moved now."""
        self._state = deps.state
        self._events = deps.events
        self._faults = deps.faults
        self._checkpoints = checkpoints
        self._evictor = evictor
        self._on_ready = on_ready
        self._clock = clock
        self._begun: dict[str, str] = {}  # node -> notice
        self._ready: set[str] = set()
        self._tasks = TaskSet()

    async def stop(self) -> None:
        await self._tasks.cancel()

    def is_ready(self, node: str) -> bool:
        """Whether pods of an interrupted node may be moved: they were asked for a checkpoint."""
        return node in self._ready

    def handle_node(self, name: str) -> None:
        """The node may have got a notice, or lost it."""
        found = find_interruption(self._find_node(name))
        if found is None:
            self._begun.pop(name, None)
            self._ready.discard(name)
        elif self._begun.get(name) != found.notice_id:
            self._begun[name] = found.notice_id
            self._tasks.spawn(self._leave(name, found))

    def _find_node(self, name: str) -> core.Node | None:
        return self._state.reader.find_node(name)

    async def _leave(self, name: str, found: AnnouncedInterruption) -> None:
        try:
            await self._checkpoint(name, found)
        except Exception as exc:  # noqa: BLE001 - the pods leave in any case
            self._faults.record("interruption", name, exc)
        if found.is_certain and self._begun.get(name) == found.notice_id:
            self._ready.add(name)
            self._on_ready(name)
            self._evict_others(name)

    async def _checkpoint(self, name: str, found: AnnouncedInterruption) -> None:
        owners = self._list_owners(name)
        seconds = find_patience(found.deadline_at, self._clock())
        calls = []
        for owner, pods in owners.items():
            cause = f"interruption/{name}/{found.notice_id}/{owner}"
            calls.append(self._checkpoints.call(cause, pods, seconds=seconds, reason=found.message))
        results = await asyncio.gather(*calls)
        for owner, result in zip(owners, results, strict=True):
            self._record(owner, name, found, result)

    def _list_owners(self, name: str) -> dict[str, list[core.Pod]]:
        """Return all pods of everything that has a place on the node, and single pods that declare a checkpoint."""
        state = self._state
        owners = {
            owner: list(state.owners.pods(owner))
            for owner in state.ledger.owners()
            if any(place.node == name for place in effective_seats.effective_seats(state, owner).values())
        }
        known = {pod.metadata.uid for pods in owners.values() for pod in pods}
        for pod in state.pods.values():
            if pod.spec.nodeName == name and pod.metadata.uid not in known and find_call(pod.metadata.annotations):
                owners[pod.metadata.uid] = [pod]
        return owners

    def _evict_others(self, name: str) -> None:
        """Evict single pods that declared a checkpoint; recovery moves what has a place in the ledger."""
        for owner, pods in self._list_owners(name).items():
            if [pod.metadata.uid for pod in pods] == [owner]:
                self._evictor.remove_pod(owner, f"node {name} is about to be interrupted")

    def _record(self, owner: str, node: str, found: AnnouncedInterruption, result: CheckpointResult) -> None:
        if not result.asked:
            return
        is_whole = len(result.confirmed) == result.asked
        reason = "CheckpointConfirmed" if is_whole else "CheckpointIncomplete"
        words = f"{found.message} ({node}). {result.describe()}"
        target = self._state.owners.event_target(owner)
        if target is not None:
            kind, meta = target.resource, target.meta
        elif owner in self._state.pods:
            kind, meta = resources.POD, self._state.pods[owner].metadata
        else:
            return
        self._events.record(Event(kind, meta, "Normal" if is_whole else "Warning", reason, words, "Checkpoint"))
