"""Scale-down: which nodes can be removed so that no pod is left without a place, and why the others stay.

A node is considered when nothing runs on it for a while, or when its GPUs do little work. Every pod on it must be
allowed to move, and the scheduler's engine must find it a place on a node that stays. Unknown use blocks a removal.
"""

from __future__ import annotations

import enum
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from kgwe.placement.pod.engine import Decision

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kgwe.placement.fleet.node import Request
    from kgwe.placement.fleet.snapshot import Grant, Snapshot, Trial
    from kgwe.placement.pod.engine import Engine


class Keep(enum.StrEnum):
    """Why a node stays."""

    NOT_OWNED = "NotOwned"
    """Another autoscaler or a person owns it."""
    IN_USE = "InUse"
    TOO_YOUNG = "IdleForTooShortATime"
    UNKNOWN_USE = "UseNotKnown"
    DO_NOT_DISRUPT = "DoNotDisrupt"
    """A pod on it must not be disturbed: an annotation, or a Job without a checkpoint."""
    GANG = "GangMember"
    """A pod of a gang runs on it. A gang is not split."""
    BUDGET = "DisruptionBudget"
    NO_PLACE = "PodDoesNotFitElsewhere"
    RECEIVES = "ReceivesPods"
    """Pods of another node move to it."""
    LEAST = "LeastNodes"
    """Its pool would have fewer nodes than it must."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningPod:
    name: str
    request: Request
    grant: Grant
    """What it holds; the node is part of it."""
    is_daemon: bool = False
    may_move: bool = True
    """No `do-not-disrupt`, `safe-to-evict: false` or minimum run time forbids it; not a Job without a checkpoint."""
    gang: str = ""
    budgets: tuple[str, ...] = ()
    """PodDisruptionBudgets that select it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeUse:
    """What is known of a node besides its pods."""

    pool: str = ""
    is_owned: bool = True
    idle_min: float = 0.0
    """Minutes without a pod other than those of DaemonSets."""
    gpu_use: float | None = None
    """Mean use of its GPUs, 0 to 1; None: not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovalSettings:
    idle_min: float = 10.0
    low_use: float = 0.2
    consolidate: bool = True
    """Whether nodes with pods on them are considered, too."""
    least: Mapping[str, int] = field(default_factory=dict)
    """Pool -> nodes that stay in any case."""


@dataclass(frozen=True, slots=True)
class Removal:
    node: str
    moves: tuple[tuple[str, str], ...] = ()
    """Pod and the node it fits on, in the order in which room was found."""


@dataclass(frozen=True, slots=True)
class RemovalPlan:
    removals: tuple[Removal, ...]
    kept: Mapping[str, tuple[Keep, str]]
    """Node -> why it stays, and the pod or pool that is the cause."""


def plan_removals(
    engine: Engine,
    pods: Sequence[RunningPod],
    uses: Mapping[str, NodeUse],
    budgets: Mapping[str, int],
    settings: RemovalSettings,
) -> RemovalPlan:
    """Return the nodes to remove. The engine's snapshot has all pods booked, and is the same afterwards.

    `budgets`: PodDisruptionBudget -> pods that may be disturbed now. A budget that is not listed allows none.
    """
    return _Round(engine, pods, uses, dict(budgets), settings).run()


class _Round:
    def __init__(
        self,
        engine: Engine,
        pods: Sequence[RunningPod],
        uses: Mapping[str, NodeUse],
        budgets: dict[str, int],
        settings: RemovalSettings,
    ) -> None:
        self._engine, self._uses, self._budgets, self._settings = engine, uses, budgets, settings
        self._snapshot: Snapshot = engine.snapshot
        self._pods: dict[int, list[RunningPod]] = {}
        for pod in pods:
            self._pods.setdefault(pod.grant.node, []).append(pod)
        self._stays = self._snapshot.ready.copy()
        self._receives: set[int] = set()
        self._is_settled = np.ones(len(self._snapshot), dtype=np.bool_)
        self._left: dict[str, int] = {}
        for use in uses.values():
            self._left[use.pool] = self._left.get(use.pool, 0) + 1
        self._kept: dict[str, tuple[Keep, str]] = {}

    def run(self) -> RemovalPlan:
        removals = []
        with self._snapshot.trial() as trial:
            for node in self._list_candidates():
                found = self._try_remove(trial, node)
                if found is not None:
                    removals.append(found)
        return RemovalPlan(tuple(removals), self._kept)

    def _movable(self, node: int) -> list[RunningPod]:
        return [pod for pod in self._pods.get(node, ()) if not pod.is_daemon]

    def _list_candidates(self) -> list[int]:
        """Return nodes that need not stay by themselves: empty ones first, then those with few pods."""
        candidates = []
        for number, node in enumerate(self._snapshot.nodes):
            reason = self._find_own_reason(number, self._uses.get(node.name))
            if reason is None:
                candidates.append(number)
            else:
                self._kept[node.name] = reason
        self._is_settled[candidates] = False
        nodes = self._snapshot.nodes
        candidates.sort(key=lambda each: (len(self._movable(each)), -(nodes[each].price_micro_per_hour or 0), each))
        return candidates

    def _find_own_reason(self, number: int, use: NodeUse | None) -> tuple[Keep, str] | None:
        if use is None or not use.is_owned:
            return Keep.NOT_OWNED, ""
        pods = self._movable(number)
        if not pods:
            return None if use.idle_min >= self._settings.idle_min else (Keep.TOO_YOUNG, "")
        if not self._settings.consolidate:
            return Keep.IN_USE, pods[0].name
        if use.gpu_use is None:
            return Keep.UNKNOWN_USE, ""
        if use.gpu_use >= self._settings.low_use:
            return Keep.IN_USE, ""
        for pod in pods:
            if not pod.may_move:
                return Keep.DO_NOT_DISRUPT, pod.name
            if pod.gang:
                return Keep.GANG, pod.name
        return None

    def _try_remove(self, trial: Trial, node: int) -> Removal | None:
        """Remove the node and move its pods; None, with the reason noted and nothing changed, where it must stay."""
        name, pods = self._snapshot.nodes[node].name, self._movable(node)
        pool, spent = self._uses[name].pool, Counter(budget for pod in pods for budget in pod.budgets)
        reason = self._find_block(node, pool, spent)
        if reason is not None:
            self._kept[name] = reason
            return None
        mark = len(trial)
        self._stays[node] = False
        targets = self._move_all(trial, pods)
        if isinstance(targets, str):
            trial.rollback(mark)
            self._stays[node] = True
            self._kept[name] = (Keep.NO_PLACE, targets)
            return None
        for budget, count in spent.items():
            self._budgets[budget] -= count
        self._receives.update(targets)
        self._is_settled[targets] = True
        self._left[pool] -= 1
        nodes = self._snapshot.nodes
        return Removal(name, tuple((pod.name, nodes[each].name) for pod, each in zip(pods, targets, strict=True)))

    def _find_block(self, node: int, pool: str, spent: Counter[str]) -> tuple[Keep, str] | None:
        if node in self._receives:
            return Keep.RECEIVES, ""
        if self._left[pool] <= self._settings.least.get(pool, 0):
            return Keep.LEAST, pool
        short = (budget for budget, count in spent.items() if count > self._budgets.get(budget, 0))
        budget = next(short, None)
        return None if budget is None else (Keep.BUDGET, budget)

    def _move_all(self, trial: Trial, pods: Sequence[RunningPod]) -> list[int] | str:
        """Return a node that stays for every pod, or the pod for which there is none."""
        targets: list[int] = []
        for pod in pods:
            # A node that receives a pod cannot go in this round, so those that stay anyway come first.
            settled = np.flatnonzero(self._stays & self._is_settled)
            found = self._engine.decide(pod.request, candidates=settled)
            if not isinstance(found, Decision):
                found = self._engine.decide(pod.request, candidates=np.flatnonzero(self._stays))
            if not isinstance(found, Decision):
                return pod.name
            trial.commit(found.grant)
            targets.append(found.node)
        return targets
