"""Decision records: what was asked, what was free and what was decided, for `kgwe replay`.

    decision ──► what is free that changed since ──► queue ──► a thread: words, file, next file

The deciding thread only finds what changed, which takes microseconds, and never waits for the disk. If the disk is
slower than the decisions, or full, lines are dropped and counted. The next line then begins a new file with the whole
state, so the files can always be replayed.
"""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Protocol

from prometheus_client import Counter

from kgwe.apps.scheduler.recording.files import RecordFiles
from kgwe.placement.planning.plan import Plan
from kgwe.placement.refusal import Refusal
from kgwe.records import codec, decisions
from kgwe.records.decisions import End
from kgwe.records.rows import FreeCopy, Mirror, row_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from prometheus_client import CollectorRegistry

    from kgwe.apps.scheduler.recording.files import Item
    from kgwe.model.network.domains import Tree
    from kgwe.placement.fleet.snapshot import Snapshot
    from kgwe.placement.live.ledger import Ledger
    from kgwe.placement.planning.ask import Ask
    from kgwe.placement.planning.custom_strategies import Rng
    from kgwe.placement.planning.gang_planner import DomainWeights, GangPlanner
    from kgwe.placement.pod import engine
    from kgwe.placement.pod.engine import Engine
    from kgwe.placement.pod.score import Weights
    from kgwe.placement.refusal import Refusal
    from kgwe.records.decisions import PendingDecision
    from kgwe.records.rows import Row

# How often ended workloads are looked for, and how long after a decision a workload may take to begin.
_SWEEP_S: Final = 1.0
_BEGINS_S: Final = 60.0
# Refusals that are remembered, so that a repeated request is written once.
_REFUSED: Final = 10_000


class Place(Protocol):
    """What decisions are made on: the fleet, or a copy of it."""

    @property
    def snapshot(self) -> Snapshot: ...
    @property
    def tree(self) -> Tree: ...
    @property
    def engine(self) -> Engine: ...
    @property
    def gangs(self) -> GangPlanner: ...


class Draws:
    """A random source that remembers its draws."""

    def __init__(self, rng: Rng) -> None:
        self._rng = rng
        self.said: list[int] = []

    def randrange(self, stop: int, /) -> int:
        self.said.append(self._rng.randrange(stop))
        return self.said[-1]


@dataclass(slots=True)
class _Job:
    """A workload or pod that got a place."""

    at_s: float
    is_pod: bool
    has_begun: bool = False


class Recorder:
    """Records decisions of any thread."""

    def __init__(
        self,
        directory: Path,
        max_mb: int,
        *,
        version: str = "",
        registry: CollectorRegistry | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Permanent when nothing can be written there."""
        lines = Counter("kgwe_decision_records", "Lines of decision records", ["result"], registry=registry)
        written, dropped = lines.labels("written"), lines.labels("dropped")
        self._files = RecordFiles(directory, max_mb, on_written=written.inc, on_dropped=dropped.inc)
        self._version = version
        self._clock = clock
        self._lock = threading.Lock()
        self._mirror: Mirror | None = None
        self._tree: Tree | None = None
        self._weights: tuple[Weights, DomainWeights] | None = None
        self._jobs: dict[str, _Job] = {}
        self._refused: dict[str, str] = {}  # pod -> what was free when it was refused last

    def close(self) -> None:
        self._files.close()

    # --- decisions --------------------------------------------------------------------------------------

    def record_plan(
        self, place: Place, ask: Ask, answer: Plan | Refusal, *, avoid: Iterable[str] = (), draws: Sequence[int] = ()
    ) -> None:
        """The planner's; `place` is as it was then, but that nothing was to be had on the nodes of `avoid`."""
        taken = decisions.PendingDecision(
            self._clock(), "plan", ask, answer, avoid=tuple(sorted(avoid)), draws=tuple(draws)
        )
        self._record(place, taken)
        if isinstance(answer, Plan):
            self._jobs[ask.owner] = _Job(taken.at_s, is_pod=False)

    def record_pod(
        self,
        place: Place,
        ask: Ask,
        answer: engine.Decision | Refusal,
        *,
        among: Sequence[str] | None = None,
        draws: Sequence[int] = (),
    ) -> None:
        """The extender's; `among`: the only nodes that were allowed."""
        offered = None if among is None else tuple(among)
        taken = decisions.PendingDecision(self._clock(), "extender", ask, answer, among=offered, draws=tuple(draws))
        self._record(place, taken)
        if taken.is_placed:
            self._jobs[ask.owner] = _Job(taken.at_s, is_pod=True)

    def _record(self, place: Place, taken: PendingDecision) -> None:
        with self._lock:
            mirror, lines, rows = self._catch_up(place, taken.at_s)
            weights = (place.engine.scorer.weights, place.gangs.weights)
            if self._files.wants_snapshot or weights != self._weights:
                self._weights = weights
                free = FreeCopy.copy_from(mirror.last)
                lines = [decisions.PendingSnapshot(taken.at_s, free, mirror.digest, place.tree, weights, self._version)]
                rows = ()
            elif not lines and not rows and self._is_known(taken, mirror.digest):
                return
            self._files.put(*lines, replace(taken, snapshot=mirror.digest, rows=rows))

    def _is_known(self, taken: PendingDecision, digest: str) -> bool:
        """Whether the same request was refused before in the same state: kube-scheduler repeats its calls."""
        owner = taken.ask.owner
        if taken.is_placed:
            self._refused.pop(owner, None)
            return False
        if self._refused.get(owner) == digest:
            return True
        if len(self._refused) >= _REFUSED:
            del self._refused[next(iter(self._refused))]
        self._refused[owner] = digest
        return False

    def _catch_up(self, place: Place, at_s: float) -> tuple[Mirror, list[Item], tuple[Row, ...]]:
        """Lines that tell what has become of nodes and network, and rows of what is free elsewhere."""
        snapshot, tree = place.snapshot, place.tree
        if self._mirror is None or self._tree is None:
            self._mirror, self._tree = Mirror(FreeCopy.copy_from(snapshot)), tree
        lines: list[Item] = []
        if self._mirror.last.nodes is not snapshot.nodes or self._tree is not tree:
            lines = self._nodes_changed(self._mirror, snapshot, tree, at_s)
        return self._mirror, lines, self._mirror.take_changes(snapshot)

    def _nodes_changed(self, mirror: Mirror, snapshot: Snapshot, tree: Tree, at_s: float) -> list[Item]:
        before = {node.name: node for node in mirror.last.nodes}
        changed = [
            number
            for number, node in enumerate(snapshot.nodes)
            if before.get(node.name) is not node and before.get(node.name) != node
        ]
        gone = tuple(sorted(before.keys() - snapshot.index.keys()))
        same_tree = self._tree is not None and codec.same_tree(self._tree, tree)
        self._tree = tree
        if mirror.last.nodes is not snapshot.nodes:
            self._mirror = mirror.follow_nodes(snapshot, frozenset(changed))
        if not changed and not gone and same_tree:
            return []
        nodes = tuple(snapshot.nodes[number] for number in changed)
        rows = tuple(row_of(snapshot, number) for number in changed)
        return [decisions.PendingNodes(at_s, nodes, gone, None if same_tree else tree, rows)]

    # --- ends -------------------------------------------------------------------------------------------

    async def watch_ends(self, ledger: Ledger) -> None:
        """Record the ends of workloads until cancelled."""
        while True:
            await asyncio.sleep(_SWEEP_S)
            self.record_ends(ledger)

    def record_ends(self, ledger: Ledger) -> None:
        """Record the end of each placed workload that holds nothing any more."""
        now_s = self._clock()
        for owner, job in list(self._jobs.items()):
            holds = owner in ledger.fleet if job.is_pod else ledger.has_seats(owner)
            if holds:
                job.has_begun = True
            elif job.has_begun or now_s > job.at_s + _BEGINS_S:
                self._record_end(owner, now_s)

    def _record_end(self, owner: str, now_s: float) -> None:
        with self._lock:
            # The first line of a file is a snapshot: an end waits for it.
            if not self._files.wants_snapshot:
                del self._jobs[owner]
                self._files.put(End(now_s, owner))
