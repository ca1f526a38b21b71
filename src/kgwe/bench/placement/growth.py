"""The growth of the cost of a decision with the nodes of a fleet, the GPUs of a node, and the pods of a gang.

    pod_by_nodes   a pod of a mix on half-full fleets of mixed nodes with eight GPUs, as in `kgwe bench engine`
    pod_by_gpus    a pod of one GPU or of half a node, on 1,000 equal nodes with 1 to 16 GPUs, half full
    gang_by_nodes  64 pods of 8 GPUs on DGX H100 nodes, half of them in use, at random, leaf preferred
    gang_by_pods   1 to 1,024 such pods on 5,000 nodes

Times are CPU seconds of this process: other load on the machine would look like growth.

    again          a pod with a known request: decide and book; another pod leaves
    new_template   the first decision for a new request
    new_machine    the GPU-set tables, computed once per kind of node, and first decisions
    plan           the plan of a gang from a snapshot, tables cached; median
    loop           the same pod or gang with a plain loop: all rules for pods, fewer for gangs (see
                   `kgwe.bench.placement.gang`)
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kgwe.bench import report
from kgwe.bench.placement import engine as pods
from kgwe.bench.placement import gang as gangs
from kgwe.bench.placement import naive
from kgwe.bench.placement.plot import Panel
from kgwe.local.fleet import models
from kgwe.model.gpu.topology import Slot, Wiring
from kgwe.placement.fleet.node import Gpus, Node, Preference, Request, Shape
from kgwe.placement.fleet.snapshot import Snapshot
from kgwe.placement.planning.gang_planner import GangRequest
from kgwe.placement.pod.engine import Engine
from kgwe.placement.pod.fit import Fitter
from kgwe.sim.fleet import fleets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from kgwe.local.host.progress import Progress

    Curves = dict[str, dict[str, float]]

_FLEET: Final = "mixed"
_GANG: Final = 64
_UNSEEN: Final = 10
# At 16,000 nodes the loop takes a fifth of a second.
_LOOPS: Final = 8
# A size that is not measured, so its tables are not cached.
_WARM_UP_GPUS: Final = 3
# Labels in the chart.
_NAMES: Final = {
    "again": "pod of a known template",
    "new_template": "pod of a new template",
    "new_machine": "first pod on a new kind of node",
    "plan": "plan of the gang",
    "loop": "plain loop",
}


@dataclass(frozen=True, slots=True)
class Options:
    nodes: tuple[int, ...] = (250, 1_000, 4_000, 16_000)
    gpus: tuple[int, ...] = (1, 2, 4, 8, 16)
    gpus_nodes: int = 1_000
    gang_nodes: tuple[int, ...] = (500, 1_000, 2_000, 5_000, 10_000)
    gang_pods: tuple[int, ...] = (1, 4, 16, 64, 256, 1_024)
    gang_pods_nodes: int = 5_000
    decisions: int = 2_000
    repeat: int = 7
    seed: int = 1


def run(options: Options, progress: Progress) -> report.Report:
    machine = report.examine_machine()
    metrics: dict[str, Any] = {}
    _pod_by_gpus(dataclasses.replace(options, gpus_nodes=10, decisions=10), _WARM_UP_GPUS)
    # This runs first: another fleet would fill the cache of tables.
    with progress.step("pods by GPUs per node") as step:
        metrics["pod_by_gpus"] = _measure_curves(options.gpus, partial(_pod_by_gpus, options), step.update)
    with progress.step("pods by fleet size") as step:
        metrics["pod_by_nodes"] = _measure_curves(options.nodes, partial(_pod_by_nodes, options), step.update)
    with progress.step("gangs by fleet size") as step:
        metrics["gang_by_nodes"] = _measure_curves(
            options.gang_nodes, partial(_measure_gang, options, pods=_GANG), step.update
        )
    with progress.step("gangs by number of pods") as step:
        plan = partial(_measure_gang, options, options.gang_pods_nodes)
        metrics["gang_by_pods"] = _measure_curves(options.gang_pods, plan, step.update)
    return report.Report("growth", dataclasses.asdict(options), metrics, machine)


def build_panels(measured: report.Report) -> list[Panel]:
    """Return the panels of the chart."""
    params = measured.params
    titles = {
        "pod_by_nodes": ("One pod, by size of the fleet", "nodes of 8 GPUs"),
        "pod_by_gpus": (f"One pod on {params['gpus_nodes']:,} nodes, by size of a node", "GPUs of a node"),
        "gang_by_nodes": (f"A gang of {_GANG} pods of 8 GPUs, by size of the fleet", "nodes"),
        "gang_by_pods": (f"A gang on {params['gang_pods_nodes']:,} nodes, by its size", "pods of 8 GPUs"),
    }
    return [
        Panel(title, x_label, {_NAMES[name]: curve for name, curve in measured.metrics[key].items()})
        for key, (title, x_label) in titles.items()
    ]


def _measure_curves(
    sizes: Iterable[int], measure: Callable[[int], Mapping[str, float]], say: Callable[[str], None]
) -> Curves:
    curves: Curves = {}
    for size in sizes:
        say(f"{size:,}")
        for name, seconds in measure(size).items():
            # Keep four digits; the rest is noise.
            curves.setdefault(name, {})[str(size)] = float(f"{seconds:.4g}")
    return curves


# --- one pod --------------------------------------------------------------------------------------------


def _pod_by_nodes(options: Options, nodes: int) -> dict[str, float]:
    snapshot = pods.snapshot_of(_FLEET, nodes)
    rng = np.random.default_rng(options.seed)
    running = fleets.half_full(snapshot, options.seed)
    return _measure_pods(snapshot, running, fleets.draw_requests(options.decisions, rng), rng)


def _pod_by_gpus(options: Options, cards: int) -> dict[str, float]:
    asked = (Request(Gpus(count=1)), Request(Gpus(count=max(1, cards // 2)), preference=Preference.NVLINK_OPTIMAL))
    shape = _build_shape(cards)
    snapshot = Snapshot.from_nodes(Node(f"node-{i}", shape, 10**6, 2**42) for i in range(options.gpus_nodes))
    new_machine = _cpu_s(lambda: _decide_all(Engine(snapshot), asked))
    rng = np.random.default_rng(options.seed)
    running = _fill_half(snapshot, asked, rng)
    drawn = [asked[i] for i in rng.integers(len(asked), size=options.decisions).tolist()]
    return {"new_machine": new_machine, **_measure_pods(snapshot, running, drawn, rng)}


def _measure_pods(
    snapshot: Snapshot, running: list[Callable[[], None]], arriving: Sequence[Request], rng: np.random.Generator
) -> dict[str, float]:
    templates = list(dict.fromkeys(arriving))
    engine = Engine(snapshot)
    _decide_all(engine, templates)
    _, again, _ = pods.run_churn(engine, running, arriving, rng)
    unseen = [dataclasses.replace(templates[0], cpu_milli=templates[0].cpu_milli + 1 + i) for i in range(_UNSEEN)]
    loop = naive.Loop(snapshot)
    for request in templates:
        loop.prepare(request)
    return {
        "again": again / len(arriving),
        "new_template": _cpu_s(lambda: _decide_all(engine, unseen)) / _UNSEEN,
        "loop": statistics.median(_cpu_s(partial(loop.decide, request)) for request in arriving[:_LOOPS]),
    }


def _decide_all(engine: Engine, requests: Iterable[Request]) -> None:
    for request in requests:
        engine.decide(request)


def _build_shape(cards: int) -> Shape:
    """Return a node with two GPUs per PCIe switch, half of the GPUs per CPU, all connected by NVSwitches."""
    slots = [
        Slot(f"00000000:{0x10 + i:02X}:00.0", numa=2 * i // cards, pcie=(f"rc{i // 2}", f"sw{i // 2}"))
        for i in range(cards)
    ]
    return Shape(Wiring(tuple(slots), nvlink_version=3, switch_links=12), "A100", 81_920, "Ampere")


def _fill_half(snapshot: Snapshot, asked: Sequence[Request], rng: np.random.Generator) -> list[Callable[[], None]]:
    """Fill each node with pods of these sizes, up to a random number of its GPUs."""
    fitter = Fitter(snapshot)
    undos = []
    for node in range(len(snapshot)):
        left = int(rng.integers(snapshot.nodes[node].shape.gpu_count + 1))
        while left:
            request = max((each for each in asked if each.gpus.count <= left), key=lambda each: each.gpus.count)
            grant = fitter.find_grant(request, node)
            if grant is None:
                break
            undos.append(snapshot.commit(grant))
            left -= request.gpus.count
    return undos


# --- gangs ----------------------------------------------------------------------------------------------


def _measure_gang(options: Options, nodes: int, pods: int) -> dict[str, float]:
    shape = fleets.shape_of(models.load(gangs.FLEET).pools[0].machine)
    where = gangs.half_taken(shape, nodes, options.seed)
    gang = GangRequest.uniform(gangs.WHOLE, pods, preferred="leaf")
    gangs.plan_gang(where, gang)
    return {
        "plan": statistics.median(_cpu_s(lambda: gangs.plan_gang(where, gang)) for _ in range(options.repeat)),
        "loop": _cpu_s(lambda: gangs.naive_plan(where, gangs.WHOLE, pods)),
    }


def _cpu_s(work: Callable[[], object]) -> float:
    begun = time.process_time()
    work()
    return time.process_time() - begun
