"""`kgwe bench cluster`: pods end to end on a real control plane with simulated nodes.

Each phase gets a new cluster: the same nodes, an empty etcd and empty caches, and no garbage or history of the phase
before. A start takes some seconds; deleting thousands of objects takes longer and is never quite complete. The phases
of a round run one after the other. Every second round runs them in reverse order, so a machine that gets slower or
faster does not favor one phase.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kgwe import errors
from kgwe.bench import report
from kgwe.bench.cluster import clusters, scenarios, scheduler
from kgwe.bench.cluster.bed import Bed
from kgwe.bench.cluster.burst import Burst
from kgwe.bench.cluster.load import Kind, Load
from kgwe.bench.cluster.measure import summary
from kgwe.bench.cluster.nodes import NodeSet, count_slots
from kgwe.bench.cluster.restart import Restart
from kgwe.bench.cluster.scenarios import Phase, Scenario, Size
from kgwe.bench.loop import loop_factory
from kgwe.kube.client.client import KubeClient
from kgwe.local.toolchain import build
from kgwe.model.units.phrasing import format_count

if TYPE_CHECKING:
    from pathlib import Path

    from kgwe.bench.cluster.phase import PhaseResult
    from kgwe.local.cluster.cluster import LocalCluster
    from kgwe.local.host.progress import Progress, Step

USUAL_PHASES = (Phase.NULL, Phase.KUBE_SCHEDULER, Phase.KGWE)
# Starts per phase in `restart`: creating the running pods takes much longer than a start of the scheduler.
_STARTS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    scenario: Scenario = Scenario.FILL
    size: Size = field(default_factory=lambda: scenarios.SIZES[Scenario.FILL])
    gpus_per_node: int = 8
    # The fleet model of the nodes, instead of plain nodes.
    fleet: str | None = None
    kind: Kind = "kgwe"
    strategy: str = "leastLoaded"
    phases: tuple[Phase, ...] = USUAL_PHASES
    warm_up: int = 300
    repeat: int = 2
    seed: int = 1
    timeout_s: float = 600.0
    # Give pods of gangs their seats while they are created (deploy/gang-seats.yaml).
    offers: bool = False
    # Keep the last cluster running.
    keep: bool = False
    # File for a cProfile of KGWE, which makes KGWE about half as fast.
    profile: Path | None = None

    @property
    def node_set(self) -> NodeSet:
        return NodeSet(self.size.nodes, self.gpus_per_node, self.size.leaf, self.fleet)

    def check(self) -> None:
        """Raise Permanent if the pods cannot fit, before the slow part starts."""
        self.size.check()
        for name in ("gpus_per_node", "repeat"):
            if getattr(self, name) < 1:
                raise errors.Permanent(f"--{name.replace('_', '-')} {getattr(self, name)}: must be at least 1")
        if not self.phases:
            raise errors.Permanent(f"--phases: expected at least one of {', '.join(Phase)}")
        pieces = scenarios.list_objects(self.scenario, self.size)
        if Phase.GATE in self.phases and not (scenarios.fits_all(self.scenario) and pieces[0].gang):
            raise errors.Permanent(f"--phases gate: not available in scenario {self.scenario}; use gangs or biggang")
        gpus = self.node_set.gpus()
        # Capacity is counted in pods of the largest size.
        room = count_slots(gpus, max(piece.gpus for piece in pieces))
        asked = sum(piece.pods for piece in pieces) if scenarios.fits_all(self.scenario) else 0
        if asked > room:
            raise errors.Permanent(
                f"{format_count(asked, 'pod')} do not fit: {format_count(self.size.nodes, 'node')} can hold {room}.\n"
                f"Use more --nodes, or fewer --pods or --gangs."
            )


def run(options: Options, progress: Progress) -> report.Report:
    """Measure each phase `repeat` times."""
    options.check()
    clusters.sweep()
    found = build.ensure_binaries(progress)
    machine = report.examine_machine(kubernetes=clusters.read_version(found))
    began = time.monotonic()
    rounds = []
    for number in range(1, options.repeat + 1):
        suffix = f", round {number} of {options.repeat}" if options.repeat > 1 else ""
        order = options.phases if number % 2 else options.phases[::-1]
        results = {}
        for phase in order:
            keep = options.keep and number == options.repeat and phase is order[-1]
            title = f"Scenario {options.scenario} on {options.size.nodes} nodes: {phase}{suffix}"
            name = clusters.name_of(phase, keep=keep)
            # kube-scheduler's configuration needs the port before KGWE runs.
            port = scheduler.free_port(name)
            config = scheduler.build_configuration(name, port) if phase is Phase.KGWE else None
            with (
                clusters.private_cluster(name, found, progress, scheduler_config=config, keep=keep) as cluster,
                progress.step(title) as step,
                asyncio.Runner(loop_factory=loop_factory()) as runner,
            ):
                results[phase] = runner.run(_measure((cluster, port), phase, options, step))
        rounds.append({phase: results[phase] for phase in options.phases})
    return report.Report(
        "cluster", _list_params(options), summary.build_metrics(rounds, wall_s=time.monotonic() - began), machine
    )


def _list_params(options: Options) -> dict[str, Any]:
    said = {**dataclasses.asdict(options), "profile": options.profile is not None}
    size = said.pop("size")
    return {"scenario": said.pop("scenario"), **size, **said}


async def _measure(place: tuple[LocalCluster, int], phase: Phase, options: Options, step: Step) -> PhaseResult:
    cluster, port = place
    work = Load(options.scenario, phase, options.kind, options.strategy)
    async with KubeClient.connect(cluster.kubeconfig, field_manager="kgwe-bench") as client:
        ground = Bed(cluster, client, work, step, port=port, timeout_s=options.timeout_s, profile=options.profile)
        ground.offers = options.offers
        if options.scenario is Scenario.RESTART:
            starts = 1 if options.profile else _STARTS
            return await Restart(ground, options.size).run(options.node_set, starts=starts, seed=options.seed)
        return await Burst(ground, options.size).run(options.node_set, warm_up=options.warm_up, seed=options.seed)
