"""Advice on spot: which workloads that ran on demand would have cost less on spot nodes, interruptions included.

The rate of interruptions is measured: spot nodes that went away while pods held their GPUs, per node-hour. Advice is
given by the upper bound of that rate, so few observations advise less. Without any there is no advice. A pod that is
interrupted repeats what it did since its last checkpoint; one without checkpoints begins again.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kgwe.costing.money import HOUR_S, round_ticks

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kgwe.scaling.replay.recording import Allocation, NodeLife, Pool, Recording

#: The rate is below its upper bound with this probability.
CONFIDENCE: Final = 0.9
_STEPS: Final = 60
_MOST: Final = 700.0


class Verdict(enum.StrEnum):
    """What is advised."""

    SPOT = "spot"
    CHECKPOINT = "checkpoint"
    """Spot is cheaper only with checkpoints."""
    ON_DEMAND = "on-demand"
    UNKNOWN = "unknown"
    """No spot node of the type was seen, or no price of it is known."""


@dataclass(frozen=True, slots=True)
class SpotPool:
    """What was measured of the spot nodes of a pool."""

    pool: Pool
    node_s: int
    interruptions: int
    spot: int | None
    """Micro-dollars per hour; None: not known."""
    on_demand: int | None

    @property
    def rate(self) -> float | None:
        """Interruptions per node-hour; None: no spot node was seen."""
        return self.interruptions * HOUR_S / self.node_s if self.node_s else None

    @property
    def bound(self) -> float | None:
        """The upper bound of the rate."""
        return bound_rate(self.interruptions, self.node_s / HOUR_S) if self.node_s else None


@dataclass(frozen=True, slots=True)
class Advice:
    """What one workload cost on demand, and what it would have cost on spot."""

    owner: str
    pool: Pool
    pods: int
    longest_s: int
    on_demand: int
    """Micro-dollars."""
    spot: int | None
    """By the upper bound, with the checkpoints that were asked about; None: not known."""
    verdict: Verdict

    @property
    def saves(self) -> int:
        """What spot would have saved; 0 where it is not advised."""
        return self.on_demand - self.spot if self.verdict is Verdict.SPOT and self.spot is not None else 0


def bound_rate(events: int, hours: float) -> float:
    """Return the largest rate at which so few events are still likely: the exact bound of a Poisson count."""
    low, high = 0.0, events + 10.0 * math.sqrt(events + 1.0) + 10.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if _poisson_at_most(events, middle) > 1 - CONFIDENCE else (low, middle)
    return high / hours


def _poisson_at_most(events: int, mean: float) -> float:
    term = total = math.exp(-mean)
    for number in range(1, events + 1):
        term *= mean / number
        total += term
    return total


def expand(run_h: float, rate: float, checkpoint_h: float | None = None) -> float:
    """Return the expected hours of a run that repeats its work since the last checkpoint after each interruption."""
    piece = run_h if checkpoint_h is None or checkpoint_h <= 0 else min(checkpoint_h, run_h)
    if rate <= 0 or piece <= 0:
        return run_h
    if rate * piece > _MOST:
        return math.inf
    return run_h / piece * math.expm1(rate * piece) / rate


def measure_pools(recording: Recording) -> list[SpotPool]:
    """Return what was measured of each pool that has nodes on demand or on spot."""
    ends: dict[str, int] = {}
    for each in recording.allocations:
        ends[each.node] = max(ends.get(each.node, 0), each.end_s)
    by_pool: dict[Pool, list[NodeLife]] = {}
    for node in recording.nodes:
        if not node.is_prepaid and node.pool.gpus:
            by_pool.setdefault(node.pool, []).append(node)
    found = []
    for pool, nodes in sorted(by_pool.items()):
        spot = [each for each in nodes if each.is_spot]
        lost = [each for each in spot if each.end_s < recording.end_s and ends.get(each.name) == each.end_s]
        # Nodes without a price are recorded with a rate of 0.
        rates = (recording.find_rate(pool, is_spot=each) or None for each in (True, False))
        found.append(SpotPool(pool, sum(each.paid_s for each in spot), len(lost), *rates))
    return found


def advise(recording: Recording, pools: Sequence[SpotPool], checkpoint_h: float | None = None) -> list[Advice]:
    """Return advice for each workload that ran on demand, the most expensive first."""
    known = {each.pool: each for each in pools}
    nodes = {each.name: each for each in recording.nodes if not each.is_spot and not each.is_prepaid}
    groups: dict[tuple[str, Pool], list[Allocation]] = {}
    for each in recording.allocations:
        node = nodes.get(each.node)
        if node is not None and each.ticks > 0:
            groups.setdefault((each.owner, node.pool), []).append(each)
    found = [_advise_one(owner, known[pool], runs, checkpoint_h) for (owner, pool), runs in groups.items()]
    return sorted(found, key=lambda each: (-each.on_demand, each.owner))


def _advise_one(owner: str, pool: SpotPool, runs: Sequence[Allocation], checkpoint_h: float | None) -> Advice:
    paid = round_ticks(sum(each.ticks for each in runs))
    longest_s = max(each.end_s - each.start_s for each in runs)
    rate = pool.bound
    if rate is None or pool.spot is None or not pool.on_demand:
        return Advice(owner, pool.pool, len(runs), longest_s, paid, None, Verdict.UNKNOWN)
    discount = pool.spot / pool.on_demand
    cost = _sum_cost(runs, discount, rate, checkpoint_h)
    if cost < paid:
        verdict = Verdict.SPOT
    elif discount < 1 and _sum_cost(runs, discount, rate, 1 / max(rate * 100, 1e-9)) < paid:
        verdict = Verdict.CHECKPOINT
    else:
        verdict = Verdict.ON_DEMAND
    spot = round(cost) if math.isfinite(cost) else None
    return Advice(owner, pool.pool, len(runs), longest_s, paid, spot, verdict)


def _sum_cost(runs: Iterable[Allocation], discount: float, rate: float, checkpoint_h: float | None) -> float:
    """Return micro-dollars of runs on spot. Each run has one node, which may be interrupted."""
    total = 0.0
    for each in runs:
        hours = (each.end_s - each.start_s) / HOUR_S
        total += each.ticks / HOUR_S * discount * expand(hours, rate, checkpoint_h) / hours
    return total
