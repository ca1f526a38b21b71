"""Gangs that follow decide which of equally near places a gang gets."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tests.support.builders.racks import Racks, cards, placed, racks

from kgwe.model.network.domains import Speed
from kgwe.placement.gang.lookahead.free_capacity import (
    FreeCapacity,
    LeafStates,
    find_leaf_sets,
    split_over_leaves,
    split_over_set,
)
from kgwe.placement.gang.lookahead.quick_fit import Forecast, GangDemand
from kgwe.placement.gang.request import NONE_FOLLOW
from kgwe.placement.planning.gang_planner import Following, GangPlan, GangPlanner, GangRequest
from kgwe.placement.pod.engine import Engine
from kgwe.placement.pod.fit import Fitter
from kgwe.placement.queue.cycle import Placed, run_cycle
from kgwe.placement.queue.fleet_planner import FleetPlanner, QueuePlan
from kgwe.placement.queue.queue import Queue
from kgwe.placement.queue.workloads import QueuedWorkload, RunningWorkloads

if TYPE_CHECKING:
    from collections.abc import Sequence

TWELVE = GangRequest.uniform(cards(8), 12, preferred="leaf")


def by_leaf(plan: GangPlan) -> Counter[str]:
    return Counter(seat.node[0] for seat in plan.seats)


def test_alone_a_gang_has_the_fewest_pairs_apart():
    cluster = racks({"s": {"a": [8] * 9, "b": [8] * 9, "c": [8] * 4}})
    plan = cluster.place(GangRequest.uniform(cards(8), 12, preferred="leaf"))
    assert by_leaf(plan) == {"a": 9, "c": 3} or by_leaf(plan) == {"b": 9, "c": 3}
    assert plan.choice_note == ""


def test_a_gang_takes_other_leaves_so_that_the_one_that_follows_needs_two():
    #  8 + 6 has the fewest pairs apart and leaves 7, 4, 3: three leaves to the next. 7 + 7 leaves 8 + 6.
    drawn = {"s": {"a": [8] * 8, "b": [8] * 7, "c": [8] * 7, "d": [8] * 6}}
    gang = GangRequest.uniform(cards(8), 14, preferred="leaf")
    cluster = racks(drawn)
    assert by_leaf(cluster.place(gang)) == {"a": 8, "d": 6}
    tight = GangRequest.uniform(cards(8), 13, preferred="leaf")
    assert by_leaf(cluster.place(tight)) == {"a": 8, "d": 5}
    plan = cluster.planner.plan(tight, following=Following.from_gangs([gang]))
    assert isinstance(plan, GangPlan)
    assert plan.leaves == 2
    cluster.snapshot.commit_all(plan.grants)
    assert placed(cluster.planner, gang).leaves == 2


def test_small_holes_are_filled_for_the_sake_of_a_gang_that_needs_whole_nodes():
    #  Three pods of four cards: on one whole node and a half one, or on three halves.
    cluster = racks({"s": {"a": [8, 8, 8, 4, 4, 4]}}, gb_per_s=0.0)
    small = GangRequest.uniform(cards(4), 3, preferred="leaf")
    assert cluster.place(small).nodes == ("a1", "a4")
    whole = GangRequest.uniform(cards(8), 3, preferred="leaf")
    plan = cluster.planner.plan(small, following=Following.from_gangs([whole]))
    assert isinstance(plan, GangPlan)
    assert plan.nodes == ("a4", "a5", "a6")
    assert plan.choice_note == "place chosen for the gang that follows: 1 more will fit"
    assert plan.choice_note in plan.describe()


def test_small_holes_are_not_filled_where_that_makes_the_ring_slower():
    #  The network is known: half of a node's cards have half of it.
    cluster = racks({"s": {"a": [8, 8, 8, 8, 8, 4, 4, 4, 4]}})
    small = GangRequest.uniform(cards(4), 4, preferred="leaf")
    plan = cluster.planner.plan(
        small, following=Following.from_gangs([GangRequest.uniform(cards(8), 5, preferred="leaf")])
    )
    assert isinstance(plan, GangPlan)
    assert plan.nodes == cluster.place(small).nodes == ("a1", "a2")


def test_a_level_that_is_preferred_is_not_left_for_others():
    drawn = {"s": {"a": [8] * 3, "b": [8] * 3}, "t": {"c": [8] * 3}}
    gang = GangRequest.uniform(cards(8), 4, preferred="spine")
    others = [GangRequest.uniform(cards(8), 3, preferred="leaf")] * 2
    plan = racks(drawn).planner.plan(gang, following=Following.from_gangs(others))
    assert isinstance(plan, GangPlan)
    assert (plan.level, plan.domain) == ("spine", "s")


def test_a_faster_leaf_is_not_given_up_for_others():
    drawn = {"s": {"a": [8] * 4}, "t": {"b": [8] * 2}}
    slow = {"leaf": Speed(oversubscription=2.0)}
    gang = GangRequest.uniform(cards(8), 2, preferred="leaf")
    plain = racks(drawn, speeds=slow)
    plan = plain.planner.plan(
        gang, following=Following.from_gangs([GangRequest.uniform(cards(8), 4, preferred="leaf")])
    )
    assert isinstance(plan, GangPlan)
    assert plan.ring.gb_per_s >= plain.place(gang).ring.gb_per_s


class Pass:
    """Gangs that wait together, placed in one pass."""

    def __init__(self, cluster: Racks, gangs: Sequence[GangRequest]) -> None:
        #: work -> gangs that follow it
        self.seen: dict[str, Following] = {}
        seen, fitter = self.seen, Fitter(cluster.snapshot)

        class Listening(FleetPlanner):
            def plan(self, work, avoid, following=NONE_FOLLOW):
                seen[work.key] = following
                return super().plan(work, avoid, following)

        def book(_: QueuedWorkload, plan: QueuePlan) -> None:
            cluster.snapshot.commit_all(plan.grants)

        queue = Queue()
        for number, gang in enumerate(gangs):
            queue.put(QueuedWorkload(f"{number:03d}", gang, "team"))
        engine = Engine(cluster.snapshot, fitter=fitter)
        planner = Listening(cluster, engine, GangPlanner(fitter, cluster.tree), book)
        outcomes = run_cycle(queue, planner, 0.0, RunningWorkloads(lambda _: ()))
        #: number of a gang that was placed -> its leaves
        self.leaves = {
            int(each.workload.key): len({node[0] for node in each.plan.nodes})
            for each in outcomes
            if isinstance(each, Placed)
        }


def test_a_pass_plans_gangs_with_those_behind_them_in_mind():
    cluster = racks({"s": {"a": [8] * 8, "b": [8] * 8, "c": [8] * 4, "d": [8] * 4}}, gb_per_s=0.0)
    done = Pass(cluster, [TWELVE] * 3)
    assert list(done.leaves) == [0, 1]
    assert (len(done.seen["000"].order), done.seen["000"].expected) == (2, 0), "the other two wait"
    second = done.seen["001"]
    assert second.expected == len(second.order) - 1 >= 1, "one waits, and such as have started are expected"


def test_all_gangs_that_wait_start_when_small_pods_keep_off_whole_nodes():
    #  Whole nodes: 12, all of which the three gangs of four need. Half nodes: 12, for four gangs of three.
    drawn = {"s": {"a": [8] * 4 + [4] * 2, "b": [8] * 4 + [4] * 4, "c": [8] * 4}, "t": {"d": [4] * 6}}
    whole, half = (GangRequest.uniform(cards(gpus), pods, preferred="leaf") for gpus, pods in ((8, 4), (4, 3)))
    done = Pass(racks(drawn, gb_per_s=0.0), [half, whole, half, whole, half, whole])
    assert done.leaves == dict.fromkeys(range(6), 1)


def test_a_gang_that_spans_leaves_takes_one_more_where_another_starts_for_it():
    #  Eight pods of four cards: on the four whole nodes of two leaves, or on the halves of three.
    drawn = {"s": {"a": [8, 8, 4, 4, 4], "b": [8, 8, 4, 4, 4]}, "t": {"c": [4, 4, 0, 0, 0]}}
    half, whole = GangRequest.uniform(cards(4), 8, preferred="leaf"), GangRequest.uniform(cards(8), 4, preferred="leaf")
    assert racks(drawn, gb_per_s=0.0).place(half).leaves == 2
    assert Pass(racks(drawn, gb_per_s=0.0), [half, whole]).leaves == {0: 3, 1: 2}
    plan = racks(drawn, gb_per_s=0.0).planner.plan(half, following=Following.from_gangs([whole]))
    assert isinstance(plan, GangPlan)
    assert plan.choice_note == "place chosen for the gang that follows: 1 more will fit"


def test_gangs_that_usually_come_weigh_less_than_those_that_wait():
    def price(waiting: int) -> int:
        capacity = FreeCapacity.from_leaves(LeafStates((8,)), [(((8, 1), 3),)])
        follow = [GangDemand(0, 4, ((range(1),),))]
        return Forecast(capacity, follow, waiting).predict_leaves(capacity, 1).price

    assert price(1) > price(0) > 1


def test_a_long_queue_is_looked_at_again_as_gangs_have_had_their_turns():
    cluster = racks({"s": {"a": [8] * 100}}, gb_per_s=0.0)
    done = Pass(cluster, [GangRequest.uniform(cards(4), 2, preferred="leaf")] * 100)
    assert len(done.leaves) == 100
    assert [len(done.seen[f"{number:03d}"].order) for number in (0, 30, 50)] == [48, 48, 48]
    assert [done.seen[f"{number:03d}"].expected for number in (0, 30, 50, 67, 99)] == [0, 0, 0, 0, 32]


# --- the capacity ------------------------------------------------------------------------------------------


def test_pods_are_placed_on_the_fewest_nodes_or_in_the_smallest_holes():
    leaf_states = LeafStates((8, 4))
    leaf = leaf_states.number_state((((4, 0, 1), 2), ((8, 1, 2), 2)))
    assert (leaf_states.room[0][leaf], leaf_states.room[1][leaf]) == (2, 6)
    few = leaf_states.place_pods(leaf, 1, 2, tight=False)
    tight = leaf_states.place_pods(leaf, 1, 2, tight=True)
    assert (leaf_states.room[0][few], leaf_states.room[0][tight]) == (1, 2)
    assert leaf_states.room[1][few] == leaf_states.room[1][tight] == 4


def test_a_board_that_is_placed_on_leaves_the_other_as_it_was():
    leaf_states = LeafStates((8,))
    capacity = FreeCapacity.from_leaves(leaf_states, [(((8, 1), 3),), (((8, 1), 2),)])
    after = capacity.copy_with_pods(0, ((0, 2),), tight=True)
    assert (capacity.room, after.room) == ([[3, 2]], [[1, 2]])


def test_quick_splits_leave_the_least():
    assert split_over_leaves([9, 7, 5, 3], range(4), 12) == ((0, 9), (3, 3))
    assert split_over_leaves([9, 7, 5, 2], range(4), 12) == ((1, 7), (2, 5))
    assert split_over_leaves([9, 7, 5, 3], range(4), 6) == ((1, 6),)
    assert split_over_leaves([2, 2, 2], range(3), 5) == ((0, 2), (1, 2), (2, 1))
    assert split_over_leaves([2, 2], range(2), 5) is None


def test_sets_of_leaves_hold_the_pods_and_differ_in_their_rooms():
    found = find_leaf_sets([9, 7, 7, 5, 3], range(5), 12, 2, 40)
    assert found == [[0, 1], [0, 3], [0, 4], [1, 2], [1, 3]]
    assert len(find_leaf_sets([9, 7, 7, 5, 3], range(5), 12, 2, 2)) == 2


def test_what_is_too_much_stays_in_one_leaf():
    assert split_over_set([9, 7], [0, 1], 12) == [((0, 5), (1, 7)), ((0, 9), (1, 3))]
    assert split_over_set([9, 3], [0, 1], 12) == [((0, 9), (1, 3))]
