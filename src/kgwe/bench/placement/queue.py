"""The cost of the queue, and the effect of its rules.

    cost     a full fleet of DGX H100, a pod on each GPU: the order of 10,000 waiting workloads, a planning cycle for
    one
       pod and the decision alone, a cycle that retries 10,000 equal workloads without success, a reservation for a
       gang of an eighth of the fleet, and estimates for 200 workloads
    rules    research jobs and heroes that need half of a small fleet, simulated with each rule by the queue's own
    code. Run
       times are exact, known by distribution, or unknown. Results are hours of waiting of heroes and other jobs, and
       the fraction of the fleet in use
    told     the estimated starts at the beginning of the wait, compared with the actual starts

Times are CPU seconds of this process, medians over the repetitions.
"""

from __future__ import annotations

import dataclasses
import random
import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from kgwe.bench import report
from kgwe.local.fleet import models
from kgwe.model.simfleet import inventory
from kgwe.placement.fleet.node import Gpus, Request
from kgwe.placement.gang.request import NONE_FOLLOW, Following, GangRequest
from kgwe.placement.planning.gang_planner import GangPlanner
from kgwe.placement.pod.engine import Engine
from kgwe.placement.queue.cycle import run_cycle
from kgwe.placement.queue.earliest_start import StartForecast
from kgwe.placement.queue.eta import Estimator
from kgwe.placement.queue.fleet_planner import FleetPlanner
from kgwe.placement.queue.queue import Queue
from kgwe.placement.queue.reservation import BackfillRule
from kgwe.placement.queue.reservations import Reservations
from kgwe.placement.queue.unschedulable import ConfigChanged
from kgwe.placement.queue.workloads import QueuedWorkload, RunningWorkload, RunningWorkloads, RunTime
from kgwe.sim import job_queue, queueing
from kgwe.sim.fleet import fleets
from kgwe.sim.fleet.fleet import World

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kgwe.local.host.progress import Progress, Step
    from kgwe.placement.fleet.node import Node
    from kgwe.placement.fleet.snapshot import Grant
    from kgwe.placement.queue.fleet_planner import QueuePlan

_FLEET: Final = "dgx-h100"
_MANY: Final = 10_000
_ESTIMATED: Final = 200
_ONE: Final = Request(Gpus(count=1), 4_000, 2**33)
_WHOLE: Final = Request(Gpus(count=8), 64_000, 2**38)
_HOUR: Final = RunTime(3600.0, 6 * 3600.0)
_HERO_PART: Final = 0.5


@dataclass(frozen=True, slots=True)
class Options:
    nodes: int = 500
    repeat: int = 5
    seed: int = 1
    #: seeds of the simulations
    small: int = 32
    jobs: int = 1500
    heroes: int = 12
    seeds: int = 3


def run(options: Options, progress: Progress) -> report.Report:
    machine = report.examine_machine()
    with progress.step(f"Costs on {options.nodes} nodes"):
        metrics: dict[str, Any] = _measure_costs(options)
    nodes = fleets.build_nodes(inventory.expand_fleet(models.load(_FLEET), options.small))
    with progress.step(f"Simulating {options.jobs} jobs on {options.small} nodes") as step:
        metrics["rules"] = _simulate_rules(nodes, options, step)
        metrics["told"] = _measure_estimates(nodes, options, step)
    return report.Report("queue", dataclasses.asdict(options) | {"fleet": _FLEET}, metrics, machine)


# --- cost ------------------------------------------------------------------------------------------------


class _Full:
    """A fleet with a pod on each GPU, except on the last node."""

    def __init__(self, options: Options) -> None:
        self.world = World.from_nodes(fleets.build_nodes(inventory.expand_fleet(models.load(_FLEET), options.nodes)))
        self.snapshot, self.tree = self.world.snapshot, self.world.tree
        self.grants: dict[str, Sequence[Grant]] = {}
        self.roster = RunningWorkloads(lambda key: self.grants[key])
        self.engine = Engine(self.snapshot, fitter=self.world.fitter)
        gangs = GangPlanner(self.world.fitter, self.tree)
        self.planner = FleetPlanner(self, self.engine, gangs, self.book)
        chance = random.Random(options.seed)  # noqa: S311 - the same fleet for the same seed
        last = len(self.snapshot) - 1
        for node in range(last):
            for card in range(8):
                age_s = chance.random() * 7200.0
                self._occupy(f"pod-{node}-{card}", self.world.fitter.build_grant(_ONE, node), -age_s)

    def _occupy(self, key: str, grant: Grant, started_s: float) -> None:
        self.snapshot.commit(grant)
        self.grants[key] = (grant,)
        self.roster.put(RunningWorkload(key, "running", 1000, started_s, _HOUR))

    def book(self, work: QueuedWorkload, place: QueuePlan) -> None:
        self.snapshot.commit_all(place.grants)
        self.grants[work.key] = place.grants


def _measure_costs(options: Options) -> dict[str, Any]:
    full = _Full(options)
    outlook = StartForecast(full, full.roster)
    estimator = Estimator(full, full.roster)
    gang = GangRequest.uniform(_WHOLE, max(2, options.nodes // 8))
    chance = random.Random(options.seed)  # noqa: S311 - as above
    works = [_make_workloads(f"w{number:05}", chance) for number in range(_MANY)]
    queue = Queue()
    for work in works:
        queue.put(work)
    ahead = list(queue.iterate_in_order({}))[:_ESTIMATED]
    passes, bare = _time_cycles(full, options)
    attempts, in_vain = _time_futile_cycle(full, options)
    return {
        "running_pods": len(full.roster),
        "order_10k_ms": 1e3 * _time_median(options, lambda: list(queue.iterate_in_order(full.roster.queued_milli))),
        "pod_pass_us": 1e6 * passes,
        "pod_decision_us": 1e6 * bare,
        "woken_10k_ms": 1e3 * in_vain,
        "woken_10k_attempts": attempts,
        "hold_ms": 1e3 * _time_median(options, lambda: outlook.find_start(gang, 0.0, part=0.7)),
        "estimate_200_ms": 1e3 * _time_median(options, lambda: estimator.estimate(ahead, 0.0)),
    }


def _make_workloads(key: str, chance: random.Random) -> QueuedWorkload:
    pods, cards = chance.choice((1, 1, 1, 1, 2, 4, 8)), chance.choice((1, 1, 2, 4, 8))
    request = dataclasses.replace(_ONE, gpus=Gpus(count=cards))
    level = chance.choice(("", "", "leaf"))
    return QueuedWorkload(
        key,
        request if pods == 1 else GangRequest.uniform(request, pods, required=level),
        namespace=f"ns-{chance.randrange(40)}",
        priority=chance.randrange(3),
        since_s=chance.random() * 1000,
        run_time=_HOUR,
    )


def _time_median(options: Options, call: Callable[[], object]) -> float:
    call()
    times = []
    for _ in range(options.repeat):
        before = time.process_time()
        call()
        times.append(time.process_time() - before)
    return statistics.median(times)


def _time_cycles(full: _Full, options: Options) -> tuple[float, float]:
    """Return the seconds per one-pod workload of a planning cycle, and of the engine alone; bookings are undone."""
    pods = 8
    queue, holds = Queue(), Reservations(StartForecast(full, full.roster), full.roster)

    def by_pass() -> None:
        for number in range(pods):
            queue.put(QueuedWorkload(f"new-{number}", _ONE, "ns"))
            run_cycle(queue, full.planner, 0.0, full.roster, holds)
        for number in range(pods):
            full.snapshot.release(full.grants.pop(f"new-{number}")[0])

    def by_engine() -> None:
        for number in range(pods):
            place = full.planner.plan(QueuedWorkload(f"new-{number}", _ONE, "ns"), frozenset())
            full.book(QueuedWorkload(f"new-{number}", _ONE, "ns"), place)  # type: ignore[arg-type]  # there is room
        for number in range(pods):
            full.snapshot.release(full.grants.pop(f"new-{number}")[0])

    more = dataclasses.replace(options, repeat=options.repeat * 10)
    return _time_median(more, by_pass) / pods, _time_median(more, by_engine) / pods


def _time_futile_cycle(full: _Full, options: Options) -> tuple[int, float]:
    """Return the plans and seconds of a planning cycle that retries 10,000 equal workloads without success."""
    asked = 0

    class Counting(FleetPlanner):
        def plan(self, work: QueuedWorkload, avoid: frozenset[str], following: Following = NONE_FOLLOW) -> Any:
            nonlocal asked
            asked += 1
            return super().plan(work, avoid, following)

    planner = Counting(full, full.engine, GangPlanner(full.world.fitter, full.tree), full.book)
    queue = Queue()
    for number in range(_MANY):
        queue.put(QueuedWorkload(f"equal-{number}", GangRequest.uniform(_WHOLE, 2), f"ns-{number % 40}"))
    run_cycle(queue, planner, 0.0, full.roster)

    def wake() -> None:
        nonlocal asked
        asked = 0
        queue.handle_event(ConfigChanged())
        run_cycle(queue, planner, 0.0, full.roster)

    return asked, _time_median(options, wake)


# --- rules -----------------------------------------------------------------------------------------------


def _simulate_rules(nodes: Sequence[Node], options: Options, step: Step) -> dict[str, dict[str, Any]]:
    """Return knowledge/rule -> results, means over the seeds."""
    found: dict[str, list[queueing.Row]] = {}
    for seed in range(options.seed, options.seed + options.seeds):
        workload = _build_workload(nodes, options, seed)
        for known, predict in _describe_knowledge(workload).items():
            for rule in BackfillRule:
                if rule in (BackfillRule.BLOCK, BackfillRule.GREEDY) and known != "exact":
                    continue  # these rules use no run times
                step.update(f"seed {seed}, run times {known}, rule {rule}")
                rows = queueing.compare(nodes, workload, predict, hero_part=_HERO_PART * 0.9, rules=(rule,))
                found.setdefault(f"{known}/{rule}" if known != "exact" else str(rule), []).extend(rows)
    return {name: _average_rows(rows) for name, rows in found.items()}


def _build_workload(nodes: Sequence[Node], options: Options, seed: int) -> Any:
    return queueing.with_heroes(nodes, jobs=options.jobs, heroes=options.heroes, load=0.8, part=_HERO_PART, seed=seed)


def _describe_knowledge(workload: Any) -> dict[str, Any]:
    return {
        "exact": job_queue.exact_run_time,
        "by kind": queueing.by_kind(workload),
        "unknown": job_queue.unknown_run_time,
    }


def _average_rows(rows: Sequence[queueing.Row]) -> dict[str, float]:
    def mean(pick: Callable[[queueing.Row], float]) -> float:
        return statistics.fmean(pick(row) for row in rows)

    return {
        "hero_wait_h": mean(lambda row: row.heroes.mean),
        "hero_worst_h": max(row.heroes.max for row in rows),
        "other_wait_h": mean(lambda row: row.others.mean),
        "other_p90_h": mean(lambda row: row.others.p90),
        "allocation": mean(lambda row: row.allocation),
        "unfinished": sum(row.unfinished for row in rows),
    }


def _measure_estimates(nodes: Sequence[Node], options: Options, step: Step) -> dict[str, dict[str, Any]]:
    workload = _build_workload(nodes, options, options.seed)
    found = {}
    for known, predict in _describe_knowledge(workload).items():
        step.update(f"estimates, run times {known}")
        found[known] = msgspec.structs.asdict(queueing.calibrate(nodes, workload, predict))
    return found
