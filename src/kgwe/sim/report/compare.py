"""Runs one workload on one fleet with several policies, each from an empty fleet and with the same faults."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kgwe.sim.fleet.fleet import World
from kgwe.sim.loop import Options, Simulation
from kgwe.sim.policies import registry
from kgwe.sim.report import metrics

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kgwe.placement.fleet.node import Node
    from kgwe.sim.loop import Watcher
    from kgwe.sim.report.metrics import Result
    from kgwe.sim.traces.workload import Workload


def run_policy(
    nodes: Sequence[Node],
    workload: Workload,
    policy: str,
    options: Options | None = None,
    watchers: tuple[Watcher, ...] = (),
    *,
    oversubscription: Sequence[float] = (),
) -> Result:
    """Run the workload with the named policy."""
    world = World.from_nodes(nodes, oversubscription)
    simulation = Simulation(world, workload, registry.find_policy(policy), options, watchers)
    return metrics.summarise(policy, simulation.run())


def compare_policies(
    nodes: Sequence[Node],
    workload: Workload,
    names: Sequence[str],
    options: Options | None = None,
    watch: Callable[[str], tuple[Watcher, ...]] = lambda _: (),
    *,
    oversubscription: Sequence[float] = (),
) -> list[Result]:
    """Run each policy in turn; `watch(policy)` returns its watchers."""
    for name in names:
        registry.find_policy(name)  # report a misspelled name before the others run
    return [
        run_policy(nodes, workload, name, options, watch(name), oversubscription=oversubscription) for name in names
    ]
