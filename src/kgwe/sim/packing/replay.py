"""Replays arrivals through a packing policy, one pod at a time.

A pod that fits on no node is dropped: no queue, no retry, no migration. Its request counts as arrived either way.
After each pod the used, arrived and fragmented amounts are recorded. A curve has one point per percent of arrived
load, the mean over the pods that round to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kgwe.placement.packing.fleet import Fleet
from kgwe.placement.packing.policy import choose_node
from kgwe.sim.packing.fragmentation import Fragmentation

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kgwe.placement.packing.fleet import FloatArray, IntArray
    from kgwe.placement.packing.policy import Mix, PolicyFactory
    from kgwe.sim.traces.openb import Experiment

# Policies have their own random stream, so that all get the same arrivals.
_POLICY_STREAM = 1


@dataclass(frozen=True, slots=True)
class Recording:
    """The amounts in milli after each pod, and the final fleet."""

    fleet: Fleet
    arrived: IntArray
    used: IntArray
    fragment: FloatArray
    failed: int

    def curve(self, amounts: IntArray | FloatArray) -> dict[int, float]:
        """Return percent of capacity by rounded percent of arrived load."""
        capacity = self.fleet.capacity
        percent = np.rint(self.arrived * 100 / capacity).astype(np.int64)
        sums = np.bincount(percent, weights=amounts * (100 / capacity))
        events = np.bincount(percent)
        return {k: float(sums[k] / events[k]) for k in range(len(events)) if events[k]}

    def allocation_at(self, percent: int) -> float:
        """Return the used share of capacity when that load had arrived, or at the end if less arrived."""
        return _read_curve(self.curve(self.used), percent)

    def fragment_at(self, percent: int) -> float:
        return _read_curve(self.curve(self.fragment), percent)


def replay(experiment: Experiment, mix: Mix, make_policy: PolicyFactory, *, seed: int) -> Recording:
    """Run one experiment from an empty fleet."""
    fleet = Fleet(experiment.nodes)
    policy = make_policy(fleet, mix, np.random.default_rng((seed, _POLICY_STREAM)))
    fragmentation = Fragmentation(fleet, mix)
    fragments = fragmentation.of_nodes(np.arange(len(fleet)))
    fragment = float(fragments.sum())
    used = arrived = failed = 0
    rows: list[tuple[int, int, float]] = []
    for pod in experiment.arrivals:
        arrived += pod.demand.total_milli
        node = choose_node(policy, fleet, pod)
        if node is None:
            failed += 1
        else:
            cards = policy.choose_gpus(pod.demand, node)
            fleet.place(pod, node, cards)
            policy.on_place(pod.demand, node, cards)
            used += pod.demand.total_milli
            after = float(fragmentation.of_nodes(np.array([node]))[0])
            fragment += after - fragments[node]
            fragments[node] = after
        rows.append((arrived, used, fragment))
    columns = list(zip(*rows, strict=True))
    return Recording(fleet, np.array(columns[0]), np.array(columns[1]), np.array(columns[2]), failed)


def _read_curve(curve: Mapping[int, float], percent: int) -> float:
    # A pod with many GPUs can skip a point, and a short list can end before it.
    return curve[max((k for k in curve if k <= percent), default=min(curve))]
