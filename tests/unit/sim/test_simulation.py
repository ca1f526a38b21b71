"""Small runs whose every moment can be worked out by hand."""

from __future__ import annotations

import dataclasses

import pytest
from tests.support.builders import small_fleet

from kgwe import errors
from kgwe.placement.fleet.node import Gpus
from kgwe.placement.queue.reservation import BackfillRule, ReservationSettings
from kgwe.sim.events import Event, Kind
from kgwe.sim.fleet.faults import Fault, Faults
from kgwe.sim.fleet.fleet import World
from kgwe.sim.loop import Options, Simulation
from kgwe.sim.policies import registry
from kgwe.sim.recording import Fate
from kgwe.sim.report import compare, metrics
from kgwe.sim.traces.workload import Workload

job = small_fleet.job


def simulate(nodes, jobs, policy="first-fit", **options):
    simulation = Simulation(
        World.from_nodes(nodes), Workload.from_jobs("w", jobs), registry.find_policy(policy), Options(**options)
    )
    return simulation.run()


def starts(run: Simulation) -> dict[str, float | None]:
    return {record.job.name: record.first_start_s for record in run.records}


def ends(run: Simulation) -> dict[str, float | None]:
    return {record.job.name: record.end_s for record in run.records}


def test_a_golden_day():
    #  n0 and n1, 4 cards each.    a: 4 cards for 100 s, b: 2 for 50 s, c: 2 x 4 for 30 s, d: a share for 10 s
    #    t=0   a on n0, b on n1; c waits for both nodes     t=10  d on n1
    #    t=100 a and b are gone: c runs                     t=130 c is done
    jobs = [
        job("a", 0, 100, gpus=4),
        job("b", 0, 50, gpus=2),
        job("c", 5, 30, gpus=4, pods=2),
        job("d", 10, 10, gpus=Gpus(milli=500)),
    ]

    run = simulate(small_fleet.nodes(2), jobs)
    result = metrics.summarise("first-fit", run)

    assert starts(run) == {"a": 0, "b": 0, "c": 100, "d": 10}
    assert ends(run) == {"a": 100, "b": 50, "c": 130, "d": 20}
    used_card_s = 4 * 100 + 2 * 50 + 8 * 30 + 0.5 * 10
    assert result.allocation_whole_run == pytest.approx(used_card_s / (8 * 130))
    # Between the first and the last arrival only a and b ran.
    assert result.allocation == pytest.approx(6 / 8)
    assert result.wait_s.max == 95
    assert result.completion_s.mean == pytest.approx((100 + 50 + 125 + 10) / 4)
    assert result.gangs.jobs == 1
    assert result.gangs.node_spread == result.gangs.leaf_spread == 1
    # Two nodes at 8 dollars an hour, for the 10 s in which jobs arrive.
    assert result.cost.paid_usd == pytest.approx(2 * 8 * 10 / 3600)
    assert result.cost.used_usd == pytest.approx(result.cost.paid_usd * 6 / 8)
    assert result.cost.usd_per_useful_gpu_hour == pytest.approx(16 / 6)


def test_a_job_that_arrives_when_another_ends_finds_its_place():
    run = simulate(small_fleet.nodes(1), [job("a", 0, 100, gpus=4), job("b", 100, 10, gpus=4)])

    assert starts(run)["b"] == 100


def test_higher_priority_goes_first_then_age():
    jobs = [
        job("first", 0, 100, gpus=4),
        job("old", 1, 10, gpus=4),
        job("young", 2, 10, gpus=4),
        job("urgent", 3, 10, gpus=4, priority=5),
    ]

    run = simulate(small_fleet.nodes(1), jobs)

    assert starts(run) == {"first": 0, "urgent": 100, "old": 110, "young": 120}


class TestBackfill:
    #   n0: "long" holds 3 of 4 cards until 100. "large" needs all 4. "short" would be done by 100, "late" would not.
    JOBS = [
        job("long", 0, 100, gpus=3),
        job("large", 1, 50, gpus=4),
        job("late", 2, 500, gpus=1),
        job("short", 3, 20, gpus=1),
    ]

    def test_none_holds_up_everybody_behind(self):
        assert starts(
            simulate(small_fleet.nodes(1), self.JOBS, reservations=ReservationSettings(BackfillRule.BLOCK))
        ) == {
            "long": 0,
            "large": 100,
            "late": 150,
            "short": 150,
        }

    def test_greedy_lets_anybody_go_ahead_and_starves_the_large(self):
        assert starts(
            simulate(small_fleet.nodes(1), self.JOBS, reservations=ReservationSettings(BackfillRule.GREEDY))
        ) == {
            "long": 0,
            "large": 502,
            "late": 2,
            "short": 100,
        }

    def test_easy_lets_go_ahead_who_does_not_delay_the_first(self):
        assert starts(
            simulate(small_fleet.nodes(1), self.JOBS, reservations=ReservationSettings(BackfillRule.BACKFILL))
        ) == {
            "long": 0,
            "large": 100,
            "late": 150,
            "short": 3,
        }

    def test_easy_lets_long_work_use_nodes_that_were_not_promised(self):
        jobs = [
            job("long", 0, 100, gpus=4),
            job("longer", 0, 300, gpus=3),
            job("large", 1, 50, gpus=4),
            job("late", 2, 500, gpus=1),
        ]

        assert starts(simulate(small_fleet.nodes(2), jobs))["late"] == 2


class _Fixed:
    """Faults at given times instead of drawn ones."""

    def __init__(self, *faults: Fault) -> None:
        self._faults = faults

    def draw_first(self) -> list[Fault]:
        return list(self._faults)

    def draw_next(self, event: Event) -> Fault:
        never = 1e12
        return Fault(Event(never, event.kind, event.subject), Event(never, Kind.NODE_UP, event.subject))


def break_at(run: Simulation, at_s: float, back_s: float, kind: Kind, card: int = 0) -> Simulation:
    back = Kind.CARD_UP if kind is Kind.CARD_DOWN else Kind.NODE_UP
    run._faults = _Fixed(Fault(Event(at_s, kind, 0, card), Event(back_s, back, 0, card)))  # type: ignore[assignment] # stands in
    return run


def prepared(nodes, jobs, **options):
    return Simulation(
        World.from_nodes(nodes), Workload.from_jobs("w", jobs), registry.find_policy("first-fit"), Options(**options)
    )


class TestFaults:
    def test_a_job_goes_on_from_its_last_saved_state_when_its_node_is_back(self):
        run = prepared(small_fleet.nodes(1), [job("a", 0, 100, gpus=2, checkpoint_s=30)])

        break_at(run, 70, 200, Kind.NODE_DOWN).run()

        (record,) = run.records
        # 60 s were saved, 10 s lost on 2 cards; the other 40 s run from 200.
        assert (record.end_s, record.interruptions, record.starts) == (240, 1, 2)
        assert record.lost_gpu_s == pytest.approx(20)

    def test_a_job_that_is_only_up_loses_nothing(self):
        run = prepared(small_fleet.nodes(2), [job("a", 0, 100, gpus=4, checkpoint_s=0)])

        break_at(run, 70, 500, Kind.NODE_DOWN).run()

        assert run.records[0].end_s == 100
        assert run.records[0].lost_gpu_s == 0

    def test_a_card_takes_only_its_own_work_with_it(self):
        jobs = [job("a", 0, 100, gpus=1), job("b", 0, 100, gpus=1)]
        run = prepared(small_fleet.nodes(1), jobs)
        grant = run.world.fitter.find_grant(jobs[0].request, 0)
        assert grant is not None
        first = grant.gpus.bit_length() - 1

        break_at(run, 50, 1000, Kind.CARD_DOWN, card=first).run()

        assert [record.interruptions for record in run.records] == [1, 0]
        # Three cards are left: a starts again at once, from the beginning.
        assert ends(run) == {"a": 150, "b": 100}

    def test_what_is_out_of_order_is_counted_and_paid_for_but_not_when_taken_back(self):
        for kind, paid_s in ((Kind.NODE_DOWN, 1000), (Kind.TAKE_BACK, 600)):
            run = prepared([small_fleet.node(0, spot=True)], [job("a", 0, 600, checkpoint_s=0)])

            break_at(run, 100, 500, kind).run()

            assert run.records[0].end_s == 1000
            assert run.recorder.whole_run.out == 400 * 4000
            assert run.recorder.whole_run.paid_micro == pytest.approx(8_000_000 * paid_s / 3600)

    def test_a_fault_drawn_for_a_node_that_is_down_changes_nothing(self):
        faults = Faults(per_node_month=5000, card_part=0.0, repair_s=1e9)

        run = simulate(small_fleet.nodes(1), [job("a", 0, 10_000)], faults=faults, until_s=50_000.0)

        assert run.records[0].fate is Fate.WAITING
        assert run.world.out == run.world.total


class TestSpread:
    def test_a_job_split_over_two_nodes_runs_slower_by_what_was_measured(self):
        jobs = [job("wide", 0, 100, gpus=1, pods=2, model="bert")]

        together = simulate(small_fleet.nodes(2), jobs, "first-fit")
        apart = simulate(small_fleet.nodes(2), jobs, "spread")

        assert ends(together)["wide"] == 100
        assert ends(apart)["wide"] == pytest.approx(238)
        assert apart.records[0].slowdown == pytest.approx(2.38)

    def test_a_policy_that_keeps_gangs_in_a_leaf_is_done_sooner(self):
        #   leaf-0: n0 n1   leaf-1: n2 n3     n0 is taken, so first-fit splits the gang over n1 and n2
        jobs = [job("alone", 0, 1000, gpus=4), job("gang", 1, 100, gpus=4, pods=2, model="bert")]

        def ended(policy, *oversubscription):
            nodes = small_fleet.nodes(4)
            world = World.from_nodes(nodes, oversubscription)
            return ends(Simulation(world, Workload.from_jobs("w", jobs), registry.find_policy(policy)).run())["gang"]

        assert {ended(policy, 4.0) for policy in ("kgwe", "consolidate")} == {101}
        # 1.38 of 2.38 seconds were measured to be the network's, and that takes four times as long.
        assert ended("first-fit", 4.0) == pytest.approx(1 + 100 * (1 + 1.38 / 2.38 * 3))
        assert ended("first-fit") == 101, "nobody said that leaving a leaf costs anything"

    def test_a_gang_that_no_leaf_holds_is_charged_for_the_levels_it_need_not_leave(self):
        nodes = [
            dataclasses.replace(node, labels={**node.labels, "fabric.topograph.run/tier-1": f"spine-{number // 4}"})
            for number, node in enumerate(small_fleet.nodes(8))
        ]
        jobs = [job("alone", 0, 1000, gpus=4), job("gang", 1, 100, gpus=4, pods=4, model="bert")]

        def slowdown(policy):
            run = Simulation(
                World.from_nodes(nodes, (2.0, 3.0)), Workload.from_jobs("w", jobs), registry.find_policy(policy)
            ).run()
            return run.records[1].slowdown

        assert slowdown("kgwe") == 1
        assert slowdown("first-fit") == pytest.approx(1 + 0.77 / 1.77 * 2)

    @pytest.mark.parametrize("ratios", [(0.5,), (2.0,) * 9])
    def test_an_oversubscription_that_makes_no_sense_is_refused(self, ratios):
        with pytest.raises(errors.Permanent, match="nearest first"):
            World.from_nodes(small_fleet.nodes(2), ratios)

    def test_gangs_are_measured_against_the_least_spread_the_empty_fleet_allows(self):
        jobs = [job("gang", 0, 100, gpus=4, pods=4)]

        result = compare.run_policy(small_fleet.nodes(6), Workload.from_jobs("w", jobs), "consolidate")

        # Two nodes to a leaf: four nodes need two leaves.
        assert (result.gangs.node_spread, result.gangs.leaf_spread) == (1, 1)
        assert result.gangs.one_leaf_share is None


def test_what_does_not_fit_the_empty_fleet_is_told_apart_and_holds_up_nobody():
    jobs = [job("never", 0, 10, gpus=5), job("gang", 0, 10, gpus=4, pods=3), job("fine", 1, 10)]

    run = simulate(small_fleet.nodes(2), jobs, reservations=ReservationSettings(BackfillRule.BLOCK))

    assert [record.fate for record in run.records] == [Fate.IMPOSSIBLE, Fate.IMPOSSIBLE, Fate.FINISHED]


def test_a_run_can_be_ended_early():
    run = simulate(small_fleet.nodes(1), [job("a", 0, 100), job("b", 80, 100)], until_s=90.0)

    assert run.recorder.now_s == 90
    assert [record.fate for record in run.records] == [Fate.RUNNING, Fate.RUNNING]


@pytest.mark.parametrize("name", sorted(registry.REGISTRY))
def test_every_policy_runs_shares_slices_cards_and_gangs(name: str):
    nodes = [small_fleet.node(0, cut=1), small_fleet.node(1), small_fleet.node(2)]
    jobs = [
        job("share", 0, 10, gpus=Gpus(milli=300)),
        job("slice", 0, 10, gpus=Gpus(profile="2g.20gb", slices=1)),
        job("card", 0, 10),
        job("gang", 0, 10, gpus=2, pods=3),
    ]

    result = compare.run_policy(nodes, Workload.from_jobs("w", jobs), name)

    assert result.jobs.finished == 4
    assert result.wait_s.max == 0


def test_an_unknown_policy_is_told_before_anything_runs():
    with pytest.raises(errors.Permanent, match="unknown policy 'nonsense'; known policies: first-fit"):
        compare.compare_policies(small_fleet.nodes(1), Workload.from_jobs("w", [job("a")]), ["first-fit", "nonsense"])


@pytest.mark.parametrize("changes", [{"pods": 0}, {"duration_s": 0.0}, {"arrival_s": -1.0}])
def test_jobs_that_make_no_sense_are_refused(changes):
    with pytest.raises(errors.Permanent, match="job a: needs"):
        job("a", **changes)


def test_two_jobs_of_one_name_are_refused():
    with pytest.raises(errors.Permanent, match="two jobs have the name 'a'"):
        Workload.from_jobs("w", [job("a"), job("a", 5)])


def test_fragmentation_is_sampled_while_jobs_arrive_however_long_they_run():
    jobs = [small_fleet.job(f"j{k}", k * 10.0, 60.0, gpus=1) for k in range(20)]
    jobs.append(small_fleet.job("months", 5, 1e7, gpus=3))
    result = compare.run_policy(small_fleet.nodes(2), Workload.from_jobs("w", jobs), "first-fit")
    early = [hour for hour in result.curves.hours if hour <= result.busy_hours]
    assert len(early) >= 200
    assert result.fragmentation is not None
    assert result.hours > 1000 * result.busy_hours


def test_fragmentation_is_weighted_by_time():
    jobs = [small_fleet.job("a", 0, 50, gpus=3), small_fleet.job("b", 100, 10, gpus=4)]
    result = compare.run_policy(small_fleet.nodes(1), Workload.from_jobs("w", jobs), "first-fit")
    # For half of the time one GPU of four is idle, and of no use to the half of the mix that asks for more than it.
    assert result.fragmentation == pytest.approx(0.5 * 0.25, abs=0.01)


def test_a_figure_made_of_few_samples_is_left_out():
    jobs = [small_fleet.job("a", 0, 50, gpus=3), small_fleet.job("b", 1000, 10, gpus=4)]
    result = compare.run_policy(small_fleet.nodes(1), Workload.from_jobs("w", jobs), "first-fit", Options(until_s=40))
    assert result.fragmentation is None
