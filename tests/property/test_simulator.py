"""Whatever fleet, work, policy and faults: nothing is given twice, nothing is lost, nothing is left to chance."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from tests.support.builders import small_fleet
from tests.support.examples import examples

from kgwe.placement.fleet.node import Gpus
from kgwe.placement.queue.reservation import BackfillRule, ReservationSettings
from kgwe.sim.fleet.faults import Faults
from kgwe.sim.fleet.fleet import World
from kgwe.sim.loop import Options, Simulation
from kgwe.sim.policies import registry
from kgwe.sim.recording import Fate
from kgwe.sim.report import metrics
from kgwe.sim.traces.workload import Workload

if TYPE_CHECKING:
    from kgwe.placement.fleet.snapshot import Grant
    from kgwe.sim.traces.workload import Job

fleets = st.lists(
    st.builds(
        lambda cut, spot, cpu: {"cut": cut, "spot": spot, "cpu_milli": cpu},
        st.integers(0, 2),
        st.booleans(),
        st.sampled_from([4_000, 64_000]),
    ),
    min_size=1,
    max_size=5,
).map(lambda listed: [small_fleet.node(number, **changes) for number, changes in enumerate(listed)])

gpus = st.one_of(
    st.sampled_from([Gpus(count=1), Gpus(count=2), Gpus(count=4), Gpus(count=5)]),
    st.sampled_from([Gpus(milli=300), Gpus(milli=700), Gpus(milli=500, share_mib=40_000)]),
    st.sampled_from([Gpus(profile="1g.10gb", slices=1), Gpus(profile="3g.40gb", slices=2), Gpus()]),
)

# Few distinct times, so that much happens at once.
jobs = st.lists(
    st.builds(
        lambda arrival, duration, wanted, pods, priority, model, saved: {
            "arrival_s": float(arrival * 60),
            "duration_s": float(duration * 60),
            "gpus": wanted,
            "pods": pods,
            "priority": priority,
            "model": model,
            "checkpoint_s": saved,
        },
        st.integers(0, 8),
        st.integers(1, 20),
        gpus,
        st.sampled_from([1, 1, 1, 2, 3, 6]),
        st.integers(0, 2),
        st.sampled_from(["", "bert", "unheard-of"]),
        st.sampled_from([0.0, 300.0]),
    ),
    min_size=1,
    max_size=25,
).map(lambda listed: [small_fleet.job(f"j{number}", **changes) for number, changes in enumerate(listed)])

# Rates far above any real fleet's: a fault every few minutes.
faults = st.sampled_from([Faults(), Faults(per_node_month=3000, repair_s=300), Faults(0, 0.5, 300, 200, 300)])
names = st.sampled_from(sorted(registry.REGISTRY))
backfills = st.sampled_from([ReservationSettings(rule) for rule in BackfillRule])


class Auditor:
    """Counts everything after every moment."""

    def __init__(self) -> None:
        self.moments = 0

    def moment(self, simulation: Simulation, at_s: float) -> None:
        del at_s
        self.moments += 1
        world = simulation.world
        held = sum(world.milli(grant) for run in simulation.running.values() for grant in run.grants)
        assert world.allocated == held
        assert world.counted_idle() == world.idle == world.total - held - world.out
        assert min(world.idle, world.out, world.allocated) >= 0
        running = {number for number, record in enumerate(simulation.records) if record.fate is Fate.RUNNING}
        assert running == set(simulation.running)

    def on_start(self, simulation: Simulation, at_s: float, job: Job, grants: tuple[Grant, ...]) -> None:
        del simulation, at_s
        assert len(grants) == job.pods

    def on_end(self, simulation: Simulation, at_s: float, job: Job) -> None:
        """Seen with the moment."""


@given(fleets, jobs, names, backfills, faults, st.integers(0, 3))
def test_amounts_add_up_at_every_moment_and_no_job_is_lost(machines, work, policy, backfill, broken, seed):
    auditor = Auditor()
    options = Options(backfill, faults=broken, seed=seed)

    run = Simulation(
        World.from_nodes(machines), Workload.from_jobs("w", work), registry.find_policy(policy), options, (auditor,)
    ).run()

    counts = metrics.summarise(policy, run).jobs
    assert counts.finished + counts.running + counts.waiting + counts.impossible == len(work)
    if not broken.any:
        assert counts.running == counts.waiting == 0
        assert run.world.allocated == 0
        assert run.world.counted_idle() == run.world.total


@given(fleets, jobs, names, backfills, faults)
def test_no_job_ends_sooner_than_its_work_takes(machines, work, policy, backfill, broken):
    options = Options(backfill, faults=broken)

    run = Simulation(
        World.from_nodes(machines), Workload.from_jobs("w", work), registry.find_policy(policy), options
    ).run()

    for record in run.records:
        if record.completion_s is not None:
            least = record.job.duration_s * (1 if record.interruptions else record.slowdown)
            assert record.completion_s >= least or math.isclose(record.completion_s, least)
        if record.wait_s is not None:
            assert record.wait_s >= 0


@examples(30)
@given(fleets, jobs, names, backfills, faults, st.integers(0, 3), st.randoms(use_true_random=False))
def test_a_run_follows_from_its_inputs_whatever_order_they_come_in(
    machines, work, policy, backfill, broken, seed, shuffler
):
    options = Options(backfill, faults=broken, seed=seed)
    shuffled = list(work)
    shuffler.shuffle(shuffled)

    first, second = (
        Simulation(
            World.from_nodes(machines), Workload.from_jobs("w", each), registry.find_policy(policy), options
        ).run()
        for each in (work, shuffled)
    )

    assert first.records == second.records
    one, other = (msgspec.json.encode(metrics.summarise(policy, run)) for run in (first, second))
    assert one == other


@given(fleets, jobs, faults)
def test_every_policy_of_a_comparison_meets_the_same_faults(machines, work, broken):
    seen = []
    for policy in ("first-fit", "spread"):
        run = Simulation(
            World.from_nodes(machines),
            Workload.from_jobs("w", work),
            registry.find_policy(policy),
            Options(faults=broken),
        )
        seen.append([fault.event for fault in run._faults.draw_first()])

    assert seen[0] == seen[1]
