"""The savings report on a simulated week whose truth is known.

    baseline_error      the replayed baseline beside the simulated one: a share
    saved_error         saved dollars of the report beside those of the simulation: a share
    saved_dollars       as reported
    replay_s            seconds to read the ledger and to replay all scenarios

The ledger gets only the week that was run: pods share GPUs, are packed, and use spot nodes. A second simulation runs
the same pods on whole GPUs, spread, and on demand. The replays use none of its code. Nodes take 150 to 270 seconds to
boot, which changes what they hold later: the truth is the mean of several such weeks.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kgwe.bench import report
from kgwe.bench.cost import week
from kgwe.costing.metering.division import Claim, GpuClaim, GpuCut, NodeCut
from kgwe.costing.metering.mig_weights import SlicePlace
from kgwe.costing.metering.timeline import ClaimSpan, NodeSpan, sweep_node
from kgwe.costing.money import MICROS
from kgwe.costing.prices.book import Capacity
from kgwe.costing.segments import Account, Holder, Part
from kgwe.costing.split import Rates
from kgwe.model.gpu.mig import GEOMETRIES
from kgwe.scaling.replay.savings import measure_savings
from kgwe.store.ledger.ledger import Ledger, NodeFacts
from kgwe.store.ledger.recordings import load_recording

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kgwe.bench.cost.week import Job, Life, Seat
    from kgwe.costing.segments import Segment
    from kgwe.scaling.replay.savings import Savings

_ON_DEMAND: Final = 32_770_000
_SPOT: Final = 11_570_000
_GEOMETRY: Final = GEOMETRIES["A100-80GB"]
_SHARES: Final = 4


@dataclass(frozen=True, slots=True)
class Options:
    pods: int = 8000
    seed: int = 1
    weeks: int = 20
    """Baseline weeks whose mean is the truth."""
    replays: int = 30


@dataclass(frozen=True, slots=True)
class Truth:
    """The simulated costs, in micro-dollars."""

    baseline: int
    least: int
    most: int
    recorded: int


def run(options: Options) -> report.Report:
    """Simulate the week, report its savings from the ledger, and compare."""
    machine = report.examine_machine()
    with tempfile.TemporaryDirectory(prefix="kgwe-bench-savings-") as folder:
        path = str(Path(folder) / "cost.db")
        truth = record_week(week.make_jobs(options.pods, options.seed), path, options.weeks)
        began = time.perf_counter()
        found = load_savings(path, options.replays)
        seconds = time.perf_counter() - began
    saved = truth.baseline - truth.recorded
    metrics: dict[str, Any] = {
        "baseline_error": abs(found.baseline - truth.baseline) / truth.baseline,
        "saved_error": abs(found.saved - saved) / saved,
        "recorded_error": abs(found.recorded - truth.recorded) / truth.recorded,
        "baseline_dollars": found.baseline / MICROS,
        "true_baseline_dollars": truth.baseline / MICROS,
        "true_baseline_range": (truth.most - truth.least) / truth.baseline,
        "recorded_dollars": found.recorded / MICROS,
        "saved_dollars": found.saved / MICROS,
        "true_saved_dollars": saved / MICROS,
        "steps_dollars": {name: micros / MICROS for name, micros in found.list_steps()},
        "allocations": found.allocations,
        "replay_s": seconds,
    }
    return report.Report("savings", asdict(options), metrics, machine)


def record_week(jobs: Sequence[Job], path: str, weeks: int = 1) -> Truth:
    """Run a week as KGWE would, and store it in a ledger; return its cost and that of the baseline."""
    seats, lives = week.run_week(jobs, week.World(shares=True, packs=True, spot=True))
    baselines = []
    for number in range(weeks):
        _, nodes = week.run_week(jobs, week.World(shares=False, packs=False, spot=False, seed=number))
        baselines.append(week.sum_cost(nodes, _ON_DEMAND, _SPOT))
    by_node = dict(week.list_by_node(seats))
    with Ledger.open(path) as ledger:
        facts = [NodeFacts(life.node, gpu_model="A100-SXM4-80GB", gpus=week.GPUS) for life in lives]
        segments = [segment for life in lives for segment in _meter(life, by_node.get(life.node, []))]
        ledger.put(segments, {"counted_until_s": str(week.START_S + week.WEEK_S), "split_method": "gpu-only"}, facts)
    mean = sum(baselines) // weeks
    return Truth(mean, min(baselines), max(baselines), week.sum_cost(lives, _ON_DEMAND, _SPOT))


def load_savings(path: str, replays: int = 30) -> Savings:
    """Return the savings of the week in a ledger."""
    with Ledger.open(path, read_only=True) as ledger:
        recording = load_recording(ledger.database, week.START_S, week.START_S + week.WEEK_S)
    return measure_savings(recording, replays=replays)


def _meter(life: Life, seats: Sequence[Seat]) -> Iterator[Segment]:
    """Yield the segments of a node. Its GPUs are cut as the pods on them need it."""
    rate = _SPOT if life.is_spot else _ON_DEMAND
    capacity = Capacity.SPOT if life.is_spot else Capacity.ON_DEMAND
    holders = {
        each.job.name: Holder(each.job.name, each.job.name, f"Job/{each.job.name}", Account("ml")) for each in seats
    }
    edges = sorted({life.start_s, life.end_s, *(each.start_s for each in seats), *(each.end_s for each in seats)})
    edges = [each for each in edges if life.start_s <= each <= life.end_s]
    spans, claims = [], []
    starts: dict[tuple[str, int], int] = {}
    for first, last in itertools.pairwise(edges):
        cards = tuple(_cut_gpu(life.node, number, seats, first, starts) for number in range(week.GPUS))
        cut = NodeCut(life.node, Rates(rate, 0, 0), cards, 0, 0, capacity, "p4de.24xlarge", f"{capacity} price")
        spans.append(NodeSpan(first, last, cut))
    for each in seats:
        held = tuple(_hold(life.node, each, number, starts) for number in each.gpus)
        claims.append(ClaimSpan(each.start_s, each.end_s, Claim(each.job.name, gpus=held)))
    yield from sweep_node(spans, claims, (life.start_s, life.end_s), holders).segments


def _cut_gpu(node: str, number: int, seats: Sequence[Seat], at_s: int, starts: dict[tuple[str, int], int]) -> GpuCut:
    uuid = f"{node}/{number}"
    here = [each for each in seats if number in each.gpus and each.start_s <= at_s < each.end_s]
    parts = {each.job.part for each in here}
    if "share" in parts:
        return GpuCut(uuid, "A100-SXM4-80GB", _GEOMETRY, (), _SHARES)
    layout: list[SlicePlace] = []
    for each in here:
        if each.job.part:
            taken = {place.start for place in layout} | {
                starts[other.job.name, number] for other in here if (other.job.name, number) in starts
            }
            step = {"1g.10gb": 1, "3g.40gb": 4}[each.job.part]
            start = starts.get((each.job.name, number))
            if start is None:
                start = next(place for place in range(0, 8, step) if place not in taken)
                starts[each.job.name, number] = start
            layout.append(SlicePlace(each.job.part, start))
    return GpuCut(uuid, "A100-SXM4-80GB", _GEOMETRY, tuple(sorted(layout, key=lambda each: each.start)))


def _hold(node: str, seat: Seat, number: int, starts: dict[tuple[str, int], int]) -> GpuClaim:
    uuid = f"{node}/{number}"
    if not seat.job.part:
        return GpuClaim(uuid)
    if seat.job.part == "share":
        return GpuClaim(uuid, Part.SHARE)
    return GpuClaim(uuid, Part.SLICE, starts.get((seat.job.name, number), 0))
