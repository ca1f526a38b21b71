"""Policies of the placement code, as the simulator asks them.

- `Kgwe`: the engine's choice for one pod, the gang planner's for several: what the scheduler itself would do.
- `PodByPod`: a packing policy (`kgwe.placement.packing`) on a fleet where work also leaves. It keeps a mirror of the
  snapshot and tells the policy of every node that changed; pods of a gang are placed one after the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kgwe.placement.fleet.node import CARD_MILLI
from kgwe.placement.fleet.snapshot import Grant
from kgwe.placement.gang.plan import GangPlan
from kgwe.placement.gang.request import GangRequest
from kgwe.placement.gang.search import GangSearch
from kgwe.placement.packing.fleet import Demand, Fleet, NodeSpec
from kgwe.placement.packing.policy import Mix
from kgwe.placement.pod.engine import Decision, Engine
from kgwe.placement.pod.fit import Verdict
from kgwe.placement.pod.ranking import Strategy

if TYPE_CHECKING:
    from collections.abc import Callable

    from kgwe.placement.fleet.node import Request
    from kgwe.placement.packing.policy import Policy as PackingPolicy
    from kgwe.placement.packing.policy import PolicyFactory as PackingFactory
    from kgwe.sim.fleet.fleet import World
    from kgwe.sim.traces.workload import Job, Workload

    Grants = tuple[Grant, ...]

_MIB = 1 << 20
#: stands for any pod with a GPU when a policy is told that a node changed
_SOME = Demand(0, CARD_MILLI, 1)


class Kgwe:
    def __init__(self, world: World, strategy: Strategy = Strategy.SCORE) -> None:
        self._engine = Engine(world.snapshot, strategy=strategy, fitter=world.fitter)
        self._gangs = GangSearch(world.fitter, world.tree)

    def place(self, job: Job) -> Grants | None:
        if job.pods == 1:
            answer = self._engine.decide(job.request)
            return (answer.grant,) if isinstance(answer, Decision) else None
        plan = self._gangs.find(GangRequest.uniform(job.request, job.pods))
        return plan.grants if isinstance(plan, GangPlan) else None


def kgwe(world: World, workload: Workload, rng: np.random.Generator) -> Kgwe:
    """The score of the engine."""
    del workload, rng
    return Kgwe(world)


def kgwe_pack(world: World, workload: Workload, rng: np.random.Generator) -> Kgwe:
    """The engine's strategy `pack` for single pods."""
    del workload, rng
    return Kgwe(world, Strategy.PACK)


class PodByPod:
    def __init__(self, world: World, workload: Workload, rng: np.random.Generator, make: PackingFactory) -> None:
        snapshot = world.snapshot
        self._world = world
        self._fleet = Fleet(
            [
                NodeSpec(node.name, node.cpu_milli, node.memory_bytes // _MIB, node.shape.cards, node.shape.model)
                for node in snapshot.nodes
            ]
        )
        self._demands: dict[Request, Demand] = {}
        counts: dict[Demand, int] = {}
        for request, count in workload.mix:
            demand = self._demand(request)
            counts[demand] = counts.get(demand, 0) + count
        self._make: Callable[[], PackingPolicy] = lambda: make(
            self._fleet, Mix(tuple(counts), tuple(counts.values())), rng
        )
        self._known: PackingPolicy | None = None
        self._seen = 0

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
        nodes = np.flatnonzero(fitter.verdicts(request) == Verdict.FITS)
        if not len(nodes):
            return None
        if request.gpus.slices:
            return fitter.grant(request, int(nodes[0]))  # the packing policies know no slices
        policy, demand = self._caught_up(), self._demand(request)
        node = int(nodes[np.argmax(policy.scores(demand, nodes))])
        if not request.gpus.milli:
            return fitter.grant(request, node)
        (card,) = policy.choose_cards(demand, node)
        gpus = request.gpus
        return Grant(node, request.cpu_milli, request.memory_bytes, share=(card, gpus.milli, gpus.share_mib))

    def _caught_up(self) -> PackingPolicy:
        """The policy, told of all changes. It is made when first asked: it may not be told before it has looked."""
        snapshot = self._world.snapshot
        if self._known is None:
            self._copy(np.arange(len(snapshot)))
            self._known = self._make()
        else:
            changed = snapshot.newer_than(self._seen)
            self._copy(changed)
            for node in changed.tolist():
                self._known.placed(_SOME, node, ())
        self._seen = snapshot.version
        return self._known

    def _copy(self, nodes: np.ndarray) -> None:
        fleet, snapshot = self._fleet, self._world.snapshot
        fleet.cpu_free[nodes] = snapshot.cpu_milli[nodes]
        fleet.memory_free[nodes] = snapshot.memory_bytes[nodes] // _MIB
        cards = snapshot.milli[nodes].T
        fleet.cards[:, nodes] = cards
        fleet.largest[nodes] = cards.max(axis=0, initial=0)
        fleet.whole[nodes] = (cards == CARD_MILLI).sum(axis=0)
        fleet.gpu_free[nodes] = cards.sum(axis=0)

    def _demand(self, request: Request) -> Demand:
        """The request in the packing policies' words: models it may use are those of nodes that could ever hold it."""
        if request not in self._demands:
            gpus = request.gpus
            able = self._world.fitter.when_empty(request) == Verdict.FITS
            models = {self._world.snapshot.nodes[int(node)].shape.model for node in np.flatnonzero(able)}
            spec = "" if models >= set(self._fleet.models) else "|".join(sorted(models))
            cards = gpus.count or (1 if gpus.milli else 0)
            milli = gpus.milli or (CARD_MILLI if gpus.count else 0)
            self._demands[request] = Demand(request.cpu_milli, milli, cards, spec if cards else "")
        return self._demands[request]
