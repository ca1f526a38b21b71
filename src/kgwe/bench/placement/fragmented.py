"""The leaves that gangs span on a partly used cluster, compared with other rules and a lower bound.

The scenario is that of `kgwe bench cluster --scenario fragmented`, without a cluster: 500 nodes of 8 GPUs in leaves of
16, four leaves to a spine, 45 % taken at random, 20 gangs of 12 pods of 8 GPUs and 20 of 6 of 4, which would rather be
in one leaf. All wait together and are placed in one pass, in their order; what has no room is left out. So it is for
other loads and for other mixes of gangs (`Mix`). Beside it the gangs come one by one, each in a pass of its own: no
gang is known before its turn.

    mean_leaves           per gang that was placed; mean over the seeds
    worse_than_best_fit   share of the seeds in which that is more than best fit's
    whole_gangs           gangs that were placed; mean over the seeds
    placed_gpus           GPUs of the gangs that were placed; mean over the seeds
    most_gangs            no fewer than any order and arrangement can place (`count_most`); mean over the seeds
    missed                goals that are not reached (`list_misses`)
    bound                 no arrangement of the placed gangs has fewer leaves (`kgwe.bench.cluster.measure.locality`)
    plan_ms               CPU time of a plan, refusals among them, and its share of the joint plan
    joint_ms              CPU time of the joint plan of all gangs
    one_by_one_*          the same without a joint plan: every gang comes after the one before was placed

`best_fit_*`, `even_*` and `first_fit_*` are the rules of `kgwe.bench.placement.leaf_rules` in the same states. They
work on numbers alone; how long they take is not compared.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import statistics
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kgwe.bench import report
from kgwe.bench.cluster import scenarios
from kgwe.bench.cluster.measure import locality
from kgwe.bench.cluster.scenarios import Scenario
from kgwe.bench.placement.leaf_rules import RULES, Grid
from kgwe.local.fleet import models
from kgwe.model.network import domains
from kgwe.placement.fleet.node import Gpus, Node, Request
from kgwe.placement.fleet.snapshot import Grant, Snapshot
from kgwe.placement.gang.request import NONE_FOLLOW, Following, Intent
from kgwe.placement.planning.gang_planner import GangPlanner, GangRequest
from kgwe.placement.pod.engine import Engine
from kgwe.placement.pod.fit import Fitter
from kgwe.placement.queue.cycle import Placed, run_cycle
from kgwe.placement.queue.fleet_planner import FleetPlanner
from kgwe.placement.queue.queue import Queue
from kgwe.placement.queue.workloads import QueuedWorkload, RunningWorkloads
from kgwe.sim.fleet import fleets

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kgwe.local.host.progress import Progress
    from kgwe.model.network.domains import Tree
    from kgwe.placement.fleet.node import Shape
    from kgwe.placement.queue.fleet_planner import QueuePlan
    from kgwe.placement.refusal import Refusal

_FLEET: Final = "dgx-h100"
_LEVELS: Final = ("leaf", "spine")
_LEAVES_PER_SPINE: Final = 4
_CARDS: Final = 8
_SIZE: Final = scenarios.SIZES[Scenario.FRAGMENTED]
OURS: Final = "kgwe"
ONE_BY_ONE: Final = "one_by_one"


@dataclass(frozen=True, slots=True)
class Mix:
    """Gangs of these sizes (pods, GPUs of each) in turn, so many in all."""

    sizes: tuple[tuple[int, int], ...]
    gangs: int


SCENARIO: Final = "scenario"
# The goals of the scenario at its own load: leaves per gang, and the share of seeds that are worse than best fit.
MOST_LEAVES: Final = 1.52
MOST_WORSE: Final = 0.1
MIXES: Final = {
    SCENARIO: Mix(((_SIZE.gang_size, _SIZE.gpus), (_SIZE.gang_size // 2, _SIZE.gpus // 2)), _SIZE.gangs),
    "large": Mix(((24, 8), (20, 4)), 18),
    "whole": Mix(((24, 8), (8, 8)), 18),
    "small": Mix(((4, 8), (3, 4), (8, 2)), 120),
}


@dataclass(frozen=True, slots=True)
class Options:
    seeds: int = 60
    first_seed: int = 1
    loads: tuple[float, ...] = (0.30, 0.45, 0.60, 0.75)
    mixes: tuple[str, ...] = tuple(MIXES)
    jobs: int = 1


@dataclass(frozen=True, slots=True)
class Cell:
    """One load and mix."""

    taken: float
    mix: str

    @property
    def name(self) -> str:
        return f"{self.mix} {self.taken:.0%}"


@dataclass(frozen=True, slots=True)
class Run:
    """One rule with one seed."""

    spans: tuple[int, ...]
    """Leaves of each gang that was placed."""
    bound: float
    gpus: int
    most_gangs: int
    plan_s: tuple[float, ...] = ()
    joint_s: float = 0.0
    """Of `plan_s`."""

    @property
    def mean(self) -> float:
        return statistics.fmean(self.spans) if self.spans else 0.0


def run(options: Options, progress: Progress) -> report.Report:
    machine = report.examine_machine()
    cells = [Cell(_SIZE.taken, SCENARIO)]
    cells += [cell for mix in options.mixes for load in options.loads if (cell := Cell(load, mix)) not in cells]
    found: dict[Cell, dict[str, Any]] = {}
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    with ProcessPoolExecutor(options.jobs) if options.jobs > 1 else contextlib.nullcontext() as pool:
        spread = pool.map if pool else map
        for cell in cells:
            with progress.step(cell.name):
                found[cell] = summarise(list(spread(functools.partial(compare, cell), seeds)))
    missed = [
        goal for number, (cell, each) in enumerate(found.items()) for goal in list_misses(cell, each, first=not number)
    ]
    metrics = {
        **found[cells[0]],
        "missed": missed,
        "by_mix_and_load": {cell.name: numbers for cell, numbers in found.items()},
    }
    return report.Report("fragmented", dataclasses.asdict(options), metrics, machine)


def list_misses(cell: Cell, numbers: dict[str, Any], *, first: bool = False) -> Iterator[str]:
    """Yield the measures in which best fit is better, and the goals that the first scenario misses."""
    if numbers["mean_leaves"] > numbers["best_fit_mean_leaves"]:
        yield f"{cell.name}: more leaves than best fit"
    if numbers["whole_gangs"] < numbers["best_fit_whole_gangs"]:
        yield f"{cell.name}: fewer whole gangs than best fit"
    if first and numbers["mean_leaves"] > MOST_LEAVES:
        yield f"{cell.name}: more than {MOST_LEAVES} leaves"
    if first and numbers["worse_than_best_fit"] > MOST_WORSE:
        yield f"{cell.name}: worse than best fit on more than {MOST_WORSE:.0%} of the seeds"


def summarise(runs: Sequence[dict[str, Run]]) -> dict[str, Any]:
    ours = [each[OURS] for each in runs]
    found: dict[str, Any] = {
        "mean_leaves": _average(each.mean for each in ours),
        "bound": _average(each.bound for each in ours),
        "worse_than_best_fit": _average(each[OURS].mean > each["best_fit"].mean for each in runs),
        "max_leaves": max(max(each.spans, default=0) for each in ours),
        "whole_gangs": _average(len(each.spans) for each in ours),
        "most_gangs": _average(each.most_gangs for each in ours),
        "placed_gpus": _average(each.gpus for each in ours),
        "plan_ms": round(1000 * sum(sum(each.plan_s) for each in ours) / sum(len(each.plan_s) for each in ours), 4),
    }
    found["joint_ms"] = _average(1000 * each.joint_s for each in ours)
    for rule in (ONE_BY_ONE, *RULES):
        theirs = [each[rule] for each in runs]
        found[f"{rule}_mean_leaves"] = _average(each.mean for each in theirs)
        found[f"{rule}_max_leaves"] = max(max(each.spans, default=0) for each in theirs)
        found[f"{rule}_whole_gangs"] = _average(len(each.spans) for each in theirs)
        found[f"{rule}_placed_gpus"] = _average(each.gpus for each in theirs)
    return found


def _average(values: Iterator[Any]) -> float:
    return round(statistics.fmean(values), 4)


# --- one state ------------------------------------------------------------------------------------------


def compare(cell: Cell, seed: int) -> dict[str, Run]:
    """All rules with one seed."""
    site = Site(cell.taken, seed)
    mix = MIXES[cell.mix]
    gangs = [mix.sizes[number % len(mix.sizes)] for number in range(mix.gangs)]
    ours = {OURS: site.run_passes([gangs]), ONE_BY_ONE: Site(cell.taken, seed).run_passes([[gang] for gang in gangs])}
    return ours | {name: site.run_rule(name, gangs) for name in RULES}


class Site:
    """The nodes of the scenario, some of them taken."""

    def __init__(self, taken: float, seed: int) -> None:
        size = scenarios.size_of(Scenario.FRAGMENTED, taken=taken)
        self.names = [f"node-{number:05d}" for number in range(size.nodes)]
        self.leaf_of = {name: f"leaf-{number // size.leaf:04d}" for number, name in enumerate(self.names)}
        offered = dict.fromkeys(self.names, _CARDS)
        self.free = dict(offered)
        for standing in scenarios.list_running_pods(Scenario.FRAGMENTED, size, offered, seed):
            self.free[standing.node] -= standing.gpus
        self._per_leaf = size.leaf
        self.tree = _build_tree(tuple(self.names), size.leaf)
        self.snapshot = Snapshot.from_nodes(Node(name, _build_shape(), 224_000, 2 * 2**40) for name in self.names)
        for number, name in enumerate(self.names):
            if held := _CARDS - self.free[name]:
                self.snapshot.commit(Grant(number, gpus=(1 << held) - 1))

    def run_rule(self, name: str, gangs: Sequence[tuple[int, int]]) -> Run:
        free = np.array([self.free[node] for node in self.names])
        grid = Grid(free, _CARDS, self._per_leaf, self._per_leaf * _LEAVES_PER_SPINE)
        landed = []
        for pods, gpus in gangs:
            nodes = grid.place(RULES[name], pods, gpus)
            if nodes is not None:
                landed.append(locality.Landed(pods, gpus, [self.names[node] for node in nodes]))
        return self._run(landed, gangs)

    def run_passes(self, arrivals: Sequence[Sequence[tuple[int, int]]]) -> Run:
        """One pass after each arrival of gangs; those without room wait, and are tried again."""
        queue = Queue()
        planner = _Timed(self)
        landed: list[locality.Landed] = []
        gangs: list[tuple[int, int]] = []
        for number, arrived in enumerate(arrivals):
            for pods, gpus in arrived:
                request = GangRequest.uniform(Request(Gpus(count=gpus)), pods, preferred="leaf")
                queue.put(QueuedWorkload(f"gang-{len(gangs):04d}", request, "bench"))
                gangs.append((pods, gpus))
            outcomes = run_cycle(queue, planner, float(number), RunningWorkloads(lambda _: ()))
            landed += [
                locality.Landed(
                    *gangs[int(each.workload.key[-4:])], [self.names[grant.node] for grant in each.plan.grants]
                )
                for each in outcomes
                if isinstance(each, Placed)
            ]
        return dataclasses.replace(self._run(landed, gangs, tuple(planner.spent_s)), joint_s=planner.joint_s)

    def _run(
        self, landed: Sequence[locality.Landed], gangs: Sequence[tuple[int, int]], plan_s: tuple[float, ...] = ()
    ) -> Run:
        spans = tuple(len({self.leaf_of[node] for node in gang.nodes}) for gang in landed)
        bound = locality.count_fewest_leaves(landed, self.leaf_of, self.free) / max(len(landed), 1)
        most = count_most(tuple(sorted(self.free.values())), tuple(gangs))
        return Run(spans, bound, sum(gang.pods * gang.gpus for gang in landed), most, plan_s)


@functools.cache
def count_most(free: tuple[int, ...], gangs: tuple[tuple[int, int], ...]) -> int:
    """The most of these gangs (pods, GPUs of each) that nodes with so many free GPUs hold, leaves and turns aside.

    Exact where every size of a pod divides the next larger one: what larger pods leave of a node is whole slots.
    """
    sizes = sorted(Counter(gangs).items(), key=lambda each: (-each[0][1], each[0][0]))

    def extend(number: int, used: int) -> int:
        (pods, gpus), count = sizes[number]
        slots = sum(each // gpus for each in free) - used // gpus
        most = min(count, slots // pods)
        if number + 1 == len(sizes):
            return most
        return max(each + extend(number + 1, used + each * pods * gpus) for each in range(most + 1))

    return extend(0, 0)


class _Timed(FleetPlanner):
    """Keeps the CPU time of every plan."""

    def __init__(self, site: Site) -> None:
        fitter = Fitter(site.snapshot)
        engine = Engine(site.snapshot, fitter=fitter)
        super().__init__(site, engine, GangPlanner(fitter, site.tree), self._take)
        self._snapshot = site.snapshot
        self.spent_s: list[float] = []
        self.joint_s = 0.0
        """Of `spent_s`."""
        self._joint_s = 0.0  # not in `spent_s` yet

    def plan(
        self, work: QueuedWorkload, avoid: frozenset[str], following: Following = NONE_FOLLOW
    ) -> QueuePlan | Refusal:
        begun = time.thread_time()
        answer = super().plan(work, avoid, following)
        self.spent_s.append(time.thread_time() - begun + self._joint_s)
        self._joint_s = 0.0
        return answer

    def arrange_gangs(self, following: Following) -> Sequence[Intent | None]:
        begun = time.thread_time()
        found = super().arrange_gangs(following)
        self._joint_s = time.thread_time() - begun
        self.joint_s += self._joint_s
        return found

    def _take(self, _: QueuedWorkload, plan: QueuePlan) -> None:
        self._snapshot.commit_all(plan.grants)


@functools.cache
def _build_shape() -> Shape:
    return fleets.shape_of(models.load(_FLEET).pools[0].machine)


@functools.cache
def _build_tree(names: tuple[str, ...], leaf: int) -> Tree:
    """Return the tree that the labels of plain nodes give: positions without bandwidths."""
    paths = [(f"leaf-{i // leaf:04d}", f"spine-{i // leaf // _LEAVES_PER_SPINE:04d}") for i in range(len(names))]
    return domains.build_tree([domains.Place(name, path) for name, path in zip(names, paths, strict=True)], _LEVELS)
