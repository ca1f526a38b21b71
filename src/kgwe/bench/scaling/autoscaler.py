"""`kgwe bench autoscaler`: purchases and removals, by size, by scenario, and beside exact plans.

Pools are instance types of the file of GPU prices. The scenarios follow cluster-autoscaler at 1,000 nodes; each
is one loop: what to buy or to remove, without a cloud.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from kgwe import errors
from kgwe.bench import report
from kgwe.bench.forecast.data import find_file
from kgwe.bench.scaling.catalogue import make_shape, read_pools
from kgwe.placement.fleet.node import Gpus, Node, Request, SpotPolicy
from kgwe.placement.fleet.snapshot import Snapshot
from kgwe.placement.planning.ask import Ask, TopologyRequest
from kgwe.placement.pod.engine import Engine
from kgwe.scaling.purchase.exact import HighsCover, load_highs
from kgwe.scaling.purchase.planner import LEAF, PurchasePlanner
from kgwe.scaling.purchase.pools import NodePool
from kgwe.scaling.removal import NodeUse, RemovalSettings, RunningPod, plan_removals

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from kgwe.local.host.progress import Progress
    from kgwe.scaling.purchase.pools import PurchasePlan

_FILE: Final = "prices/gpu_prices_2026-08-22.csv"
_GIB: Final = 1 << 30
_WHOLE: Final = 8
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    data: Path | None = None
    types: int = 400
    pods: tuple[int, ...] = (100, 1_000, 5_000, 20_000)
    classes: int = 40
    small_cases: int = 200
    nodes: int = 1_000
    seed: int = 1


def run(options: Options, progress: Progress) -> report.Report:
    """Measure all three."""
    if min(options.types, options.classes, options.nodes, *options.pods, len(options.pods)) < 1:
        raise errors.Permanent("--types, --classes, --nodes and --pods must be at least 1")
    machine = report.examine_machine()
    pools = read_pools(find_file(options.data, _FILE), options.types)
    progress.note(f"{len(pools)} pools")
    metrics: dict[str, Any] = {"pods_per_s": 0, "pods_per_s_by_count": {}, "plan": {}}
    # Tables of GPU sets are built once per process.
    PurchasePlanner(pools).plan(draw_pods(random.Random(options.seed), 1, 1))  # noqa: S311 -- no secret
    for count in sorted(options.pods):
        progress.note(f"{count} pods")
        asks = draw_pods(random.Random(options.seed), count, options.classes)  # noqa: S311 -- no secret
        taken, plan = _time(lambda asks=asks: PurchasePlanner(pools).plan(asks))  # type: ignore[misc]  # bound now
        metrics["pods_per_s_by_count"][str(count)] = metrics["pods_per_s"] = round(count / taken.wall_s)
        metrics["plan"][str(count)] = {**_summarise(plan), "cpu_s": round(taken.cpu_s, 3)}
    metrics["loop_s"], metrics["loop_cpu_s"] = {}, {}
    for name, scenario in SCENARIOS.items():
        progress.note(name)
        loop = scenario(options.nodes)
        taken, _ = _time(loop)
        metrics["loop_s"][name], metrics["loop_cpu_s"][name] = round(taken.wall_s, 4), round(taken.cpu_s, 4)
    metrics["loop_s_max"] = max(metrics["loop_s"].values())
    progress.note("small cases, exactly")
    metrics.update(compare_exact(pools, options))
    params = {
        "types": options.types,
        "pools": len(pools),
        "classes": options.classes,
        "nodes": options.nodes,
        "seed": options.seed,
    }
    return report.Report("autoscaler", params, metrics, machine)


@dataclass(frozen=True, slots=True)
class Taken:
    """Seconds by the clock, and of CPU: other load changes only the first much."""

    wall_s: float
    cpu_s: float


def _time(work: Callable[[], _Result]) -> tuple[Taken, _Result]:
    started, cpu = time.perf_counter(), time.process_time()
    found = work()
    return Taken(time.perf_counter() - started, time.process_time() - cpu), found


def _summarise(plan: PurchasePlan) -> dict[str, float]:
    return {
        "nodes": len(plan.nodes),
        "pools": len(plan.count_by_pool()),
        "unmet": len(plan.unmet),
        "dollars_per_h": round(plan.price / 1e6, 2),
    }


def draw_requests(random_: random.Random, classes: int) -> list[Request]:
    """Return different requests: whole GPUs, shares, few with a model, most of them allowed on spot."""
    found: dict[Request, None] = {}
    while len(found) < classes:
        gpus = random_.choices((1, 2, 4, 8, 0), (50, 15, 12, 15, 8))[0]
        wanted = Gpus(count=gpus) if gpus else Gpus(milli=random_.choice((100, 250, 500)))
        request = Request(
            wanted,
            cpu_milli=random_.choice((1000, 2000, 4000, 6000)) * max(gpus, 1),
            memory_bytes=random_.choice((4, 8, 16, 24)) * max(gpus, 1) * _GIB,
            model=random_.choices(("", "A100", "H100", "L4", "T4"), (70, 8, 8, 7, 7))[0] if gpus != _WHOLE else "",
            spot=random_.choices((SpotPolicy.ALLOW, SpotPolicy.AVOID), (60, 40))[0],
        )
        found[request] = None
    return list(found)


def draw_pods(random_: random.Random, count: int, classes: int) -> list[Ask]:
    """Return pods of so many classes."""
    requests = draw_requests(random_, classes)
    return [Ask(f"pod-{number}", random_.choice(requests)) for number in range(count)]


# --- scenarios ------------------------------------------------------------------------------------------


def _make_pool(name: str, gpus: int, dollars: int, *, leaf_nodes: int = 0) -> NodePool:
    template = Node(
        name, make_shape(gpus, "H100"), 12_000 * gpus, 128 * gpus * _GIB, price_micro_per_hour=dollars * 1_000_000
    )
    return NodePool(name, template, leaf_nodes=leaf_nodes)


_EIGHT: Final = _make_pool("eight", 8, 40, leaf_nodes=64)
_FOUR: Final = _make_pool("four", 4, 21)


def _ask(owner: str, gpus: int, *, pods: int = 1, required: str = "") -> Ask:
    request = Request(Gpus(count=gpus), 4000 * max(gpus, 1), 16 * _GIB)
    return Ask(owner, request, pods=pods, nearness=TopologyRequest(required=required))


def _buy(asks: Sequence[Ask], in_flight: Sequence[Node] = ()) -> Callable[[], object]:
    return lambda: PurchasePlanner((_EIGHT, _FOUR), in_flight=in_flight).plan(asks)


def _scale_up(nodes: int) -> Callable[[], object]:
    """From nothing: 8 pods with 1 GPU per node."""
    return _buy([_ask(f"p{number}", 1) for number in range(8 * nodes)])


def _scale_up_in_flight(nodes: int) -> Callable[[], object]:
    """7 of 10 nodes are on their way."""
    coming = [_EIGHT.make_node(10_000 + number) for number in range(7 * nodes // 10)]
    return _buy([_ask(f"p{number}", 4) for number in range(2 * nodes)], coming)


def _scale_up_gangs(nodes: int) -> Callable[[], object]:
    """Gangs of 16 nodes, each in one placement group."""
    return _buy([_ask(f"g{number}", 8, pods=16, required=LEAF) for number in range(nodes // 16)])


def _cannot_help(nodes: int) -> Callable[[], object]:
    """Pods that no pool can hold: nothing is bought."""
    return _buy([_ask(f"p{number}", 16) for number in range(8 * nodes)])


def _make_fleet(nodes: int, fill: Callable[[int], int]) -> tuple[Engine, list[RunningPod]]:
    """Return nodes; node n has `fill(n)` pods with 1 GPU."""
    snapshot = Snapshot.from_nodes(_EIGHT.make_node(number) for number in range(nodes))
    engine = Engine(snapshot)
    pods: list[RunningPod] = []
    request = Request(Gpus(count=1), 4000, 16 * _GIB)
    for node in range(nodes):
        for _ in range(fill(node)):
            grant = engine.fitter.find_grant(request, node)
            if grant is None:
                raise errors.InvariantBroken("the scenario does not fit its nodes")
            snapshot.commit(grant)
            pods.append(RunningPod(name=f"pod-{len(pods)}", request=request, grant=grant))
    return engine, pods


def _remove(engine: Engine, pods: list[RunningPod], use: Callable[[int], NodeUse]) -> Callable[[], object]:
    uses = {node.name: use(number) for number, node in enumerate(engine.snapshot.nodes)}
    return lambda: plan_removals(engine, pods, uses, {}, RemovalSettings())


def _scale_down_empty(nodes: int) -> Callable[[], object]:
    """3 of 10 nodes are empty, the others in use."""
    engine, pods = _make_fleet(nodes, lambda node: 0 if node % 10 < 3 else 8)  # noqa: PLR2004 -- 3 of 10
    return _remove(engine, pods, lambda _: NodeUse(idle_min=30.0, gpu_use=0.8))


def _scale_down_low_use(nodes: int) -> Callable[[], object]:
    """3 of 10 nodes do little work; their pods move to the others."""
    engine, pods = _make_fleet(nodes, lambda node: 2 if node % 10 < 3 else 7)  # noqa: PLR2004 -- 3 of 10
    return _remove(engine, pods, lambda node: NodeUse(gpu_use=0.05 if node % 10 < 3 else 0.8))  # noqa: PLR2004


SCENARIOS: Final[dict[str, Callable[[int], Callable[[], object]]]] = {
    "scale_up_from_0": _scale_up,
    "scale_up_7_of_10_in_flight": _scale_up_in_flight,
    "scale_up_gangs_of_16": _scale_up_gangs,
    "pods_that_cannot_be_helped": _cannot_help,
    "scale_down_3_of_10_empty": _scale_down_empty,
    "scale_down_3_of_10_low_use": _scale_down_low_use,
}


# --- exact plans ----------------------------------------------------------------------------------------


def compare_exact(pools: Sequence[NodePool], options: Options) -> dict[str, Any]:
    """Return the cost by classes over the exact cost, for small random cases. None where HiGHS is not installed."""
    if load_highs() is None:
        return {"cost_ratio_max": None, "cost_ratio_mean": None, "small_cases": 0}
    random_, ratios, worse = random.Random(options.seed), [], 0  # noqa: S311 -- no secret
    for _ in range(options.small_cases):
        some = random_.sample(list(pools), min(12, len(pools)))
        requests = draw_requests(random_, random_.randint(1, 4))
        asks = [Ask(f"p{number}", random_.choice(requests)) for number in range(random_.randint(1, 12))]
        exact, quick = PurchasePlanner(some, exact=HighsCover()).plan(asks), PurchasePlanner(some).plan(asks)
        worse += len(quick.unmet) > len(exact.unmet)
        if exact.price:
            ratios.append(quick.price / exact.price)
    return {
        "cost_ratio_max": round(max(ratios), 4) if ratios else None,
        "cost_ratio_mean": round(sum(ratios) / len(ratios), 4) if ratios else None,
        "small_cases": len(ratios),
        "small_cases_with_more_unmet": worse,
    }
