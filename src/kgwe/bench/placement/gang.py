"""The speed and quality of plans for gangs, and the speed of a diagnosis for an impossible gang.

    tree        512 pods of 2 GPUs on 512 nodes in 4 zones x 8 blocks x 8 racks x 2, rack preferred
    fill        50 gangs of 8 pods of 8 GPUs, one after the other, on 500 nodes in leaves of 10
    impossible  a gang of 20 pods of 8 GPUs, 490 of 500 nodes in use: the refusal, with its diagnosis
    large       1,000 pods of 8 GPUs on 5,000 nodes, half of them in use, at random

Nodes are DGX H100. The baseline (`naive_*`) places pod after pod on the same states. For a gang it tries one domain
after the other and puts each pod on the tightest node that fits. It has no taints, labels, rings, ranks or reasons,
and takes the first domain that works. For the fill it ignores gangs and takes the emptiest node, as kube-scheduler's
default scoring does.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np

from kgwe import errors
from kgwe.bench import report
from kgwe.local.fleet import models
from kgwe.model.gpu import bandwidth
from kgwe.model.network import domains
from kgwe.placement.disruption.running import Member, Running
from kgwe.placement.fleet.node import Gpus, Node, Request
from kgwe.placement.fleet.snapshot import Grant, Snapshot
from kgwe.placement.gpuset import gpu_tables
from kgwe.placement.planning.diagnosis import Diagnosis
from kgwe.placement.planning.gang_planner import Evictable, GangPlan, GangPlanner, GangRequest
from kgwe.placement.pod.fit import Fitter
from kgwe.placement.refusal import Refusal
from kgwe.sim.fleet import fleets

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kgwe.local.host.progress import Progress
    from kgwe.model.network.domains import Tree
    from kgwe.placement.fleet.node import Shape

_Done = TypeVar("_Done")

FLEET: Final = "dgx-h100"
#: one pod with a whole node
WHOLE: Final = Request(Gpus(count=8), 64_000, 2**38)
_PAIR: Final = Request(Gpus(count=2), 8_000, 2**35)


@dataclass(frozen=True, slots=True)
class Options:
    repeat: int = 7
    seed: int = 1


@dataclass(frozen=True)
class Site:
    """Equal nodes in a regular tree."""

    snapshot: Snapshot
    tree: Tree
    levels: tuple[str, ...]
    paths: list[tuple[str, ...]]
    """Node -> its domains, nearest first."""


def build_site(shape: Shape, levels: Sequence[tuple[str, int]], nodes: int) -> Site:
    """Return nodes in a tree. `levels` has the name and nodes per domain, nearest first. Leaves are oversubscribed by
    two.
    """
    names = tuple(name for name, _ in levels)
    paths = [tuple(f"{name}-{number // size}" for name, size in levels) for number in range(nodes)]
    speed = bandwidth.network_gb_per_s(shape.wiring, range(shape.gpu_count))
    places = [domains.Place(f"node-{i}", path, gb_per_s=speed) for i, path in enumerate(paths)]
    tree = domains.build_tree(places, names, speeds={names[0]: domains.Speed(oversubscription=2.0)})
    snapshot = Snapshot.from_nodes(Node(place.node, shape, 224_000, 2 * 2**40) for place in places)
    return Site(snapshot, tree, names, paths)


def run(options: Options, progress: Progress) -> report.Report:
    machine = report.examine_machine()
    shape = fleets.shape_of(models.load(FLEET).pools[0].machine)
    metrics: dict[str, Any] = {}
    for title, scenario in _SCENARIOS.items():
        with progress.step(title):
            metrics |= scenario(shape, options)
    return report.Report("gang", dataclasses.asdict(options), metrics, machine)


def is_correct(metrics: dict[str, Any]) -> bool:
    """Return whether each gang that fits in a leaf got one, and each other gang was placed or refused correctly."""
    return bool(metrics["one_leaf_share"] == metrics["ideal_one_leaf_share"] and metrics["unplaced"] == 0)


# --- scenarios ------------------------------------------------------------------------------------------


def _measure_tree(shape: Shape, options: Options) -> dict[str, Any]:
    where = build_site(shape, (("rack", 2), ("block", 16), ("zone", 128)), 512)
    gang = GangRequest.uniform(_PAIR, 512, preferred="rack")
    first_s, plan = _time_plan(lambda: plan_gang(where, gang))
    spent = [_time_plan(lambda: plan_gang(where, gang))[0] for _ in range(options.repeat)]
    naive = [_time_plan(lambda: naive_plan(where, _PAIR, 512))[0] for _ in range(max(1, options.repeat // 2))]
    racks = {where.paths[where.snapshot.index[node]][0] for node in plan.nodes}
    return {
        "plan_s": _round_median(spent),
        "plan_first_s": round(first_s, 4),
        "naive_plan_s": _round_median(naive),
        "plan_level": plan.level,
        "plan_racks": len(racks),
        "plan_gb_per_s": round(plan.ring.gb_per_s, 1),
    }


def _fill(shape: Shape, options: Options) -> dict[str, Any]:
    gangs, pods, leaf = 50, 8, 10
    where = build_site(shape, (("leaf", leaf), ("spine", 10 * leaf)), 500)
    planner = GangPlanner(Fitter(where.snapshot), where.tree)
    gang = GangRequest.uniform(WHOLE, pods, preferred="leaf")
    spent, leaves, unplaced = [], [], 0
    for _ in range(gangs):
        seconds, plan = _time_plan(lambda: planner.plan(gang))
        spent.append(seconds)
        if isinstance(plan, Refusal):
            unplaced += 1
            continue
        where.snapshot.commit_all(plan.grants)
        leaves.append(len({where.paths[grant.node][0] for grant in plan.grants}))
    scattered = naive_fill(where, gangs, pods, np.random.default_rng(options.seed))
    room = len(where.paths) // leaf * (leaf // pods)
    return {
        "one_leaf_share": round(sum(n == 1 for n in leaves) / gangs, 4),
        "ideal_one_leaf_share": min(1.0, room / gangs),
        "mean_leaves": round(statistics.fmean(leaves), 3) if leaves else None,
        "unplaced": unplaced,
        "fill_plan_s": _round_median(spent),
        "naive_one_leaf_share": round(sum(n == 1 for n in scattered) / gangs, 4),
        "naive_mean_leaves": round(statistics.fmean(scattered), 3),
    }


def _measure_impossible(shape: Shape, options: Options) -> dict[str, Any]:
    where = build_site(shape, (("leaf", 10), ("spine", 100)), 500)
    rng = np.random.default_rng(options.seed)
    taken = np.sort(rng.permutation(500)[:490]).tolist()
    grants = [Grant(node, 64_000, 2**38, gpus=shape.all_gpus) for node in taken]
    where.snapshot.commit_all(grants)
    # Running jobs of up to eight nodes, all of lower priority and evictable.
    pods = [Member(f"pod-{i}", WHOLE, grant) for i, grant in enumerate(grants)]
    jobs = Evictable([Running(f"job-{i // 8}", tuple(pods[i : i + 8])) for i in range(0, len(pods), 8)], now_s=3600.0)
    gang = GangRequest.uniform(WHOLE, 20, required="spine", priority=1, name="hero")
    refusal = _diagnose_gang(where, gang, jobs)
    spent = [_time_plan(lambda: _diagnose_gang(where, gang, jobs))[0] for _ in range(options.repeat)]
    verdict = [_time_plan(lambda: _diagnose_gang(where, gang))[0] for _ in range(options.repeat)]
    naive = [_time_plan(lambda: naive_plan(where, WHOLE, 20))[0] for _ in range(options.repeat)]
    return {
        "impossible_s": _round_median(spent),
        "impossible_without_evictions_s": _round_median(verdict),
        "naive_impossible_s": _round_median(naive),
        "certificate": refusal.describe(),
        "changes": len(refusal.changes),
    }


def _measure_large(shape: Shape, options: Options) -> dict[str, Any]:
    where = half_taken(shape, 5_000, options.seed)
    gang = GangRequest.uniform(WHOLE, 1_000, preferred="leaf")
    plan = plan_gang(where, gang)
    spent = [_time_plan(lambda: plan_gang(where, gang))[0] for _ in range(options.repeat)]
    naive = _time_plan(lambda: naive_plan(where, WHOLE, 1_000))[0]
    return {
        "large_plan_s": _round_median(spent),
        "naive_large_plan_s": round(naive, 4),
        "large_level": plan.level,
        "large_gb_per_s": round(plan.ring.gb_per_s, 1),
    }


_SCENARIOS: Final[dict[str, Callable[[Shape, Options], dict[str, Any]]]] = {
    "512 pods on 512 nodes, rack preferred": _measure_tree,
    "50 gangs of 8 nodes on 500": _fill,
    "an impossible gang": _measure_impossible,
    "1,000 pods on 5,000 nodes": _measure_large,
}


def half_taken(shape: Shape, nodes: int, seed: int) -> Site:
    where = build_site(shape, (("leaf", 16), ("spine", 256), ("core", 2_048)), nodes)
    taken = np.random.default_rng(seed).permutation(nodes)[: nodes // 2].tolist()
    where.snapshot.commit_all([Grant(node, 64_000, 2**38, gpus=shape.all_gpus) for node in taken])
    return where


# --- measuring ------------------------------------------------------------------------------------------


def plan_gang(where: Site, gang: GangRequest) -> GangPlan:
    plan = GangPlanner(Fitter(where.snapshot), where.tree).plan(gang)
    if isinstance(plan, Refusal):
        raise errors.InvariantBroken(f"a gang that fits was refused: {plan.message}")
    return plan


def _diagnose_gang(where: Site, gang: GangRequest, evictable: Evictable | None = None) -> Diagnosis:
    refusal = GangPlanner(Fitter(where.snapshot), where.tree).plan(gang, evictable=evictable)
    if isinstance(refusal, GangPlan) or not isinstance(refusal.detail, Diagnosis):
        raise errors.InvariantBroken("a gang that does not fit was placed")
    return refusal.detail


def _time_plan(work: Callable[[], _Done]) -> tuple[float, _Done]:
    begun = time.perf_counter()
    done = work()
    return time.perf_counter() - begun, done


def _round_median(seconds: Sequence[float]) -> float:
    return round(statistics.median(seconds), 5)


# --- baseline ------------------------------------------------------------------------------------------


def naive_plan(where: Site, request: Request, pods: int) -> list[int] | None:
    """Return the node of each pod: tries domains from the lowest level up, and for each pod the tightest node that
    fits.
    """
    snapshot = where.snapshot
    best = [
        gpu_tables.build_table(shape.wiring, request.preference).best_sets(request.gpus.count).tolist()
        for shape in snapshot.shapes
    ]
    for level in (*range(len(where.levels)), None):
        members: dict[str, list[int]] = {}
        for node, path in enumerate(where.paths):
            members.setdefault("" if level is None else path[level], []).append(node)
        for nodes in members.values():
            placed = _place_one_by_one(where, nodes, request, pods, best)
            if placed is not None:
                return placed
    return None


def _place_one_by_one(
    where: Site, nodes: Sequence[int], request: Request, pods: int, best: list[list[int]]
) -> list[int] | None:
    snapshot = where.snapshot
    shape = [int(snapshot.shape[node]) for node in nodes]
    free = [int(snapshot.free[node]) for node in nodes]
    cpu = [int(snapshot.cpu_milli[node]) for node in nodes]
    memory = [int(snapshot.memory_bytes[node]) for node in nodes]
    slots = [int(snapshot.pods[node]) for node in nodes]
    placed = []
    for _ in range(pods):
        tightest = None
        for i, node in enumerate(nodes):
            if (
                snapshot.nodes[node].ready
                and slots[i]
                and cpu[i] >= request.cpu_milli
                and memory[i] >= request.memory_bytes
                and best[shape[i]][free[i]]
                and (tightest is None or free[i].bit_count() < free[tightest].bit_count())
            ):
                tightest = i
        if tightest is None:
            return None
        free[tightest] ^= best[shape[tightest]][free[tightest]]
        cpu[tightest] -= request.cpu_milli
        memory[tightest] -= request.memory_bytes
        slots[tightest] -= 1
        placed.append(nodes[tightest])
    return placed


def naive_fill(where: Site, gangs: int, pods: int, rng: np.random.Generator) -> list[int]:
    """Return the leaves of each gang if each pod takes a random one of the emptiest nodes."""
    order = rng.permutation(len(where.paths))[: gangs * pods].tolist()
    return [len({where.paths[node][0] for node in order[i : i + pods]}) for i in range(0, gangs * pods, pods)]
