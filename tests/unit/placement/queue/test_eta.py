"""When what waits will start, worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from tests.support.builders.queues import Bed, exactly, work

from kgwe.placement.fleet.node import Gpus, Request
from kgwe.placement.queue.eta import Eta
from kgwe.placement.queue.workloads import QueuedWorkload, RunningWorkload, RunTime, remaining_s

# Estimates are rounded up to the next time of the grid.
ROUNDED = 1.17


def after(real_s: float, now_s: float = 0.0):
    """At that time, or a little later."""
    middle = (real_s + (real_s - now_s) * ROUNDED + now_s) / 2
    return pytest.approx(middle, abs=middle - real_s + 1e-3)


def estimate(bed: Bed, *works) -> dict[str, Eta]:
    return bed.estimator.estimate(works, bed.now_s)


def told(eta: Eta) -> float:
    assert eta.p50_s is not None
    return eta.p50_s


class TestQueue:
    def test_exact_run_times_give_exact_starts(self):
        bed = Bed({"s": {"a": [8]}})
        bed.start(work("x", 8, lasts=1000.0))

        found = estimate(bed, work("first", 8, lasts=500.0), work("second", 4, lasts=100.0), work("third", 8))

        assert found["first"].p50_s == found["first"].p90_s == after(1000.0)
        assert found["second"].p50_s == after(told(found["first"]) + 500.0)
        assert found["third"].p50_s == after(told(found["second"]) + 100.0)

    def test_a_free_card_is_had_at_once(self):
        assert estimate(Bed({"s": {"a": [8]}}), work("w", 8))["w"] == Eta(0.0, 0.0)

    def test_without_nodes_no_start_is_known(self):
        bed = Bed({})
        bed.grants["x"] = ()
        bed.roster.put(RunningWorkload("x", "", 1000, 0.0, exactly(10.0)))

        assert estimate(bed, work("w", 8), work("g", 8, 2))["w"] == Eta(None, None)

    def test_a_pod_needs_its_cards_on_one_node(self):
        bed = Bed({"s": {"a": [4, 4]}})

        assert estimate(bed, work("w", 8))["w"] == Eta(None, None)
        assert estimate(bed, work("w", 4, 2))["w"] == Eta(0.0, 0.0)

    def test_a_gang_waits_for_one_domain(self):
        bed = Bed({"s": {"a": [8, 8], "b": [8, 8]}})
        bed.start(work("x", 8, lasts=1000.0), work("y", 8, 2, required="leaf", lasts=3000.0, since_s=1.0))

        found = estimate(bed, work("leaf", 8, 2, required="leaf"))
        assert found["leaf"].p50_s == after(1000.0)

    def test_who_is_behind_does_not_take_what_is_waited_for(self):
        bed = Bed({"s": {"a": [8, 8]}})
        bed.start(work("x", 8, lasts=1000.0))

        found = estimate(bed, work("hero", 8, 2, lasts=100.0), work("small", 8))

        assert found["hero"].p50_s == after(1000.0)
        assert told(found["small"]) >= told(found["hero"])

    def test_other_domains_go_on(self):
        bed = Bed({"s": {"a": [8, 8], "b": [8, 8]}})
        bed.start(work("x", 8, lasts=1000.0), work("y", 8, 2, required="leaf", lasts=200.0, since_s=1.0))

        found = estimate(bed, work("hero", 8, 2, required="leaf", lasts=9000.0), work("second", 8, 2, required="leaf"))

        assert found["hero"].p50_s == after(200.0)
        assert found["second"].p50_s == after(1000.0)

    def test_shares_wait_for_a_card(self):
        bed = Bed({"s": {"a": [8]}})
        bed.start(work("x", 8, lasts=600.0))

        assert estimate(bed, QueuedWorkload("w", Request(Gpus(milli=500))))["w"].p50_s == after(600.0)


class TestNotKnown:
    def test_who_waits_for_an_unknown_end_has_no_estimate(self):
        bed = Bed({"s": {"a": [8]}})
        bed.start(work("x", 8))

        assert estimate(bed, work("w", 1))["w"] == Eta(None, None)

    def test_nor_has_who_waits_behind_a_work_of_unknown_length(self):
        bed = Bed({"s": {"a": [8]}})
        bed.start(work("x", 8, lasts=100.0))

        found = estimate(bed, work("first", 8), work("second", 1, lasts=10.0))

        assert found["first"].p50_s == after(100.0)
        assert found["second"] == Eta(None, None)

    def test_what_is_too_large_is_in_nobodys_way(self):
        bed = Bed({"s": {"a": [8]}})
        bed.start(work("x", 8, lasts=100.0))

        found = estimate(bed, work("too large", 8, 2), work("second", 1))

        assert found["too large"] == Eta(None, None)
        assert found["second"].p50_s == after(100.0)

    def test_beyond_a_week_nothing_is_said(self):
        bed = Bed({"s": {"a": [8]}})
        bed.start(work("x", 8, lasts=30 * 86400.0))

        assert estimate(bed, work("w", 8))["w"] == Eta(None, None)

    def test_levels_nobody_knows_and_pods_without_cards_have_none(self):
        bed = Bed({"s": {"a": [8]}})

        found = estimate(bed, work("odd", 1, 2, required="galaxy"), work("no cards", 0))

        assert set(found.values()) == {Eta(None, None)}


class TestUncertain:
    def test_the_interval_is_as_wide_as_what_is_not_known(self):
        def width(lasts: RunTime) -> float:
            bed = Bed({"s": {"a": [8]}})
            bed.start(work("x", 8, lasts=lasts))
            eta = estimate(bed, work("w", 8))["w"]
            assert eta.p50_s is not None
            assert eta.p90_s is not None
            return eta.p90_s - eta.p50_s

        assert width(exactly(3600.0)) == 0
        assert width(RunTime(3600.0, 7200.0)) < width(RunTime(3600.0, 36_000.0))

    def test_the_first_of_many_to_end_is_known_better_than_one(self):
        one, many = Bed({"s": {"a": [1]}}), Bed({"s": {"a": [8]}})
        run_time = RunTime(3600.0, 36_000.0)
        one.start(work("x0", 1, lasts=run_time))
        many.start(*[work(f"x{number}", 1, lasts=run_time) for number in range(8)])

        alone, among = estimate(one, work("w"))["w"], estimate(many, work("w"))["w"]

        assert alone.p90_s is not None
        assert among.p90_s is not None
        assert among.p90_s < alone.p90_s

    def test_estimates_are_stretched_by_how_earlier_ones_came_true(self):
        bed = Bed({"s": {"a": [8]}})
        bed.start(work("x", 8, lasts=1000.0))
        before_s = told(estimate(bed, work("w", 8))["w"])
        for number in range(20):
            estimate(bed, work(f"w{number}", 8))
            # Everything takes twice as long as told.
            bed.estimator.record_start(f"w{number}", 2 * before_s + 60.0)

        assert told(estimate(bed, work("w", 8))["w"]) == pytest.approx(2 * before_s + 60.0)

    def test_who_never_started_teaches_nothing(self):
        bed = Bed({"s": {"a": [8]}})
        bed.start(work("x", 8, lasts=1000.0))
        before = estimate(bed, work("w", 8))["w"]
        for number in range(30):
            estimate(bed, work(f"w{number}", 8))
            bed.estimator.forget(f"w{number}")
            bed.estimator.record_start(f"w{number}", 9e9)

        assert estimate(bed, work("w", 8))["w"] == before


class TestRemaining:
    def remaining(self, p50_s, p95_s, age_s, part=0.5) -> float:
        p50, p95, age = (np.array([float(each)]) for each in (p50_s, p95_s, age_s))
        return float(remaining_s(p50, p95, age, part)[0])

    def test_a_fresh_run_has_its_own_quantiles(self):
        assert self.remaining(100, 400, 0) == pytest.approx(100)
        assert self.remaining(100, 400, 0, 0.95) == pytest.approx(400)

    def test_an_exact_one_ends_then_and_a_late_one_takes_as_long_again(self):
        assert self.remaining(100, 100, 30) == pytest.approx(70)
        assert self.remaining(100, 100, 150) == pytest.approx(50)

    def test_the_longer_it_has_lasted_the_longer_it_will(self):
        left = [self.remaining(100, 1000, age) for age in (200, 400, 800, 1600)]

        assert left == sorted(left)
        assert all(each > 0 for each in left)


def test_a_roster_knows_what_namespaces_hold():
    bed = Bed({"s": {"a": [8]}})
    bed.start(work("x", 2, namespace="a"), work("y", 3, namespace="b", lasts=10.0))

    assert bed.roster.queued_milli == {"a": 2000, "b": 3000}
    bed.roster.put(RunningWorkload("x", "b", 1000, 0.0))
    bed.roster.drop("y")
    assert bed.roster.queued_milli == {"b": 1000}
    assert bed.roster.sort_by_end(0.0) == []


def test_a_roster_sorts_again_when_workloads_start_or_end_and_when_time_passes():
    bed = Bed({"s": {"a": [8]}})
    bed.start(work("x", 2, lasts=20.0), work("y", 3, lasts=10.0))

    def ends(now_s):
        return [(end_s, each.key) for end_s, each in bed.roster.sort_by_end(now_s)]

    assert ends(0.0) == ends(0.0) == [(10.0, "y"), (20.0, "x")]
    assert ends(16.0) == [(20.0, "x"), (22.0, "y")], "y is late: it takes as long again"
    bed.roster.drop("y")
    assert ends(16.0) == [(20.0, "x")]


def test_a_roster_tells_whether_all_run_times_are_exact():
    bed = Bed({"s": {"a": [8]}})
    assert bed.roster.are_exact
    bed.roster.put(RunningWorkload("x", "b", 1000, 0.0, RunTime(5.0, 5.0)))
    assert bed.roster.are_exact
    bed.roster.put(RunningWorkload("y", "b", 1000, 0.0, RunTime(5.0, 6.0)))
    assert not bed.roster.are_exact
