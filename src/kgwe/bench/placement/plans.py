"""The time of plans for preemption, recovery and defragmentation.

    full        DGX H100 nodes, a pod on each GPU (8 x nodes): two thirds single pods, the others gangs of 2 and 4,
    with three priorities. Preemption for pods and gangs of 8 GPUs a pod.
    holes       the same with a third of the GPUs free, but no whole node. Recovery from dead nodes and a dead
                spine, defragmentation for a pod and a gang.

    small       fleets of 6 nodes in 2 leaves with up to 10 workloads, small enough for an exhaustive search: how
    often the
       heuristic for large fleets finds the cheapest set of victims, and how much more its victims cost on average

Times are CPU seconds of this process, medians over the repetitions without the first. `*_victims` and
`*_evictions` count pods.
"""

from __future__ import annotations

import random
import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kgwe.bench import report
from kgwe.local.fleet import models
from kgwe.model.network import domains
from kgwe.model.simfleet import inventory
from kgwe.placement.disruption.defrag import DefragPlan, Rules, Waiting, plan_defrag
from kgwe.placement.disruption.gang_victims import GangVictims
from kgwe.placement.disruption.preemption import PreemptionPlan, plan_preemption
from kgwe.placement.disruption.recovery import Failure, Outcome, plan_recovery
from kgwe.placement.disruption.running import Member, Running
from kgwe.placement.disruption.victims import VictimPool
from kgwe.placement.fleet.node import Gpus, Node, Request
from kgwe.placement.fleet.snapshot import Grant, Snapshot
from kgwe.placement.gang.request import GangRequest
from kgwe.placement.gang.search import GangSearch
from kgwe.placement.pod.fit import Fitter
from kgwe.sim.fleet import fleets

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kgwe.model.network.domains import Tree
    from kgwe.placement.fleet.node import Shape

_FLEET: Final = "dgx-h100"
_CARDS: Final = 8
_NOW_S: Final = 10_000.0
_ONE: Final = Request(Gpus(count=1), 4_000, 2**33)
_WHOLE: Final = Request(Gpus(count=_CARDS), 64_000, 2**38)
_PRICE: Final = 3_000_000
_PRIORITIES: Final = (0, 10, 100)
_SMALL_ITEMS: Final = 14
# Costs are integers of a few millions; smaller differences are rounding.
_EQUAL: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Options:
    nodes: int = 500
    repeat: int = 5
    seed: int = 1
    #: fleets for the exhaustive search
    small: int = 300


class Fleet:
    """Nodes with a pod on each GPU, or on the fraction `used`."""

    def __init__(self, nodes: Sequence[Node], tree: Tree, used: float, seed: int) -> None:
        self.tree = tree
        self.snapshot = Snapshot.from_nodes(nodes)
        self.fitter = Fitter(self.snapshot)
        chance = random.Random(seed)  # noqa: S311 - the same fleet for the same seed
        pods = []
        for node in range(len(nodes)):
            for card in range(_CARDS):
                # The first GPU is always in use, so that no node is whole.
                if card == 0 or chance.random() < used:
                    grant = Grant(node, _ONE.cpu_milli, _ONE.memory_bytes, gpus=1 << card)
                    self.snapshot.commit(grant)
                    pods.append(Member(f"pod-{node}-{card}", _ONE, grant))
        chance.shuffle(pods)
        self.running: list[Running] = []
        while pods:
            size = min(len(pods), chance.choice((1, 1, 1, 1, 1, 1, 2, 4)))
            members = tuple(pods.pop() for _ in range(size))
            work = Running(
                f"work-{len(self.running)}",
                members,
                priority=chance.choice(_PRIORITIES),
                started_at_s=chance.random() * _NOW_S,
                gang=GangRequest.uniform(_ONE, size),
            )
            self.running.append(work)

    @property
    def pods(self) -> int:
        return sum(len(work.members) for work in self.running)


def run(options: Options) -> report.Report:
    """Build the two fleets and time the plans on them."""
    listed = inventory.expand_fleet(models.load(_FLEET), options.nodes)
    nodes, tree = fleets.build_nodes(listed), fleets.build_network(listed)
    machine = report.examine_machine()
    metrics: dict[str, Any] = {}
    full = Fleet(nodes, tree, 1.0, options.seed)
    holes = Fleet(nodes, tree, 2 / 3, options.seed)
    metrics["running_pods"] = full.pods
    _measure_preemption(full, options, metrics)
    _measure_recovery(holes, options, metrics)
    _measure_defrag(holes, options, metrics)
    _compare_victims(nodes[0].shape, options, metrics)
    params = {"fleet": _FLEET, "nodes": options.nodes, "repeat": options.repeat, "seed": options.seed}
    return report.Report("plans", params, metrics, machine)


def is_correct(metrics: dict[str, Any]) -> bool:
    """Return whether each plan that exists was found."""
    return bool(metrics["unplanned"] == 0)


def _measure_preemption(fleet: Fleet, options: Options, metrics: dict[str, Any]) -> None:
    wanted: dict[str, Request | GangRequest] = {
        "pod": _WHOLE,
        "gang_leaf": GangRequest.uniform(_WHOLE, 2, required="leaf"),
        "gang_spine": GangRequest.uniform(_WHOLE, 8, required="spine"),
        "gang_anywhere": GangRequest.uniform(_WHOLE, max(2, options.nodes // 10)),
        "gang_impossible": GangRequest.uniform(_WHOLE, options.nodes + 1),
    }
    unplanned = 0
    for name, work in wanted.items():

        def plan(work: Request | GangRequest = work) -> object:
            return plan_preemption(fleet.fitter, fleet.tree, work, fleet.running, _NOW_S, priority=1000)

        metrics[f"preempt_{name}_s"], made = _time_plan(plan, options.repeat)
        if isinstance(made, PreemptionPlan):
            metrics[f"preempt_{name}_victims"] = sum(len(victim.members) for victim in made.victims)
            metrics[f"preempt_{name}_proven"] = made.proven
        elif name != "gang_impossible":
            unplanned += 1
    metrics["unplanned"] = unplanned


def _measure_recovery(fleet: Fleet, options: Options, metrics: dict[str, Any]) -> None:
    names = [node.name for node in fleet.snapshot.nodes]
    spine = fleet.tree.levels[fleet.tree.level("spine")].names[0]
    failures = {
        "node": Failure(frozenset(names[:1])),
        "10_nodes": Failure(frozenset(names[: 10 * (options.nodes // 10) : max(1, options.nodes // 10)])),
        "spine": Failure(domains=frozenset({("spine", spine)})),
    }
    for name, failure in failures.items():

        def plan(failure: Failure = failure) -> object:
            return plan_recovery(fleet.fitter, fleet.tree, fleet.running, failure)

        metrics[f"recover_{name}_s"], _ = _time_plan(plan, options.repeat)
        made = plan_recovery(fleet.fitter, fleet.tree, fleet.running, failure)
        metrics[f"recover_{name}_moves"] = len(made.moves)
        metrics["unplanned"] += sum(repaired.outcome is Outcome.WAITS for repaired in made.repairs)


def _measure_defrag(fleet: Fleet, options: Options, metrics: dict[str, Any]) -> None:
    wanted: dict[str, Request | GangRequest] = {"pod": _WHOLE, "gang": GangRequest.uniform(_WHOLE, 2, required="leaf")}
    for name, work in wanted.items():
        waiting = [Waiting(name, work, 36_000.0)]

        def plan(waiting: Sequence[Waiting] = waiting) -> object:
            return plan_defrag(fleet.fitter, fleet.tree, waiting, fleet.running, rules=Rules(_PRICE), now_s=_NOW_S)

        metrics[f"defrag_{name}_s"], made = _time_plan(plan, options.repeat)
        if isinstance(made, DefragPlan):
            metrics[f"defrag_{name}_evictions"] = made.evictions
        else:
            metrics["unplanned"] += 1


def _compare_victims(shape: Shape, options: Options, metrics: dict[str, Any]) -> None:
    """Compare the proposed victims with the cheapest ones."""
    excess = []
    for number in range(options.small):
        chance = random.Random(options.seed * options.small + number)  # noqa: S311 - see Fleet
        search, running = _small_fleet(shape, chance)
        request = Request(Gpus(count=chance.choice((2, 4, 8))))
        gang = GangRequest.uniform(request, chance.randint(2, 5), required=chance.choice(("cluster", "leaf")))
        pool = VictimPool(search.fitter.snapshot, running, _NOW_S)
        best = GangVictims(search, pool, gang).find_lightest(exact_items=_SMALL_ITEMS)
        if not best.picked or not best.proven:
            # The pod starts anyway, cannot start, or has too many possible sets.
            continue
        proposed = GangVictims(search, pool, gang).find_lightest(exact_items=-1)
        metrics["unplanned"] += proposed.picked is None
        excess.append(pool.weight(proposed.picked or best.picked) / pool.weight(best.picked) - 1)
    metrics["small_fleets"] = len(excess)
    metrics["proposed_is_cheapest_share"] = round(sum(each < _EQUAL for each in excess) / len(excess), 4)
    metrics["proposed_mean_excess"] = round(statistics.mean(excess), 4)


def _small_fleet(shape: Shape, chance: random.Random) -> tuple[GangSearch, list[Running]]:
    nodes = [Node(f"node-{i}", shape, 64_000, 2**40) for i in range(6)]
    tree = domains.build_tree(
        [domains.Place(node.name, (f"leaf-{i // 3}",)) for i, node in enumerate(nodes)], ("leaf",)
    )
    fitter = Fitter(Snapshot.from_nodes(nodes))
    running = []
    for number in range(10):
        request = Request(Gpus(count=chance.choice((1, 2, 4, 8))))
        members = []
        for node in chance.sample(range(6), chance.choice((1, 1, 1, 2, 3))):
            grant = fitter.find_grant(request, node)
            if grant is not None:
                fitter.snapshot.commit(grant)
                members.append(Member(f"pod-{number}-{node}", request, grant))
        if members:
            work = Running(
                f"work-{number}",
                tuple(members),
                priority=chance.choice((0, 1)),
                started_at_s=_NOW_S - 100 * chance.randint(0, 50),
                min_members=chance.choice((None, None, 0, 1)),
            )
            running.append(work)
    return GangSearch(fitter, tree), running


def _time_plan(plan: Callable[[], object], repeat: int) -> tuple[float, object]:
    """Return the median CPU seconds, and the result."""
    made = plan()
    taken = []
    for _ in range(repeat):
        started = time.process_time()
        plan()
        taken.append(time.process_time() - started)
    return round(statistics.median(taken), 4), made
