"""Small clusters on which other schedulers failed their users, with the reports they come from."""

from __future__ import annotations

from tests.support.builders.racks import cards, racks

from kgwe.placement.planning.gang_planner import GangRequest, Strategy


def test_volcano_5205_a_domain_with_room_for_all_is_not_passed_over():
    """volcano#5205: soft mode spread two anti-affine replicas over hn2 and hn3 though hn1 had both nodes free.

    #    hn1        hn2        hn3
    #    8 8        8 0        8 0
    """
    cluster = racks({"s": {"hn1-": [8, 8], "hn2-": [8, 0], "hn3-": [8, 0]}})
    plan = cluster.place(GangRequest.uniform(cards(1), 2, preferred="leaf", max_pods_per_node=1))
    assert (plan.domain, plan.nodes, plan.preferred_met) == ("hn1-", ("hn1-1", "hn1-2"), True)


def test_kueue_4474_small_pods_that_ask_for_no_nearness_fill_small_holes():
    """kueue#4474: nodes with 2, 1 and 1 free; a gang of 2 x 1 card took the 2, and 1 x 2 cards could not start.

    #    leaf a
    #    2 1 1
    """
    cluster = racks({"s": {"a": [2, 1, 1]}})
    first = cluster.place(GangRequest.uniform(cards(1), 2, strategy=Strategy.PACK))
    assert set(first.nodes) == {"a2", "a3"}
    cluster.snapshot.commit_all(first.grants)
    assert cluster.place(GangRequest.uniform(cards(2), 1)).nodes == ("a1",)


def test_scheduler_plugins_930_half_a_gang_holds_nothing():
    """scheduler-plugins#930: with one node free, one pod of a gang of two was bound.

    #    leaf a
    #    8 0      nothing, until the second node is free
    """
    cluster = racks({"s": {"a": [8, 0]}})
    gang = GangRequest.uniform(cards(8), 2)
    before = cluster.snapshot.free.tolist()
    assert cluster.refuse(gang).short == 1
    assert cluster.snapshot.free.tolist() == before
    cluster.snapshot.release(cluster.held["a2"])
    assert cluster.place(gang).nodes == ("a1", "a2")


def test_kai_2058_a_16_card_job_that_waits_though_16_cards_are_free_is_told_why():
    """KAI#2058: "16-GPU job pending though 16 GPUs are free".

    #    leaf a     leaf b
    #    4 4        4 4      16 cards, and no node with 8
    """
    refusal = racks({"s": {"a": [4, 4], "b": [4, 4]}}).refuse(GangRequest.uniform(cards(8), 2))
    assert (refusal.reason, refusal.room) == ("TooLittleRoom", 0)
    assert "Nodes: 4 insufficient GPUs." in refusal.describe()
