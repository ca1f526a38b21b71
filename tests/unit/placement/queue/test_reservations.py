"""A place is kept for who does not fit, and used by others only where that costs it nothing."""

from __future__ import annotations

import pytest
from tests.support.builders.queues import Bed, exactly, work

from kgwe.placement.queue.reservation import BackfillRule
from kgwe.placement.queue.unschedulable import NodeChanged, RoomFreed
from kgwe.placement.queue.workloads import RunningWorkload, RunTime

#   two leaves of two nodes
LEAVES = {"s": {"a": [8, 8], "b": [8, 8]}}


class TestHold:
    #   "long" has a1 until 100; the hero needs both nodes of a leaf, and b is taken for much longer
    def bed(self, **settings) -> Bed:
        bed = Bed(LEAVES, **settings)
        bed.start(work("long", 8, lasts=100.0))
        bed.start(work("longer", 8, 2, required="leaf", lasts=1000.0, since_s=1.0))
        assert bed.nodes("longer") == ["b1", "b2"]
        bed.put(work("hero", 8, 2, required="leaf", lasts=50.0, since_s=2.0))
        bed.run()
        return bed

    def test_the_hold_is_where_it_will_start_first(self):
        bed = self.bed()
        bed.put(work("other", 8, lasts=500.0, since_s=3.0))
        bed.run(10.0)

        hold = bed.holds.get("hero")

        assert hold is not None
        assert hold.nodes == {"a1", "a2"}
        assert hold.start_s == pytest.approx(100.0)
        assert hold.start_s == 100.0
        assert hold.describe().endswith(" (free soonest) for it.")
        assert bed.held()["hero"].reservation == hold

    def test_nothing_is_kept_while_nobody_could_use_it(self):
        bed = self.bed()
        bed.put(work("too large as well", 8, 2, since_s=3.0))
        bed.run(10.0)

        assert len(bed.holds) == 0

    def test_who_would_stay_too_long_has_to_wait(self):
        bed = self.bed()
        bed.put(work("other", 8, lasts=500.0, since_s=3.0))

        assert bed.run(10.0) == []
        assert "reserved for hero" in bed.held()["other"].refusal.message

    def test_who_is_gone_in_time_goes_ahead(self):
        bed = self.bed()
        bed.put(work("short", 8, lasts=90.0, since_s=3.0))

        assert bed.run(10.0) == ["short"]

    def test_the_p95_counts_not_the_median(self):
        bed = self.bed()
        bed.put(work("risky", 8, lasts=RunTime(50.0, 95.0), since_s=3.0))

        assert bed.run(10.0) == []

    def test_a_workload_that_declares_less_than_its_history_shows_does_not_go_ahead(self):
        bed = self.bed()
        bed.put(work("liar", 8, lasts=20.0, predicted_p95_s=500.0, since_s=3.0))
        bed.put(work("honest", 8, lasts=20.0, predicted_p95_s=30.0, since_s=4.0))

        assert bed.run(10.0) == ["honest"]

    def test_who_says_nothing_does_not_go_ahead(self):
        bed = self.bed()
        bed.put(work("silent", 8, since_s=3.0))

        assert bed.run(10.0) == []

    def test_without_backfill_nobody_goes_ahead(self):
        bed = self.bed(rule=BackfillRule.HOLD)
        bed.put(work("short", 8, lasts=1.0, since_s=3.0))

        assert bed.run(10.0) == []

    def test_other_nodes_are_free_to_all(self):
        bed = Bed({"s": {"a": [8, 8], "c": [8]}})
        bed.start(work("long", 8, 2, required="leaf", lasts=100.0))
        bed.put(work("hero", 8, 2, required="leaf", lasts=50.0, since_s=2.0))
        bed.put(work("other", 8, lasts=5000.0, since_s=3.0), work("more", 8, lasts=5000.0, since_s=4.0))

        assert bed.run(10.0) == ["other"]
        assert bed.nodes("other") == ["c1"]

    def test_the_oldest_and_the_one_whose_turn_is_first_are_both_kept_a_place(self):
        bed = Bed({"s": {"a": [8, 8], "b": [8, 8], "c": [8]}})
        for leaf, seconds in (("x", 100.0), ("y", 200.0)):
            bed.start(work(leaf, 8, 2, required="leaf", lasts=seconds, namespace="rich"))
        bed.put(work("oldest", 8, 2, required="leaf", since_s=1.0, namespace="rich"))
        bed.put(work("older", 8, 2, required="leaf", since_s=2.0, namespace="rich"))
        bed.put(work("first", 8, 2, required="leaf", since_s=3.0, namespace="poor"))
        bed.put(work("small", 8, since_s=4.0, namespace="poorer"))

        assert bed.run(5.0) == ["small"]
        holds = {hold.key: hold.nodes for hold in bed.holds.list_all()}
        assert set(holds) == {"oldest", "first"}
        assert not holds["oldest"] & holds["first"]

    def test_namespaces_that_hold_little_do_not_starve_one_that_holds_much(self):
        bed = self.bed()
        bed.put(work("small", 8, lasts=500.0, since_s=3.0, namespace="holds nothing"))

        assert bed.run(10.0) == []

    def test_higher_priority_does_not_care(self):
        bed = self.bed()
        bed.put(work("urgent", 8, priority=1, since_s=3.0))

        assert bed.run(10.0) == ["urgent"]

    def test_lower_priority_does(self):
        bed = self.bed()
        bed.put(work("humble", 8, priority=-1, lasts=500.0, since_s=3.0))

        assert bed.run(10.0) == []

    def test_when_the_hero_starts_the_others_have_their_turn(self):
        bed = self.bed()
        bed.put(work("other", 8, lasts=500.0, since_s=3.0))
        bed.run(10.0)
        bed.end("long")

        assert bed.run(100.0) == ["hero"]
        assert len(bed.holds) == 0
        bed.end("hero")
        assert bed.run(150.0) == ["other"]

    def test_when_the_hero_is_dropped_its_nodes_are_anybodys(self):
        bed = self.bed()
        bed.put(work("other", 8, lasts=500.0, since_s=3.0))
        bed.run(10.0)
        bed.queue.drop("hero")

        assert bed.run(11.0) == ["other"]

    def test_a_new_short_work_of_a_stopped_shape_is_looked_at(self):
        bed = self.bed()
        bed.put(work("long one", 8, lasts=500.0, since_s=3.0))
        bed.run(10.0)
        bed.put(work("short one", 8, lasts=20.0, since_s=4.0))

        assert bed.run(11.0) == ["short one"]

    def test_a_short_workload_gets_a_plan_of_its_own_when_an_equal_one_before_it_has_to_wait(self):
        bed = self.bed()
        bed.put(work("silent", 8, since_s=3.0), work("short", 8, lasts=20.0, since_s=4.0))

        assert bed.run(10.0) == ["short"]
        assert "silent" in bed.queue

    def test_who_leaves_room_may_stay(self):
        # The hero needs two nodes of three; one of them may be used for ever.
        bed = Bed({"s": {"a": [8, 8, 8]}})
        bed.start(work("long", 8, 2, lasts=100.0))
        bed.put(work("hero", 8, 2, lasts=50.0, since_s=1.0))
        bed.run(1.0)
        bed.put(work("other", 8, lasts=5000.0, since_s=2.0))

        assert bed.run(2.0) == ["other"]
        bed.end("long")
        assert bed.run(100.0) == ["hero"]


class TestLiveness:
    """What fits starts, whatever is forecast for others."""

    def test_an_overdue_workload_does_not_keep_free_gpus_from_others(self):
        bed = Bed({"s": {"a": [8]}}, refresh_s=1.0)
        bed.start(work("stuck", 4, lasts=RunTime(10.0, 20.0)))
        bed.put(work("large", 8, lasts=50.0, since_s=1.0), work("silent", 4, since_s=2.0))

        assert bed.run(5.0) == []
        assert bed.holds.get("large") is not None
        assert bed.run(101.0) == ["silent"]

    def test_a_new_run_time_lets_a_blocked_workload_start_and_keeps_the_reservation(self):
        bed = Bed({"s": {"a": [8]}})
        bed.start(work("long", 4, lasts=100.0))
        bed.put(work("large", 8, lasts=50.0, since_s=1.0), work("unknown", 4, since_s=2.0))
        assert bed.run(5.0) == []
        before = bed.holds.get("large")
        bed.queue.set_run_time("large", exactly(70.0), 70.0)
        bed.queue.set_run_time("unknown", exactly(20.0), 20.0)

        assert bed.run(6.0) == ["unknown"]
        assert bed.holds.get("large") == before

    def test_a_new_run_time_does_not_end_a_back_off(self):
        bed = Bed({"s": {"a": [8]}})
        bed.queue.retry(work("failed", 4), 0.0, 0.0)
        bed.queue.set_run_time("failed", exactly(20.0), 20.0)

        assert bed.run(0.5) == []
        assert bed.run(2.0) == ["failed"]

    def test_a_reservation_that_is_free_and_of_no_use_is_dropped(self):
        bed = Bed({"s": {"a": [8]}}, refresh_s=30.0)
        bed.start(work("long", 4, lasts=100.0))
        bed.put(work("refused", 8, lasts=50.0, since_s=1.0), work("silent", 4, since_s=2.0))
        assert bed.run(5.0) == []
        assert bed.holds.get("refused") is not None
        bed.end("long")
        bed.planner.refused.add("refused")

        assert bed.run(105.0) == ["silent"]
        assert bed.holds.get("refused") is None

    def test_no_reservation_is_made_for_a_workload_that_is_refused_although_it_should_fit(self):
        bed = Bed({"s": {"a": [8]}})
        bed.planner.refused.add("refused")
        bed.put(work("refused", 8, since_s=1.0), work("silent", 4, since_s=2.0))

        assert bed.run(5.0) == ["silent"]
        assert len(bed.holds) == 0

    def test_a_reservation_without_a_start_that_ends_lets_others_start_before_the_next_one(self):
        """Two namespaces must not take turns with reservations that never come to anything."""
        bed = Bed({"s": {"a": [8]}}, blind_after_s=10.0, blind_s=100.0, refresh_s=1.0)
        bed.start(work("endless", 4))
        for namespace in ("x", "y"):
            bed.put(work(f"large {namespace}", 8, namespace=namespace, since_s=1.0))
        bed.put(work("small", 4, namespace="z", since_s=2.0))

        assert bed.run(20.0) == []
        assert bed.run(121.0) == ["small"]


class TestSticky:
    def test_a_hold_stays_where_it_is_for_a_small_gain(self):
        bed = Bed(LEAVES, refresh_s=1.0)
        bed.start(work("x", 8, lasts=100.0), work("y", 8, 2, required="leaf", lasts=130.0, since_s=1.0))
        bed.put(work("hero", 8, 2, required="leaf", since_s=2.0), work("other", 8, lasts=1000.0, since_s=3.0))
        bed.run(1.0)
        before = bed.holds.get("hero")
        assert before is not None
        assert before.nodes == {"a1", "a2"}

        # x turns out to need 140: the other leaf would be ten seconds earlier.
        bed.roster.put(RunningWorkload("x", "", 8000, 0.0, exactly(140.0)))
        bed.put(work("prod", 8, lasts=1000.0, since_s=4.0))
        bed.run(5.0)

        hold = bed.holds.get("hero")
        assert hold is not None
        assert hold.nodes == before.nodes
        assert hold.start_s == pytest.approx(140.0)

    def test_it_moves_for_a_large_one(self):
        bed = Bed(LEAVES, refresh_s=1.0)
        bed.start(work("x", 8, lasts=100.0), work("y", 8, 2, required="leaf", lasts=130.0, since_s=1.0))
        bed.put(work("hero", 8, 2, required="leaf", since_s=2.0), work("other", 8, lasts=1000.0, since_s=3.0))
        bed.run(1.0)
        bed.roster.put(RunningWorkload("x", "", 8000, 0.0, exactly(900.0)))
        bed.put(work("prod", 8, lasts=100.0, since_s=4.0))

        bed.run(5.0)

        hold = bed.holds.get("hero")
        assert hold is not None
        assert hold.nodes == {"b1", "b2"}
        assert hold.start_s == pytest.approx(130.0)

    def test_it_is_looked_at_again_when_nodes_changed(self):
        bed = Bed({"s": {"a": [8, 8, 8]}}, refresh_s=1000.0)
        bed.start(work("x", 8, 2, lasts=5000.0))
        bed.put(work("hero", 8, 3, since_s=2.0), work("other", 8, lasts=9000.0, since_s=3.0))
        bed.run(1.0)
        bed.roster.put(RunningWorkload("x", "", 16_000, 0.0, exactly(3000.0)))
        bed.run(200.0)
        before = bed.holds.get("hero")
        assert before is not None
        assert before.start_s == pytest.approx(5000.0)

        bed.queue.handle_event(NodeChanged("a1"))
        bed.run(201.0)

        after = bed.holds.get("hero")
        assert after is not None
        assert after.start_s == pytest.approx(3000.0)


class TestUnknownEnds:
    def bed(self, **settings) -> Bed:
        bed = Bed(LEAVES, **settings)
        bed.start(work("x", 8), work("y", 8, 2, required="leaf", since_s=1.0))
        bed.put(work("hero", 8, 2, required="leaf", since_s=2.0))
        bed.run(2.0)
        return bed

    def test_nothing_is_kept_for_who_has_not_waited_long(self):
        bed = self.bed()
        bed.put(work("other", 8, since_s=3.0))

        assert bed.run(10.0) == ["other"]

    def test_who_has_is_kept_the_domain_that_lacks_least(self):
        bed = self.bed(blind_after_s=60.0)
        bed.put(work("other", 8, since_s=3.0))

        assert bed.run(70.0) == []
        hold = bed.holds.get("hero")
        assert hold is not None
        assert hold.nodes == {"a1", "a2"}
        assert hold.start_s is None
        assert "start unknown: workloads there declare no duration" in hold.describe()

    def test_but_not_for_ever_if_nothing_comes_free(self):
        bed = self.bed(blind_after_s=60.0, blind_s=600.0, refresh_s=10.0)
        bed.put(work("other", 8, since_s=3.0))
        bed.run(70.0)
        assert bed.queue.next_due_s() == 80.0

        # Nothing happens but time.
        assert bed.run(700.0) == ["other"]

    def test_one_work_as_large_as_the_fleet_does_not_stop_all_others(self):
        bed = Bed({"s": {"a": [8, 8, 8]}})
        bed.start(work("x", 8, namespace="owner"))
        bed.put(work("whole", 8, 3, namespace="attacker", priority=10_000, since_s=1.0))
        bed.run(1.0)
        bed.put(*[work(f"small{number:02}", 1, namespace="victim", since_s=600.0) for number in range(14)])

        placed = bed.run(700.0)

        hold = bed.holds.get("whole")
        assert hold is not None
        assert hold.start_s is None
        assert len(hold.nodes) == 1, "at most half of 24 GPUs, in whole nodes"
        assert len(placed) == 8, "all GPUs that are free elsewhere"
        # Nor do they wait for a day for the others.
        bed.queue.handle_event(RoomFreed("a1"))
        assert len(bed.run(700.0 + 4 * 3600)) == 6

    def test_short_work_that_says_so_goes_ahead_for_which_nodes_are_kept_without_a_known_start(self):
        bed = self.bed()
        bed.put(work("silent", 8, since_s=3.0), work("day", 8, lasts=86400.0, since_s=4.0))
        bed.put(work("short", 8, lasts=300.0, since_s=5.0))

        assert bed.run(700.0) == ["short"]

    def test_short_work_does_not_make_the_hold_last(self):
        bed = self.bed(blind_after_s=60.0, blind_s=600.0, refresh_s=10.0, max_broken=100)
        bed.put(work("other", 8, since_s=3.0))
        assert bed.run(70.0) == []
        for step in range(60):
            now_s = 80.0 + 10.0 * step
            bed.put(work(f"short{step}", 8, lasts=5.0, since_s=now_s))
            placed = bed.run(now_s)
            if "other" in placed:
                return
            assert placed == [f"short{step}"]
            bed.end(f"short{step}")
        assert bed.run(700.0) == ["other"]

    def test_work_that_is_made_again_does_not_keep_nodes_without_a_pause(self):
        bed = self.bed(blind_after_s=60.0, blind_s=600.0, refresh_s=10.0)
        bed.put(work("other", 8, since_s=3.0))
        assert bed.run(70.0) == []
        assert bed.run(370.0) == []

        bed.queue.drop("hero")
        bed.put(work("hero again", 8, 2, required="leaf", since_s=-500.0))

        assert bed.run(380.0) == ["other"]

    def test_a_start_that_is_far_away_does_not_keep_the_whole_fleet_either(self):
        bed = Bed({"s": {"a": [8, 8, 8]}})
        bed.start(work("x", 8, lasts=86400.0))
        bed.put(work("whole", 8, 3, priority=1, since_s=1.0), work("other", 8, since_s=2.0))

        assert bed.run(2.0) == ["other"]

    def test_but_one_that_is_near_does(self):
        bed = Bed({"s": {"a": [8, 8, 8]}})
        bed.start(work("x", 8, lasts=3600.0))
        bed.put(work("whole", 8, 3, priority=1, since_s=1.0), work("other", 8, since_s=2.0))

        assert bed.run(2.0) == []


class TestDelayedByItsOwnNamespace:
    """A namespace does not keep GPUs idle beside its own workloads that have no known end."""

    def bed(self, *, holder: str, lasts: float | None) -> Bed:
        bed = Bed({"s": {"a": [8, 8, 8, 8]}})
        bed.start(work("x", 8, lasts=lasts, namespace=holder), work("y", 8, lasts=lasts, namespace=holder))
        bed.put(work("gang", 8, 4, namespace="a", since_s=1.0))
        bed.run(1.0)
        return bed

    @pytest.mark.parametrize(("lasts", "now_s"), [(None, 700.0), (600.0, 700.0), (60.0, 1000.0)])
    def test_others_start_if_it_waits_for_its_own_workloads(self, lasts, now_s):
        bed = self.bed(holder="a", lasts=lasts)
        bed.put(work("other", 8, namespace="b", since_s=2.0))

        assert bed.run(now_s) == ["other"]

    def test_a_reservation_ends_when_its_own_workloads_run_past_their_time(self):
        bed = self.bed(holder="a", lasts=600.0)
        bed.put(work("other", 8, namespace="b", since_s=2.0))
        assert bed.run(10.0) == []

        assert bed.run(700.0) == ["other"]

    @pytest.mark.parametrize("lasts", [None, 600.0])
    def test_it_has_a_reservation_if_it_waits_for_others(self, lasts):
        bed = self.bed(holder="c", lasts=lasts)
        bed.put(work("other", 8, namespace="b", since_s=2.0), work("another", 8, namespace="b", since_s=2.0))

        bed.run(700.0)

        assert bed.holds.get("gang") is not None

    def test_it_has_a_reservation_while_only_its_own_namespace_waits(self):
        bed = self.bed(holder="a", lasts=None)
        bed.put(work("other", 8, namespace="a", since_s=2.0))

        assert bed.run(700.0) == []
        assert bed.holds.get("gang") is not None

    def test_it_starts_once_its_own_workloads_end(self):
        bed = self.bed(holder="a", lasts=None)
        bed.put(work("other", 8, namespace="b", since_s=2.0))
        bed.run(700.0)
        for key in ("x", "y", "other"):
            bed.end(key)

        assert bed.run(800.0) == ["gang"]


class TestWords:
    def test_work_is_named_to_its_own_namespace_only(self):
        bed = Bed(LEAVES)
        bed.start(work("x", 8, lasts=100.0), work("y", 8, 2, required="leaf", lasts=9000.0, since_s=1.0))
        hero = work("3ada833b", 8, 2, required="leaf", namespace="a", name="a/hero", priority=10_000, since_s=2.0)
        bed.put(hero)
        bed.run(2.0)
        bed.put(work("mine", 8, namespace="a", since_s=3.0), work("theirs", 8, namespace="b", since_s=4.0))
        bed.run(10.0)

        said = {key: held.refusal.message for key, held in bed.held().items()}

        assert said["mine"] == "The only 2 nodes with room are reserved for a/hero; waiting for its turn."
        assert said["theirs"] == (
            "The only 2 nodes with room are reserved for a workload of priority 10000 in another namespace; waiting for"
            " its turn."
        )


class TestTrust:
    def test_who_stays_too_often_is_not_believed(self):
        bed = Bed({"s": {"a": [8, 8]}}, max_broken=1, refresh_s=1.0)
        bed.start(work("long", 8, lasts=10_000.0))
        bed.put(work("hero", 8, 2, since_s=1.0))
        bed.run(1.0)
        now_s = 10.0
        for number in range(2):
            bed.put(work(f"liar{number}", 8, lasts=5.0, namespace="liars", since_s=now_s))
            assert bed.run(now_s) == [f"liar{number}"]
            now_s += 50.0
            bed.run(now_s)  # it is still there, 45 s after it was to be gone
            bed.end(f"liar{number}")

        bed.put(work("liar again", 8, lasts=5.0, namespace="liars", since_s=now_s))
        assert bed.run(now_s) == []
        bed.put(work("honest", 8, lasts=5.0, namespace="others", since_s=now_s + 1))
        assert bed.run(now_s + 1) == ["honest"]

    def test_after_a_day_it_is_forgotten(self):
        bed = Bed({"s": {"a": [8, 8]}}, max_broken=0, memory_s=1000.0, refresh_s=1.0, far_s=1e6)
        bed.start(work("long", 8, lasts=100_000.0))
        bed.put(work("hero", 8, 2, since_s=1.0))
        bed.run(1.0)
        bed.put(work("liar", 8, lasts=5.0, since_s=2.0))
        bed.run(10.0)
        bed.run(60.0)
        bed.end("liar")
        bed.put(work("again", 8, lasts=5.0, since_s=3.0))
        assert bed.run(61.0) == []

        bed.put(work("later", 8, lasts=5.0, since_s=4.0))
        assert bed.run(2000.0)[0] == "again"


class TestPeers:
    def test_small_works_do_not_starve_a_large_gang(self):
        # KAI-Scheduler#1969: every node that comes free goes to whatever small job fits; the large one never starts.
        def day(rule: BackfillRule) -> float | None:
            bed = Bed({"s": {"a": [8] * 4}}, rule=rule)
            bed.put(work("hero", 8, 4, lasts=100.0, since_s=5.0))
            ends: dict[str, float] = {}
            for step in range(200):
                now_s = step * 10.0
                for key in [key for key, end_s in ends.items() if end_s <= now_s]:
                    bed.end(key)
                    del ends[key]
                bed.put(work(f"small{step}", 8, lasts=45.0, since_s=now_s))
                if step == 0:
                    bed.queue.drop("hero")
                if step == 5:
                    bed.put(work("hero", 8, 4, lasts=100.0, since_s=now_s))
                for key in bed.run(now_s):
                    if key == "hero":
                        return now_s
                    ends[key] = now_s + 45.0
            return None

        assert day(BackfillRule.GREEDY) is None
        for rule in (BackfillRule.BLOCK, BackfillRule.HOLD, BackfillRule.BACKFILL):
            started_s = day(rule)
            assert started_s is not None
            assert started_s <= 50.0 + 45.0 + 10.0

    def test_sixty_jobs_on_two_nodes_all_run(self):
        # scheduler-plugins#117: 60 jobs of 1 to 8 GPUs, one every 15 s, 30 s each, stop for ever once some had to wait.
        bed = Bed({"s": {"a": [8, 8]}})
        ends: dict[str, float] = {}
        done: list[str] = []
        for step in range(400):
            now_s = step * 5.0
            for key in [key for key, end_s in ends.items() if end_s <= now_s]:
                bed.end(key)
                del ends[key]
                done.append(key)
            if step % 3 == 0 and step // 3 < 60:
                number = step // 3
                # one pod per GPU, all or none
                bed.put(work(f"job{number}", 1, 1 + number * 5 % 8, lasts=30.0, since_s=now_s))
            for key in bed.run(now_s):
                ends[key] = now_s + 30.0
            assert len(bed.queue) + len(ends) + len(done) == min(60, step // 3 + 1)

        assert sorted(done) == sorted(f"job{number}" for number in range(60))

    def test_a_gang_of_two_with_one_free_node_holds_nothing(self):
        # scheduler-plugins#930
        bed = Bed({"s": {"a": [8, 8]}})
        bed.start(work("single", 8))
        bed.put(work("pair", 8, 2))

        assert bed.run(1.0) == []
        assert int(bed.snapshot.free[1]) == 0xFF
        bed.end("single")
        assert bed.run(2.0) == ["pair"]

    def test_a_repaired_gang_goes_before_fresh_work(self):
        # volcano#5805: after a repair a gang stays below its size for ever because fresh jobs are favoured.
        bed = Bed({"s": {"a": [8, 0]}})
        bed.put(
            work("fresh", 8, namespace="b", since_s=1.0),
            work("repaired", 8, namespace="a", since_s=9.0, first_claim=True),
        )
        bed.roster.queued_milli["a"] = 80_000

        assert bed.run(10.0) == ["repaired"]


def test_holds_go_to_the_higher_priority_when_there_are_too_few():
    bed = Bed({"s": {"a": [8, 8], "b": [8, 8]}}, max_reservations=1)
    bed.start(work("x", 8, lasts=100.0), work("y", 8, 2, required="leaf", lasts=200.0, since_s=1.0))
    bed.put(work("low", 8, 2, required="leaf", since_s=2.0), work("other", 8, lasts=500.0, since_s=3.0))
    bed.run(3.0)
    assert [hold.key for hold in bed.holds.list_all()] == ["low"]

    bed.put(work("high", 8, 2, required="leaf", priority=3, since_s=4.0))
    bed.queue.handle_event(RoomFreed("a2"))
    bed.run(5.0)

    assert [hold.key for hold in bed.holds.list_all()] == ["high"]
