"""Policies of the placement code, adapted to the simulator.

`Kgwe` uses the engine for one pod and the gang planner for several, like the scheduler. `PodByPod` runs a packing
policy (`kgwe.placement.packing`) on a fleet from which jobs also leave. It keeps a mirror of the snapshot, reports
changed nodes to the policy, and places the pods of a gang one after the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kgwe.placement.fleet.node import GPU_MILLI
from kgwe.placement.fleet.snapshot import Grant
from kgwe.placement.gang.plan import GangPlan
from kgwe.placement.gang.request import GangRequest
from kgwe.placement.packing.fleet import Demand
from kgwe.placement.packing.policy import Mix
from kgwe.placement.planning.gang_planner import GangPlanner
from kgwe.placement.pod.engine import Decision, Engine
from kgwe.placement.pod.fit_status import FitStatus
from kgwe.placement.pod.packing_mirror import PackingMirror
from kgwe.placement.pod.ranking import Strategy

if TYPE_CHECKING:
    from collections.abc import Callable

    from kgwe.placement.fleet.node import Request
    from kgwe.placement.packing.policy import Policy as PackingPolicy
    from kgwe.placement.packing.policy import PolicyFactory as PackingFactory
    from kgwe.sim.fleet.fleet import World
    from kgwe.sim.traces.workload import Job, Workload

    Grants = tuple[Grant, ...]

#: stands for any GPU pod in the update of a policy after a node change
_SOME = Demand(0, GPU_MILLI, 1)


class Kgwe:
    def __init__(self, world: World, strategy: Strategy = Strategy.SCORE) -> None:
        self.engine = Engine(world.snapshot, strategy=strategy, fitter=world.fitter)
        self.gangs = GangPlanner(world.fitter, world.tree)

    def place(self, job: Job) -> Grants | None:
        if job.pods == 1:
            answer = self.engine.decide(job.request)
            return (answer.grant,) if isinstance(answer, Decision) else None
        plan = self.gangs.try_plan(GangRequest.uniform(job.request, job.pods))
        return plan.grants if isinstance(plan, GangPlan) else None


def kgwe(world: World, workload: Workload, rng: np.random.Generator) -> Kgwe:
    """Return the policy with the engine's score."""
    del workload, rng
    return Kgwe(world)


def kgwe_pack(world: World, workload: Workload, rng: np.random.Generator) -> Kgwe:
    """Return the engine's strategy `pack` for single pods."""
    del workload, rng
    return Kgwe(world, Strategy.PACK)


def kgwe_mixfit(world: World, workload: Workload, rng: np.random.Generator) -> Kgwe:
    """Return the engine's strategy `mixfit` for single pods; it learns the mix from arrivals, like the scheduler."""
    del workload, rng
    return Kgwe(world, Strategy.MIXFIT)


class PodByPod:
    def __init__(self, world: World, workload: Workload, rng: np.random.Generator, make: PackingFactory) -> None:
        self._world = world
        self._mirror = PackingMirror(world.fitter)
        counts: dict[Demand, int] = {}
        for request, count in workload.mix:
            demand = self._mirror.demand_of(request)
            counts[demand] = counts.get(demand, 0) + count
        self._make: Callable[[], PackingPolicy] = lambda: make(
            self._mirror.fleet, Mix(tuple(counts), tuple(counts.values())), rng
        )
        self._known: PackingPolicy | None = None

    def place(self, job: Job) -> Grants | None:
        grants: list[Grant] = []
        with self._world.snapshot.trial() as trial:
            for _ in range(job.pods):
                grant = self._place_pod(job.request)
                if grant is None:
                    return None
                grants.append(grant)
                trial.commit(grant)
        return tuple(grants)

    def _place_pod(self, request: Request) -> Grant | None:
        fitter = self._world.fitter
        nodes = np.flatnonzero(fitter.check_nodes(request) == FitStatus.FITS)
        if not len(nodes):
            return None
        if request.gpus.slices:
            return fitter.find_grant(request, int(nodes[0]))  # the packing policies do not support slices
        policy, demand = self._sync_policy(), self._mirror.demand_of(request)
        node = int(nodes[np.argmax(policy.scores(demand, nodes))])
        if not request.gpus.milli:
            return fitter.find_grant(request, node)
        (card,) = policy.choose_gpus(demand, node)
        gpus = request.gpus
        return Grant(node, request.cpu_milli, request.memory_bytes, share=(card, gpus.milli, gpus.share_mib))

    def _sync_policy(self) -> PackingPolicy:
        """Return the policy with all changes applied. It is built at its first use, from the current fleet."""
        changed = self._mirror.sync()
        if self._known is None:
            self._known = self._make()
        else:
            for node in changed.tolist():
                self._known.on_place(_SOME, node, ())
        return self._known
