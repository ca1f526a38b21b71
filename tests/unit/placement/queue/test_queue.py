"""Whose turn it is, who is tried again when, and who is given up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from tests.support.builders.queues import Bed, work

from kgwe.placement.queue.cycle import Placed, run_cycle
from kgwe.placement.queue.queue import GiveUpReason, Queue
from kgwe.placement.queue.unschedulable import ConfigChanged, NodeChanged, RoomFreed, VictimGone
from kgwe.placement.queue.workloads import RunningWorkloads, requested_milli
from kgwe.placement.refusal import Reason, Refusal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kgwe.placement.fleet.node import Request
    from kgwe.placement.fleet.snapshot import Grant
    from kgwe.placement.gang.request import GangRequest
    from kgwe.placement.queue.workloads import QueuedWorkload

ONE_NODE = {"s": {"a": [8]}}
FULL = {"s": {"a": [0, 0]}}


def order(*works, held=None, weights=None) -> str:
    queue = Queue(weights)
    for each in works:
        queue.put(each)
    return " ".join(each.key for each in queue.iterate_in_order(held or {}))


class TestOrder:
    def test_higher_priority_then_who_lost_its_place_then_the_oldest(self):
        works = [
            work("young", since_s=3.0),
            work("old", since_s=1.0),
            work("repaired", since_s=9.0, first_claim=True),
            work("urgent", since_s=8.0, priority=5),
        ]

        assert order(*works) == "urgent repaired old young"

    def test_namespaces_take_turns_whatever_they_pile_up(self):
        works = [work(f"a{i}", namespace="a", since_s=i) for i in range(3)]
        works += [work(f"b{i}", namespace="b", since_s=10 + i) for i in range(2)]

        assert order(*works) == "a0 b0 a1 b1 a2"

    def test_a_turn_is_as_long_as_what_is_asked_for(self):
        works = [work("a0", 4, namespace="a"), work("a1", 4, namespace="a", since_s=1)]
        works += [work(f"b{i}", 1, namespace="b", since_s=2 + i) for i in range(5)]

        assert order(*works) == "a0 b0 b1 b2 b3 a1 b4"

    def test_who_holds_much_goes_last_and_weights_count(self):
        works = [work("a", namespace="a"), work("b", namespace="b", since_s=1)]

        assert order(*works, held={"a": 1000}) == "b a"
        assert order(*works, held={"a": 1000, "b": 600}, weights={"a": 2.0}) == "a b"

    def test_equal_in_all_the_key_decides(self):
        assert order(work("y"), work("x"), work("z")) == "x y z"


class TestPasses:
    def test_all_that_fits_is_placed_in_order(self):
        bed = Bed(ONE_NODE)
        bed.put(work("large", 6, since_s=1), work("small", 2, since_s=2), work("late", 1, since_s=3))

        assert bed.run() == ["large", "small"]
        assert list(bed.held()) == ["late"]
        assert "GPUs" in bed.held()["late"].refusal.message

    def test_a_share_grows_only_by_what_was_given(self):
        # a's first work cannot start; that must not cost its second one the turn.
        bed = Bed(ONE_NODE)
        bed.put(work("a-huge", 8, 2, namespace="a"), work("a-small", 6, namespace="a", since_s=1))
        bed.put(work("b", 6, namespace="b", since_s=2))

        assert bed.run() == ["a-small"]

    def test_equal_works_cost_one_attempt_each_time_they_are_woken(self):
        bed = Bed(FULL)
        bed.put(*[work(f"w{i}", 2, namespace=f"ns{i % 7}") for i in range(500)])

        bed.run()
        assert bed.planner.plans == 1
        assert len(bed.held()) == 500

        bed.run()
        bed.put(work("one more", 2))
        bed.run()
        assert bed.planner.plans == 1
        assert list(bed.held()) == ["one more"]

    def test_only_events_that_could_help_wake(self):
        bed = Bed({"s": {"a": [0, 8]}})
        bed.start(work("x", 7), work("y", 1))
        bed.put(work("pair", 2), work("whole", 8))
        bed.run()
        before = bed.planner.plans

        bed.end("y")
        bed.run()
        assert bed.planner.plans == before  # one card came free on a2, and nobody wants one

        bed.end("x")
        assert bed.run() == ["pair"]

    def test_room_elsewhere_than_its_nodes_does_not_wake(self):
        bed = Bed(ONE_NODE)
        bed.start(work("x", 8))
        bed.put(work("w", 1))
        bed.run()
        before = bed.planner.plans

        bed.queue.handle_event(RoomFreed("no-such-node"))
        bed.queue.handle_event(RoomFreed("a1"))
        bed.run()

        assert bed.planner.plans == before

    def test_config_and_victims_wake_without_asking(self):
        bed = Bed(FULL)
        bed.put(work("w", 1), work("v", 2))
        bed.run()
        assert bed.planner.plans == 2

        bed.queue.handle_event(VictimGone("v"))
        bed.run()
        assert bed.planner.plans == 3

        bed.queue.handle_event(ConfigChanged())
        bed.run()
        assert bed.planner.plans == 5

    def test_what_could_never_start_waits_for_a_node_to_change_not_for_room(self):
        bed = Bed({"s": {"a": [8, 8]}})
        bed.start(work("x", 8))
        bed.put(work("impossible", 8, 3))
        bed.run()
        assert not bed.held()["impossible"].refusal.possible
        before = bed.planner.plans

        bed.end("x")
        bed.run()
        assert bed.planner.plans == before

        bed.queue.handle_event(NodeChanged("a2"))
        bed.run()
        assert bed.planner.plans == before + 1

    def test_an_unknown_level_holds_that_work_alone(self):
        bed = Bed(ONE_NODE)
        bed.put(work("odd", 1, 2, required="galaxy"), work("plain", 1, since_s=1))

        assert bed.run() == ["plain"]
        assert not bed.held()["odd"].refusal.possible
        assert "galaxy" in bed.held()["odd"].refusal.message

    def test_a_work_put_again_is_what_it_is_now(self):
        bed = Bed(ONE_NODE)
        bed.put(work("w", 8, 2))
        bed.run()
        bed.put(work("w", 8))

        assert bed.run() == ["w"]
        assert len(bed.queue) == 0

    def test_dropped_work_is_gone_with_its_shape(self):
        bed = Bed(FULL)
        bed.put(work("w", 1))
        bed.run()
        bed.queue.drop("w")
        bed.queue.drop("never heard of")

        assert "w" not in bed.queue
        assert not bed.queue.pool.unschedulable
        assert bed.run() == []


class TestGivingUp:
    def test_by_default_nobody_is_given_up(self):
        bed = Bed(FULL)
        bed.put(work("w", 1))

        bed.run(1e9)

        assert "w" in bed.queue
        assert bed.given_up() == {}

    def test_who_waits_too_long_is_told_why(self):
        bed = Bed(FULL)
        bed.put(work("w", 1, timeout_s=30.0, since_s=100.0), work("v", 1, since_s=100.0))
        bed.run(100.0)
        assert bed.queue.next_due_s() == 130.0

        bed.run(129.0)
        assert bed.given_up() == {}
        bed.run(130.0)

        assert bed.given_up()["w"].reason is GiveUpReason.TIMED_OUT
        assert "30 s" in bed.given_up()["w"].message
        assert "insufficient GPUs" in bed.given_up()["w"].message
        assert "v" in bed.queue

    def test_errors_back_off_and_shortage_does_not(self):
        bed = Bed(ONE_NODE)
        bed.queue.retry(work("w", 1), 0.0, jitter=0.0, words="bind refused")

        assert bed.run(0.9) == []
        assert bed.queue.next_due_s() == 1.0
        assert bed.run(1.0) == ["w"]

        bed.queue.retry(work("w", 1), 1.0, jitter=0.5)
        assert bed.queue.next_due_s() == pytest.approx(1.0 + 2 * 1.05)

    def test_so_many_errors_in_a_row_and_no_more(self):
        bed = Bed({"s": {"a": [8, 8, 8]}})
        each = work("w", 1, max_attempts=3)
        bed.put(each)
        for now_s in (0.0, 10.0):
            assert bed.run(now_s) == ["w"]
            bed.queue.retry(each, now_s, jitter=0.0, words="bind refused")
        assert bed.run(20.0) == ["w"]
        bed.queue.retry(each, 20.0, jitter=0.0, words="bind refused")
        bed.run(20.0)

        assert bed.given_up()["w"].reason is GiveUpReason.ATTEMPTS_EXHAUSTED
        assert "3 times in a row, last: bind refused" in bed.given_up()["w"].message
        assert "w" not in bed.queue

    def test_waiting_for_room_uses_up_no_attempts(self):
        bed = Bed(FULL)
        bed.put(work("w", 1, max_attempts=1))
        for now_s in range(5):
            bed.queue.handle_event(ConfigChanged())
            bed.run(float(now_s))

        assert "w" in bed.queue

    def test_put_anew_it_has_no_past(self):
        bed = Bed(FULL)
        each = work("w", 1, max_attempts=2)
        bed.queue.retry(each, 0.0, jitter=0.0)
        bed.put(each)
        bed.queue.retry(each, 0.0, jitter=0.0)

        bed.run(100.0)

        assert "w" in bed.queue

    def test_works_of_one_shape_in_a_back_off_come_back_together(self):
        bed = Bed(ONE_NODE)
        first, second = work("w1", 1), work("w2", 1)
        bed.queue.retry(first, 0.0, jitter=0.0)
        bed.queue.retry(second, 0.0, jitter=0.0)
        bed.put(work("w3", 1))

        assert bed.run(0.0) == ["w3"]
        assert bed.run(5.0) == ["w1", "w2"]


class Pool:
    """Cards without nodes."""

    def __init__(self, free: int) -> None:
        self.free = free

    def plan(self, each: QueuedWorkload, avoid: frozenset[str], following: object) -> Taken | Refusal:  # noqa: ARG002
        assert not avoid
        return Taken(each) if requested_milli(each.request) <= self.free * 1000 else Refusal(Reason.NO_ROOM, "full")

    def arrange_gangs(self, following: object) -> Sequence[None]:  # noqa: ARG002
        return ()

    def commit(self, each: QueuedWorkload, plan: Taken) -> None:
        assert plan.work is each
        self.free -= requested_milli(each.request) // 1000

    def fits_on_any(self, request: Request | GangRequest, nodes: Sequence[str]) -> bool:
        raise AssertionError((request, nodes))


@dataclass(frozen=True)
class Taken:
    work: QueuedWorkload
    nodes: tuple[str, ...] = ()
    grants: tuple[Grant, ...] = ()


def test_a_planner_of_ones_own_needs_no_fleet():
    queue = Queue()
    for each in (work("a", 2), work("b", 2), work("c", 1)):
        queue.put(each)

    outcomes = run_cycle(queue, Pool(3), 0.0, RunningWorkloads(lambda _: ()))

    assert [each.workload.key for each in outcomes if isinstance(each, Placed)] == ["a", "c"]
