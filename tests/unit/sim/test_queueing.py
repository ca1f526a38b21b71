"""The scheduler's queue in simulated time: days small enough to work out by hand, and one that is not."""

from __future__ import annotations

import pytest
from tests.support.builders import small_fleet

from kgwe.placement.queue.reservation import BackfillRule, ReservationSettings
from kgwe.placement.queue.workloads import RunTime
from kgwe.sim import job_queue, queueing
from kgwe.sim.fleet.faults import Faults
from kgwe.sim.fleet.fleet import World
from kgwe.sim.loop import Options, Simulation
from kgwe.sim.policies import registry
from kgwe.sim.recording import Fate
from kgwe.sim.traces.workload import Workload

job = small_fleet.job

#   one node of 4 cards: "long" holds 3 until 100, "large" needs all 4; "short" is gone by 100, "late" is not
DAY = [
    job("long", 0, 100, gpus=3),
    job("large", 1, 50, gpus=4),
    job("late", 2, 500, gpus=1),
    job("short", 3, 20, gpus=1),
]


def simulate(jobs, rule, predict=job_queue.exact_run_time, nodes=1, **options) -> Simulation:
    world = World.from_nodes(small_fleet.nodes(nodes))
    chosen = Options(ReservationSettings(rule, refresh_s=1.0), predict, **options)
    return Simulation(world, Workload.from_jobs("w", jobs), registry.find_policy("kgwe"), chosen).run()


def starts(run: Simulation) -> dict[str, float | None]:
    return {record.job.name: record.first_start_s for record in run.records}


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (BackfillRule.BLOCK, {"long": 0, "large": 100, "late": 150, "short": 150}),
        (BackfillRule.GREEDY, {"long": 0, "large": 502, "late": 2, "short": 100}),
        (BackfillRule.HOLD, {"long": 0, "large": 100, "late": 150, "short": 150}),
        (BackfillRule.BACKFILL, {"long": 0, "large": 100, "late": 150, "short": 3}),
    ],
)
def test_who_goes_ahead_of_a_large_job(rule, expected):
    assert starts(simulate(DAY, rule)) == expected


def test_without_run_times_nobody_goes_ahead_once_a_job_has_waited_long():
    run = simulate(DAY, BackfillRule.BACKFILL, job_queue.unknown_run_time)

    # Not for the first ten minutes: then nothing is kept for "large".
    assert starts(run)["late"] == 2
    assert all(record.fate is Fate.FINISHED for record in run.records)


def test_interrupted_jobs_wait_again_and_finish():
    jobs = [job(f"j{number}", number, 600.0, gpus=4, pods=2) for number in range(12)]

    run = simulate(jobs, BackfillRule.BACKFILL, nodes=4, faults=Faults(per_node_month=3000, repair_s=300), seed=3)

    assert sum(record.interruptions for record in run.records) > 0
    assert all(record.fate is Fate.FINISHED for record in run.records)


def test_run_times_by_kind_are_those_of_equal_pods():
    jobs = [job(f"j{number}", number, 100.0 * (number + 1), gpus=1) for number in range(21)]
    predict = queueing.by_kind(Workload.from_jobs("w", [*jobs, job("other", 0, 7.0, gpus=2)]))

    assert predict(jobs[0], 1.0) == RunTime(1100.0, 2000.0)
    assert predict(job("other", 0, 7.0, gpus=2), 1.0) == RunTime(7.0, 7.0)


class TestHeroes:
    NODES = small_fleet.nodes(8)
    # Jobs of 8 cards do not fit these nodes, and much of the load is theirs.
    WORKLOAD = queueing.with_heroes(NODES, jobs=96, heroes=4, load=2.5, part=0.5, seed=2)

    def test_heroes_wait_less_than_when_all_go_ahead_and_others_less_than_when_nobody_does(self):
        rows = {
            row.rule: row
            for row in queueing.compare(self.NODES, self.WORKLOAD, job_queue.exact_run_time, hero_part=0.45)
        }

        assert {row.unfinished for row in rows.values()} == {0}
        assert {row.heroes.jobs for row in rows.values()} == {4}
        assert rows["backfill"].heroes.mean < rows["greedy"].heroes.mean
        assert rows["backfill"].others.mean < rows["hold"].others.mean < rows["block"].others.mean

    def test_what_jobs_are_told_is_counted(self):
        found = queueing.calibrate(self.NODES, self.WORKLOAD, job_queue.exact_run_time)

        assert found.jobs > found.unknown
        assert found.within_p50 is not None
        assert found.within_p90 is not None
        assert 0 < found.within_p50 <= found.within_p90 <= 1

    def test_without_run_times_nothing_is_told(self):
        found = queueing.calibrate(self.NODES, self.WORKLOAD, job_queue.unknown_run_time)

        assert found.jobs == found.unknown > 0
        assert found.within_p90 is None
