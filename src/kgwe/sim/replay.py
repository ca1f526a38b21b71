"""Replays recorded decisions with the same policy, which must give equal answers, or with another.

    for outcome in replay(decisions.read(paths)):
        outcome.difference      "" if the answer equals the recorded one, to the last bit

Each decision is made in its recorded state, independent of earlier results: it shows what another policy would
decide, not the consequences. For those, run the jobs of the file in the simulator.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from kgwe import errors
from kgwe.placement.fleet.snapshot import Snapshot
from kgwe.placement.planning import planner
from kgwe.placement.planning.gang_planner import DomainWeights, GangPlanner
from kgwe.placement.pod.engine import Engine
from kgwe.placement.pod.fit import Fitter
from kgwe.placement.pod.ranking import Strategy
from kgwe.placement.pod.score import Weights
from kgwe.records import codec, decisions
from kgwe.records import rows as freerows
from kgwe.records.decisions import Answer, Decision, NodesLine, SnapshotLine

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from kgwe.model.network.domains import Tree
    from kgwe.placement.fleet.node import Node
    from kgwe.placement.planning.ask import Ask
    from kgwe.placement.planning.custom_strategies import Choosers
    from kgwe.records.decisions import Line, RecordedRefusal
    from kgwe.records.rows import Row

#: strategies that can replay a decision
POLICIES: Final = tuple(sorted({*planner.GANG_STRATEGIES} - {""}))


class ReplayedFleet:
    """The fleet after the lines so far; plans can be made on it."""

    def __init__(self, nodes: Sequence[Node], tree: Tree, weights: tuple[Weights, DomainWeights]) -> None:
        self.snapshot = Snapshot.from_nodes(nodes)
        self.tree = tree
        self.weights = weights
        self.fitter = Fitter(self.snapshot)
        self.engine = Engine(self.snapshot, weights[0], fitter=self.fitter)
        self.gangs = GangPlanner(self.fitter, tree, weights=weights[1])
        self._digest = freerows.Digest(self.snapshot)

    @classmethod
    def from_line(cls, line: SnapshotLine) -> ReplayedFleet:
        weights = (
            codec.decode_value(Weights, line.weights or {}),
            codec.decode_value(DomainWeights, line.domain_weights or {}),
        )
        scene = cls(decisions.read_nodes(line), codec.decode_tree(line.tree), weights)
        scene.put(line.rows)
        return scene

    def put(self, rows: Iterable[Row]) -> None:
        for row in rows:
            freerows.put_row(self.snapshot, row)
            self._digest.update_node(row.node)

    @property
    def digest(self) -> str:
        return str(self._digest)

    def apply_line(self, line: NodesLine) -> ReplayedFleet:
        """Return the fleet after nodes were added, changed or removed."""
        changed = {node.name: node for node in decisions.read_nodes(line)}
        gone = {*line.gone, *changed}
        kept = [node for node in self.snapshot.nodes if node.name not in gone]
        listed = sorted([*kept, *changed.values()], key=lambda node: node.name)
        tree = self.tree if line.tree is None else codec.decode_tree(line.tree)
        scene = ReplayedFleet(listed, tree, self.weights)
        index = scene.snapshot.index
        rows = ((index[node.name], freerows.row_of(self.snapshot, self.snapshot.index[node.name])) for node in kept)
        scene.put(freerows.moved_row(row, number) for number, row in rows)
        scene.put(line.rows)
        return scene

    @contextlib.contextmanager
    def exclude_nodes(self, names: Iterable[str]) -> Iterator[None]:
        """Exclude these nodes while the context is open."""
        snapshot = self.snapshot
        numbers = [snapshot.index[name] for name in names if name in snapshot.index]
        kept = snapshot.pods[numbers]
        self._set_pods(numbers, np.zeros_like(kept))
        try:
            yield
        finally:
            self._set_pods(numbers, kept)

    def _set_pods(self, numbers: list[int], pods: NDArray[np.int32]) -> None:
        if numbers:
            self.snapshot.pods[numbers] = pods
            self.snapshot.version += 1
            self.snapshot.changed[numbers] = self.snapshot.version

    def count_leaves(self, nodes: Iterable[str]) -> int:
        """Return the number of leaves of the nodes; 0 if one is unknown."""
        places = [self.tree.position.get(name) for name in dict.fromkeys(nodes)]
        if not self.tree.levels or None in places:
            return 0
        domains = {int(self.tree.domain_of[0, place]) for place in places}
        return len(domains) if all(self.tree.levels[0].known[domain] for domain in domains) else 0


@dataclass(frozen=True)
class Outcome:
    """One replayed decision."""

    where: str
    line: Decision
    ask: Ask
    answer: Answer
    #: leaves of the recorded seats and of the new ones; 0 if unknown
    leaves: tuple[int, int]
    #: the difference as text; empty if there is none
    difference: str = ""


class _Drawn:
    """The recorded random numbers."""

    def __init__(self, draws: Sequence[int]) -> None:
        self._draws = list(draws)

    def randrange(self, stop: int, /) -> int:
        # Another policy may draw where the recorded one did not.
        return self._draws.pop(0) % stop if self._draws else 0


def replay(
    lines: Iterable[tuple[str, Line]],
    *,
    policy: str = "",
    choosers: Choosers | None = None,
    since_s: float = 0.0,
) -> Iterator[Outcome]:
    """Yield each replayed decision from `since_s` on; raise InvariantBroken if lines are missing."""
    scene: ReplayedFleet | None = None
    for where, line in lines:
        if isinstance(line, SnapshotLine):
            scene = ReplayedFleet.from_line(line)
            _check(scene, line.snapshot, where)
        elif scene is None:
            raise errors.Permanent(f"{where}: the file does not begin with a snapshot; its first lines are missing")
        elif isinstance(line, NodesLine):
            scene = scene.apply_line(line)
        elif isinstance(line, Decision):
            scene.put(line.rows)
            if line.at_s >= since_s:
                _check(scene, line.snapshot, where)
                yield _decide_again(scene, where, line, policy, choosers or {})


def _check(scene: ReplayedFleet, digest: str, where: str) -> None:
    if scene.digest != digest:
        raise errors.InvariantBroken(
            f"{where}: the free capacity differs from the record: lines are missing or were edited"
        )


def _decide_again(scene: ReplayedFleet, where: str, line: Decision, policy: str, choosers: Choosers) -> Outcome:
    ask = decisions.read_ask(line)
    asked = with_strategy(ask, policy) if policy else ask
    if asked.strategy == Strategy.MIXFIT and not policy and len(line.seats) == 1:
        answer = _on_recorded_node(scene, asked, line)
    elif line.by == "extender" and not policy:
        answer = _pod(scene, asked, line)
    else:
        with scene.exclude_nodes(line.avoid if line.among is None else _list_others(scene, line.among)):
            found = planner.make_plan(scene, asked, choosers=choosers, rng=_Drawn(line.draws), explain=False)
        answer = decisions.answer_of(found)
    if line.by == "simulate" and not policy:
        answer = Answer(answer.seats, refused=answer.refused)  # a simulation records no scores
    leaves = (
        scene.count_leaves(seat.node for seat in line.seats),
        scene.count_leaves(seat.node for seat in answer.seats),
    )
    return Outcome(where, line, ask, answer, leaves, _difference(line.answer, answer))


def _on_recorded_node(scene: ReplayedFleet, ask: Ask, line: Decision) -> Answer:
    """Return the recorded answer if the pod still fits on its node.

    MixFit ranks nodes by prices that follow all earlier pods. Those are not recorded, so the choice is not repeated.
    """
    index, (seat,) = scene.snapshot.index, line.seats
    among = np.array([index[seat.node]] if seat.node in index else [], np.intp)
    found = decisions.answer_of(scene.engine.decide(ask.request, strategy=Strategy.MIXFIT, candidates=among))
    return line.answer if found.refused is None else found


def _list_others(scene: ReplayedFleet, among: Iterable[str]) -> set[str]:
    return set(scene.snapshot.index) - set(among)


def _pod(scene: ReplayedFleet, ask: Ask, line: Decision) -> Answer:
    strategy = Strategy(ask.strategy) if ask.strategy else Strategy.SCORE
    rng = np.random.default_rng(line.draws[0]) if line.draws else None
    index = scene.snapshot.index
    among = None if line.among is None else np.array([index[name] for name in line.among if name in index], np.intp)
    return decisions.answer_of(scene.engine.decide(ask.request, strategy=strategy, rng=rng, candidates=among))


def with_strategy(ask: Ask, policy: str) -> Ask:
    """Return the ask with another strategy."""
    if policy not in POLICIES:
        raise errors.Permanent(f"unknown policy {policy!r}; known policies: {', '.join(POLICIES)}")
    strategy = planner.GANG_STRATEGIES[policy]
    gang = None if ask.gang is None else replace(ask.gang, strategy=strategy)
    return replace(ask, strategy=policy, gang=gang, first=None)


def _difference(old: Answer, new: Answer) -> str:
    if old == new:
        return ""
    if old.refused is None and new.refused is None:
        return _seats_differ(old, new)
    if old.refused is not None and new.refused is not None:
        return f"refused differently: {_format_refusal(new.refused)}; was: {_format_refusal(old.refused)}"
    if new.refused is not None:
        return f"refused ({new.refused.reason}), was placed on {_format_nodes(old)}"
    return f"placed on {_format_nodes(new)}, was refused ({old.refused.reason if old.refused else ''})"


def _format_refusal(refused: RecordedRefusal) -> str:
    return f"{refused.reason} ({refused.message})"


def _seats_differ(old: Answer, new: Answer) -> str:
    if old.seats == new.seats:
        parts = [
            f"{name} {getattr(new, name)}, was {getattr(old, name)}"
            for name in ("score", "gb_per_s", "level", "domain")
            if getattr(new, name) != getattr(old, name)
        ]
        return "same seats; " + ", ".join(parts)
    if _format_nodes(old) == _format_nodes(new):
        return f"other GPUs or ranks on {_format_nodes(new)}"
    return f"placed on {_format_nodes(new)}, was on {_format_nodes(old)}"


_NAMED: Final = 4


def _format_nodes(answer: Answer) -> str:
    names = list(dict.fromkeys(seat.node for seat in answer.seats))
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")


# --- comparison with another policy ---------------------------------------------------------------------


@dataclass
class Rates:
    """Predicted GB/s of placements for which both are known, summed: recorded and new."""

    count: int = 0
    old: float = 0.0
    new: float = 0.0
    faster: int = 0
    slower: int = 0

    def add(self, old: float | None, new: float | None) -> None:
        if old and new:
            self.count += 1
            self.old += old
            self.new += new
            self.faster += new > old
            self.slower += new < old


@dataclass
class Comparison:
    """Sums over all decisions, recorded and new."""

    decisions: int = 0
    same: int = 0
    moved: int = 0
    placed: int = 0
    """Placed now, refused in the record."""
    refused: int = 0
    """Refused now, placed in the record."""
    still_refused: int = 0
    gangs: int = 0
    """Gangs that both place, with all leaves known."""
    leaves: tuple[int, int] = (0, 0)
    rings: Rates = field(default_factory=Rates)
    """Of gangs, one direction, as nccl-tests would measure it."""
    links: Rates = field(default_factory=Rates)
    """Between the GPUs of single pods, from data sheets."""
    changed: list[Outcome] = field(default_factory=list)

    def add(self, outcome: Outcome, keep: int = 0) -> None:
        """Count an outcome; keep at most `keep` changed ones."""
        self.decisions += 1
        old, new = outcome.line.answer, outcome.answer
        if old.refused is not None and new.refused is not None:
            self.still_refused += 1
            return
        if old.refused is not None or new.refused is not None:
            self.placed += new.refused is None
            self.refused += new.refused is not None
        else:
            is_same = old.seats == new.seats
            self.same += is_same
            self.moved += not is_same
            self._measure(outcome, old, new)
        if outcome.difference and old.seats != new.seats and len(self.changed) < keep:
            self.changed.append(outcome)

    def _measure(self, outcome: Outcome, old: Answer, new: Answer) -> None:
        is_gang = len(old.seats) > 1
        if is_gang and all(outcome.leaves):
            self.gangs += 1
            self.leaves = (self.leaves[0] + outcome.leaves[0], self.leaves[1] + outcome.leaves[1])
        (self.rings if is_gang else self.links).add(old.gb_per_s, new.gb_per_s)
