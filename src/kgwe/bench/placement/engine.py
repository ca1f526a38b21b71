"""The speed of decisions for single pods, in a half-full fleet of mixed nodes with eight GPUs each.

In one step a pod of the mix arrives, the engine decides, and the grant is booked. Then a random pod leaves, so the
fleet stays half full and nodes keep changing. The time covers the decision and the booking, not the departure. On the
same states a plain loop over the same rules (`kgwe.bench.placement.naive`) decides for some of the pods and must
choose the same node.

A new request has no cached ranks: its first decision scores each node and is reported separately.
"""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kgwe import errors
from kgwe.bench import report
from kgwe.bench.placement import naive
from kgwe.local.fleet import models
from kgwe.model.simfleet import inventory
from kgwe.placement.fleet.snapshot import Snapshot
from kgwe.placement.pod.engine import Decision, Engine
from kgwe.sim.fleet import fleets

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kgwe.local.host.progress import Progress, Step
    from kgwe.placement.fleet.node import Request

#: the goals are stated for eight GPUs; other nodes of a fleet may have any number
CARDS = 8
# The result is the median round, so a temporary load on the CPU spoils one round only.
_ROUNDS = 10
# The loop's time grows with the nodes, so it decides for fewer pods at larger sizes.
_LEAST_COMPARED = 8


@dataclass(frozen=True, slots=True)
class Options:
    nodes: tuple[int, ...] = (1_000, 10_000)
    decisions: int = 5_000
    naive: int = 40
    fleet: str = "mixed"
    seed: int = 1


def run(options: Options, progress: Progress) -> report.Report:
    """Measure each fleet size; the headline numbers are those of the first."""
    machine = report.examine_machine()
    sizes: dict[str, dict[str, Any]] = {}
    for nodes in options.nodes:
        with progress.step(f"{options.decisions} decisions over {nodes} nodes") as step:
            sizes[str(nodes)] = _measure(options, nodes, step)
    first, last = options.nodes[0], options.nodes[-1]
    mine = sizes[str(first)]
    metrics: dict[str, Any] = {key: value for key, value in mine.items() if key != "gpus"}
    if last != first:
        # CPU time: other load on the machine would look like growth.
        metrics["growth"] = round(mine["cpu_decisions_per_s"] / sizes[str(last)]["cpu_decisions_per_s"], 3)
        metrics["growth_nodes"] = round(last / first, 3)
    metrics["by_nodes"] = sizes
    return report.Report("engine", dataclasses.asdict(options), metrics, machine)


def snapshot_of(fleet: str, nodes: int) -> Snapshot:
    """Return a snapshot of nodes of a fleet model, with eight-GPU machines only."""
    model = models.load(fleet)
    pools = tuple(pool for pool in model.pools if len(pool.machine.wiring.slots) == CARDS)
    if not pools:
        raise errors.Permanent(f"fleet {fleet!r} has no machine with {CARDS} GPUs; choose another fleet, such as mixed")
    return Snapshot.from_nodes(
        fleets.build_nodes(inventory.expand_fleet(dataclasses.replace(model, pools=pools), nodes))
    )


def _measure(options: Options, nodes: int, step: Step) -> dict[str, Any]:
    step.update("filling half of the fleet")
    snapshot = snapshot_of(options.fleet, nodes)
    rng = np.random.default_rng(options.seed)
    running = fleets.half_full(snapshot, options.seed)
    step.update("deciding")
    started = time.perf_counter()
    engine = Engine(snapshot)
    for _, request in fleets.MIX:
        engine.decide(request)
    prepared = time.perf_counter() - started
    run_churn(engine, running, fleets.draw_requests(options.decisions // 10, rng), rng)
    times, cpu_s, refused = run_churn(engine, running, fleets.draw_requests(options.decisions, rng), rng)
    spent = np.array(times) / 1e3
    mean_us = float(np.median([part.mean() for part in np.array_split(spent, min(_ROUNDS, len(spent)))]))
    rss_mb = _rss_mb()
    step.update("repeating decisions with a plain loop")
    compared = max(options.naive * options.nodes[0] // nodes, min(options.naive, _LEAST_COMPARED))
    return {
        "decisions_per_s": round(1e6 / mean_us, 1),
        "cpu_decisions_per_s": round(options.decisions / cpu_s, 1),
        "mean_us": round(mean_us, 2),
        "p50_ms": round(float(np.percentile(spent, 50)) / 1e3, 4),
        "p99_ms": round(float(np.percentile(spent, 99)) / 1e3, 4),
        "refused": refused,
        **_compare_with_loop(engine, running, compared, rng),
        "new_request_ms": _time_new_request_ms(snapshot, options),
        "prepare_s": round(prepared, 4),
        "gpus": int(sum(node.shape.gpu_count for node in snapshot.nodes)),
        "rss_mb": rss_mb,
    }


def run_churn(
    engine: Engine, running: list[Callable[[], None]], requests: Sequence[Request], rng: np.random.Generator
) -> tuple[list[int], float, int]:
    """Return the nanoseconds of each arrival, the CPU seconds of all steps, and the number of refusals."""
    leaving = rng.random(len(requests)).tolist()
    times: list[int] = []
    refused = 0
    cpu = time.process_time()
    for request, draw in zip(requests, leaving, strict=True):
        begun = time.perf_counter_ns()
        answer = engine.decide(request)
        undo = engine.snapshot.commit(answer.grant) if isinstance(answer, Decision) else None
        times.append(time.perf_counter_ns() - begun)
        if undo is None:
            refused += 1
            continue
        at = int(draw * len(running))
        running[at], undo = undo, running[at]
        undo()
    return times, time.process_time() - cpu, refused


def _compare_with_loop(
    engine: Engine, running: list[Callable[[], None]], count: int, rng: np.random.Generator
) -> dict[str, Any]:
    """Return the loop's rate, and whether both chose the same node each time."""
    loop = naive.Loop(engine.snapshot)
    for _, request in fleets.MIX:
        loop.prepare(request)
    agreed = spent = 0
    for request, draw in zip(fleets.draw_requests(count, rng), rng.random(count).tolist(), strict=True):
        version = engine.snapshot.version
        begun = time.perf_counter_ns()
        node = loop.decide(request)
        spent += time.perf_counter_ns() - begun
        answer = engine.decide(request)
        if isinstance(answer, Decision):
            agreed += node == answer.node
            at = int(draw * len(running))
            undo, running[at] = running[at], engine.snapshot.commit(answer.grant)
            undo()
        else:
            agreed += node is None
        for changed in engine.snapshot.changed_since(version).tolist():
            loop.refresh(changed)
    return {
        "naive_decisions_per_s": round(count * 1e9 / max(spent, 1), 1),
        "naive_compared": count,
        "naive_agreed": agreed,
    }


def is_correct(metrics: dict[str, Any]) -> bool:
    """Return whether the engine and the loop chose the same nodes at each size."""
    return all(each["naive_agreed"] == each["naive_compared"] for each in metrics["by_nodes"].values())


def _time_new_request_ms(snapshot: Snapshot, options: Options) -> float:
    engine = Engine(snapshot)
    for _, request in fleets.MIX:
        engine.decide(request)
    template = fleets.MIX[0][1]
    unseen = [dataclasses.replace(template, cpu_milli=template.cpu_milli + i) for i in range(1, options.naive + 1)]
    begun = time.perf_counter()
    for request in unseen:
        engine.decide(request)
    return round((time.perf_counter() - begun) * 1e3 / max(len(unseen), 1), 4)


def _rss_mb() -> float:
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmRSS:"):
            return round(int(line.split()[1]) * 1024 / 1e6, 1)
    return 0.0
