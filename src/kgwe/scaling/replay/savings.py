"""Savings: the recorded pods replayed without sharing, without packing and without spot, one step after the other.

Each scenario differs from the one before it in one thing, so the differences name what saved how much. Nothing is
assumed: starts, run times, sizes, rates and the delays of nodes are those of the recording.

A pod that found its node at once might have waited for one elsewhere, and small shifts decide which nodes get empty. So
each scenario is replayed with starts that are shifted by at most the recorded delay of a new node, until the mean is
known to half a percent.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from kgwe.costing.money import round_ticks
from kgwe.placement.pod.ranking import Strategy
from kgwe.scaling.replay.elastic_fleet import ElasticFleet, hold_whole_gpus, round_up_parts
from kgwe.scaling.replay.recording import clip

if TYPE_CHECKING:
    from kgwe.scaling.replay.elastic_fleet import FleetRun
    from kgwe.scaling.replay.recording import Allocation, Delays, Pool, Recording

#: Replays of a scenario, at most.
REPLAYS: Final = 30
_LEAST_REPLAYS: Final = 3
_ENOUGH: Final = 0.005
BASELINE: Final = "baseline"
OPTIMIZED: Final = "optimized"


@dataclass(frozen=True, slots=True)
class Scenario:
    """How the recorded pods are placed."""

    name: str
    step: str
    """What it has and the scenario before it has not; empty for the baseline."""
    shares: bool
    strategy: Strategy
    spot: bool


def list_scenarios(packing: Strategy = Strategy.PACK) -> tuple[Scenario, ...]:
    """Return the scenarios from the baseline to the optimized one."""
    spread = Strategy.LEAST_LOADED
    return (
        Scenario(BASELINE, "", shares=False, strategy=spread, spot=False),
        Scenario("shared", "sharing", shares=True, strategy=spread, spot=False),
        Scenario("packed", "placement", shares=True, strategy=packing, spot=False),
        Scenario(OPTIMIZED, "spot", shares=True, strategy=packing, spot=True),
    )


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a scenario would have cost."""

    scenario: Scenario
    micros: int
    """The mean of all replays."""
    least: int
    most: int
    node_s: int
    nodes: int
    """Nodes at the same time, at most: of each pool, summed."""
    replays: int


@dataclass(frozen=True, slots=True)
class Savings:
    """The outcomes beside what was recorded, in micro-dollars."""

    recorded: int
    prepaid: int
    """The part of every amount that is paid in advance."""
    outcomes: tuple[Outcome, ...]
    delays: Delays
    allocations: int
    unpriced: tuple[Pool, ...]
    """Pools without a rate, which are in no amount."""
    assumed_spot: tuple[Pool, ...]
    """Spot pools without a known on-demand rate: they count at their spot rate in every scenario."""

    @property
    def baseline(self) -> int:
        return self.outcomes[0].micros

    @property
    def optimized(self) -> int:
        return self.outcomes[-1].micros

    @property
    def saved(self) -> int:
        """What the baseline would have cost more than what was recorded. A loss is below 0."""
        return self.baseline - self.recorded

    @property
    def possible(self) -> int:
        """What was recorded beyond what the optimized scenario needs."""
        return self.recorded - self.optimized

    def list_steps(self) -> list[tuple[str, int]]:
        """Return what each step saves, from the baseline to the optimized scenario."""
        pairs = zip(self.outcomes, self.outcomes[1:], strict=False)
        return [(after.scenario.step, before.micros - after.micros) for before, after in pairs]


def measure_savings(
    recording: Recording, delays: Delays | None = None, packing: Strategy = Strategy.PACK, replays: int = REPLAYS
) -> Savings:
    """Replay a recording by all scenarios. `delays`: those of nodes; by default as they were recorded."""
    replay = _Replay(recording, delays or recording.measure_delays(), replays)
    outcomes = tuple(replay.run(each) for each in list_scenarios(packing))
    return Savings(
        recorded=round_ticks(recording.ticks),
        prepaid=round_ticks(recording.prepaid_ticks),
        outcomes=outcomes,
        delays=replay.delays,
        allocations=len(recording.allocations),
        unpriced=tuple(sorted(replay.unpriced)),
        assumed_spot=tuple(sorted(replay.assumed_spot)),
    )


class _Fleet(NamedTuple):
    """Pods that one pool must hold."""

    pool: Pool
    is_spot: bool
    allocations: list[Allocation]


class _Replay:
    def __init__(self, recording: Recording, delays: Delays, replays: int) -> None:
        self._recording = recording
        self._replays = replays
        self.delays = delays
        self.unpriced: set[Pool] = set()
        self.assumed_spot: set[Pool] = set()
        nodes = {each.name: each for each in recording.nodes if not each.is_prepaid}
        self._groups: dict[tuple[Pool, bool], list[Allocation]] = {}
        for each in recording.allocations:
            node = nodes.get(each.node)
            if node is not None:
                self._groups.setdefault((node.pool, node.is_spot), []).append(each)

    def run(self, scenario: Scenario) -> Outcome:
        """Return what a scenario costs."""
        fleets = self._list_fleets(scenario)
        rates = [self._find_rate(each.pool, is_spot=each.is_spot) or 0 for each in fleets]
        totals: list[int] = []
        seconds = nodes = 0
        while len(totals) < self._replays and not _is_known(totals):
            number = len(totals)
            runs = [self._run_fleet(each, scenario, number) for each in fleets]
            ticks = sum(run.node_s * rate for run, rate in zip(runs, rates, strict=True))
            totals.append(round_ticks(self._recording.prepaid_ticks + ticks))
            seconds += sum(run.node_s for run in runs)
            nodes = max(nodes, sum(run.nodes for run in runs))
        count = len(totals)
        return Outcome(scenario, sum(totals) // count, min(totals), max(totals), seconds // count, nodes, count)

    def _list_fleets(self, scenario: Scenario) -> list[_Fleet]:
        if scenario.spot:
            return [_Fleet(pool, is_spot, found) for (pool, is_spot), found in self._groups.items()]
        merged: dict[Pool, list[Allocation]] = {}
        for (pool, _), found in self._groups.items():
            merged.setdefault(pool, []).extend(found)
        return [_Fleet(pool, is_spot=False, allocations=found) for pool, found in merged.items()]

    def _run_fleet(self, fleet: _Fleet, scenario: Scenario, number: int) -> FleetRun:
        window = self._recording.start_s, self._recording.end_s
        prepare = round_up_parts if scenario.shares else hold_whole_gpus
        gpus = max([fleet.pool.gpus, 1, *(each.gpus for each in fleet.allocations)])
        shifted = _shift(fleet.allocations, self.delays.lead_s, number)
        return ElasticFleet(gpus, scenario.strategy, self.delays, window).run(map(prepare, clip(shifted, *window)))

    def _find_rate(self, pool: Pool, *, is_spot: bool) -> int | None:
        rate = self._recording.find_rate(pool, is_spot=is_spot)
        if rate is None and not is_spot:
            rate = self._recording.find_rate(pool, is_spot=True)
            if rate is not None:
                self.assumed_spot.add(pool)
        if rate is None:
            self.unpriced.add(pool)
        return rate


def _is_known(totals: list[int]) -> bool:
    """Whether the mean of some replays is known well enough, by its standard error."""
    if len(totals) < _LEAST_REPLAYS:
        return False
    return statistics.stdev(totals) <= _ENOUGH * statistics.fmean(totals) * math.sqrt(len(totals))


def _shift(allocations: list[Allocation], lead_s: int, number: int) -> list[Allocation]:
    """Return the allocations with starts and ends shifted together; those of replay 0 are as recorded."""
    if not number or not lead_s:
        return allocations
    shifts = np.random.default_rng(number).integers(-lead_s, lead_s + 1, len(allocations)).tolist()
    return [
        replace(each, start_s=each.start_s + shift, end_s=each.end_s + shift)
        for each, shift in zip(allocations, shifts, strict=True)
    ]
