"""What is done after a failure: near places, as few moves as will do, all or none.

Pictures: leaves side by side, one row per node, one letter per card, dots are free, x is dead.
"""

import dataclasses

import pytest
from tests.support.builders.plans import Fleet, state, whole
from tests.support.machines.reference import nvswitch

from kgwe.model.network.domains import Place, build_tree
from kgwe.placement.disruption.recovery import Failure, Outcome, plan_recovery
from kgwe.placement.disruption.running import Member, Repair, Running
from kgwe.placement.fleet.node import Gpus, Node, Request, Shape
from kgwe.placement.fleet.snapshot import Grant, Snapshot
from kgwe.placement.gang.request import GangRequest, Hardware, Segment
from kgwe.placement.pod.fit import Fitter


def recover(fleet, *, nodes="", cards=None, domains=()):
    before = state(fleet.snapshot)
    made = plan_recovery(
        fleet.fitter, fleet.tree, fleet.running, Failure(frozenset(nodes), cards or {}, frozenset(domains))
    )
    assert state(fleet.snapshot) == before, "planning leaves nothing behind"
    return made


def moved(repaired):
    return {move.member: (move.source, move.node, move.level) for move in repaired.moves}


def held(fleet, number):
    """What the first member of that workload holds."""
    return fleet.running[number].members[0].grant


def test_what_is_not_hit_is_not_touched():
    fleet = Fleet("ab")
    fleet.run("w", "a", 2)
    assert recover(fleet, nodes="b").repairs == ()


def test_a_lost_member_goes_to_its_own_leaf():
    """leaf-0: a gggg  b xggg  c ....     leaf-1: d ....  The healthy member stays."""
    fleet = Fleet("abc d")
    fleet.run("g", "ab", 4, gang=GangRequest.uniform(whole(4), 2))
    (repaired,) = recover(fleet, nodes="b").repairs
    assert repaired.outcome is Outcome.REPLACED
    assert moved(repaired) == {"g-1": ("b", "c", "leaf")}
    assert str(repaired) == "g: Replaced; g-1 b -> c (leaf)"


def test_then_to_its_spine_then_anywhere():
    """Two spines of two leaves; the gang's leaf is full, then its spine too."""
    fleet = Fleet("ab cd ef gh", spines=2)
    fleet.run("g", "ab", 4)
    assert moved(recover(fleet, nodes="b").repairs[0])["g-1"] == ("b", "c", "spine")
    fleet.run("full", "cd", 4)
    assert moved(recover(fleet, nodes="b").repairs[0])["g-1"] == ("b", "e", "cluster")


def test_of_places_equally_near_the_one_that_can_be_relied_on():
    """leaf-0: a gggg  b xggg  c ....  d ....     leaf-1: e ....  Nearness is worth more."""
    fleet = Fleet("abcd e")
    fleet.run("g", "ab", 4, gang=GangRequest.uniform(whole(4), 2))
    fleet.snapshot.reliability[2] = 0.4
    assert moved(recover(fleet, nodes="b").repairs[0]) == {"g-1": ("b", "d", "leaf")}
    fleet.snapshot.reliability[3] = 0.1
    assert moved(recover(fleet, nodes="b").repairs[0]) == {"g-1": ("b", "c", "leaf")}


def test_members_that_have_to_leave_their_leaf_go_to_one_other():
    """leaf-0: a gggg  b xggg  c xggg     leaf-1: d ....     leaf-2: e ....  f ....  g ....     leaf-3: h ....  i ....

    All are in one spine. Two fit leaf-3, which is the tightest that holds both.
    """
    fleet = Fleet("abc d efg hi")
    fleet.run("g", "abc", 4, gang=GangRequest.uniform(whole(4), 3))
    assert {node for _, node, _ in moved(recover(fleet, nodes="bc").repairs[0]).values()} == {"h", "i"}


def test_a_share_of_a_card_that_failed_is_not_replaced_by_another_of_the_same():
    """Card 0: half of it is w's, half somebody's who is not moved."""
    fleet = Fleet("a")
    share = (0, 500, 0)
    fleet.snapshot.commit_all([Grant(0, share=share), Grant(0, share=share)])
    member = Member("w-0", Request(Gpus(milli=500)), Grant(0, share=share))
    fleet.running.append(Running("w", (member,)))
    (repaired,) = recover(fleet, cards={"a": 1}).repairs
    assert repaired.moves[0].grant.share == (1, 500, 0)


def test_a_dead_leaf_is_left_for_the_spine():
    fleet = Fleet("ab cd ef", spines=1)
    fleet.run("g", "ab", 4)
    (repaired,) = recover(fleet, domains=[("leaf", "leaf-0")]).repairs
    assert moved(repaired) == {"g-0": ("a", "c", "spine"), "g-1": ("b", "d", "spine")}


def test_nobody_who_must_go_far_takes_the_place_of_one_who_need_not():
    """Both lose a member; leaf-0 has no room, leaf-1 one place, leaf-2 many: h stays in leaf-1, g goes to leaf-2."""
    fleet = Fleet("ab cd ef")
    fleet.run("g", "abc", 4)
    (repaired,) = recover(fleet, nodes="ac").repairs
    assert moved(repaired) == {"g-0": ("a", "e", "spine"), "g-2": ("c", "d", "leaf")}


def test_a_required_level_is_never_left():
    """The leaf is full: with nothing healthy to keep apart from, the whole gang goes to the other leaf.

    leaf-0: a gggg  b gggg  c ffff     leaf-1: d ....  e ....     leaf-2: f ....
    """
    fleet = Fleet("abc de f")
    fleet.run("g", "ab", 4, gang=GangRequest.uniform(whole(4), 2, required="leaf"))
    fleet.run("f", "c", 4)
    (repaired,) = recover(fleet, nodes="b").repairs
    assert repaired.outcome is Outcome.MOVED
    assert {move.node for move in repaired.moves} == {"d", "e"}
    assert [move.was_healthy for move in repaired.moves] == [True, False]


def test_where_no_domain_holds_it_a_gang_waits_and_nothing_moves():
    fleet = Fleet("abc d e")
    fleet.run("g", "ab", 4, gang=GangRequest.uniform(whole(4), 2, required="leaf"))
    fleet.run("f", "c", 4)
    made = recover(fleet, nodes="b")
    assert made.repairs[0].outcome is Outcome.WAITS
    assert made.moves == ()
    assert [repaired.workload for repaired in made.waiting] == ["g"]
    assert str(made.repairs[0]) == "g: WaitsForRoom; 1 of 1 lost members have no place"


def test_all_or_none():
    """Two are lost and one place is left: neither is placed."""
    fleet = Fleet("abc")
    fleet.run("g", "ab", 4)
    assert recover(fleet, nodes="ab").moves == ()


def test_an_elastic_gang_goes_on_with_fewer():
    fleet = Fleet("abcd")
    fleet.run("g", "abc", 4, min_members=2)
    fleet.run("f", "d", 4)
    (repaired,) = recover(fleet, nodes="c").repairs
    assert (repaired.outcome, repaired.missing, repaired.moves) == (Outcome.SHRUNK, 1, ())


def test_an_elastic_gang_below_its_least_takes_what_it_needs():
    fleet = Fleet("abcd")
    fleet.run("g", "abc", 4, min_members=2)
    (repaired,) = recover(fleet, nodes="bc").repairs
    assert repaired.outcome is Outcome.SHRUNK
    assert moved(repaired) == {"g-1": ("b", "d", "leaf")}


def test_pods_that_do_not_know_of_each_other_are_replaced_one_by_one():
    fleet = Fleet("abc")
    fleet.run("web", "ab", 4, min_members=0)
    (repaired,) = recover(fleet, nodes="ab").repairs
    assert (repaired.outcome, repaired.missing) == (Outcome.SHRUNK, 1)
    assert len(repaired.moves) == 1


def test_failed_cards_hit_only_who_holds_them():
    """volcano#4527: six cards of a are gone; the job of eight runs on b, and the two good ones stay in use.

    a  xxxxxxoo     the job of 8 cards goes to b, whole; o can stay
    b  ........
    """
    fleet = Fleet("ab", cards=8)
    fleet.run("six", "a", 6)
    fleet.run("two", "a", 2)
    lost = held(fleet, 0).gpus
    made = recover(fleet, cards={"a": lost})
    (repaired,) = made.repairs
    assert moved(repaired) == {"six-0": ("a", "b", "leaf")}


def test_failed_cards_are_given_to_nobody():
    """A node with one dead card and three good ones that are free: 4 do not fit there, 3 do."""
    fleet = Fleet("ab")
    fleet.run("w", "a", 1)
    dead = held(fleet, 0).gpus
    (repaired,) = recover(fleet, cards={"a": dead}).repairs
    assert repaired.moves[0].node == "a"
    assert not repaired.moves[0].grant.gpus & dead
    fleet = Fleet("a")
    fleet.run("w", "a", 4)
    assert recover(fleet, cards={"a": 1}).moves == ()


def test_a_shared_card_takes_all_its_sharers_down():
    fleet = Fleet("a", cards=2)
    for number in range(2):
        fleet.run(f"half-{number}", "a", request=Request(Gpus(milli=500)))
    card = held(fleet, 0).share[0]
    assert held(fleet, 1).share[0] == card
    made = recover(fleet, cards={"a": 1 << card})
    assert {move.grant.share[0] for move in made.moves} == {1 - card}


def test_several_failures_are_one_question():
    """kueue PR#5621: a and b fail together; work of a must not be planned onto b."""
    fleet = Fleet("abc")
    fleet.run("w", "a", 4)
    (repaired,) = recover(fleet, nodes="ab").repairs
    assert moved(repaired) == {"w-0": ("a", "c", "leaf")}


def test_important_work_is_served_first():
    fleet = Fleet("abc")
    fleet.run("low", "a", 4, priority=0)
    fleet.run("high", "b", 4, priority=5)
    made = recover(fleet, nodes="ab")
    assert [(repaired.workload, repaired.outcome) for repaired in made.repairs] == [
        ("high", Outcome.REPLACED),
        ("low", Outcome.WAITS),
    ]


def test_a_gang_that_has_waited_comes_first():
    """volcano#5805: the older damage is repaired before the fresh one, however young the gang is."""
    fleet = Fleet("abc")
    fleet.run("fresh", "a", 4, started_at_s=0.0)
    old = fleet.run("waits", "b", 4, started_at_s=9000.0)
    lost = Member("waits-1", whole(4), None)
    fleet.running[1] = type(old)(old.name, (*old.members, lost), started_at_s=9000.0)
    made = recover(fleet, nodes="a")
    assert [(repaired.workload, repaired.outcome) for repaired in made.repairs] == [
        ("waits", Outcome.REPLACED),
        ("fresh", Outcome.WAITS),
    ]
    assert moved(made.repairs[0]) == {"waits-1": ("", "c", "leaf")}


@pytest.mark.parametrize(
    ("policy", "outcome", "restarts"),
    [
        (Repair.REPLACE_FAILED, Outcome.REPLACED, ()),
        (Repair.RESTART_GANG, Outcome.REPLACED, ("g-0",)),
        (Repair.NONE, Outcome.LEFT_ALONE, ()),
    ],
)
def test_every_policy(policy, outcome, restarts):
    fleet = Fleet("abc")
    fleet.run("g", "ab", 4, repair=policy)
    (repaired,) = recover(fleet, nodes="b").repairs
    assert (repaired.outcome, repaired.restarts) == (outcome, restarts)


def test_one_healthy_member_moves_when_that_is_enough():
    """Members of 4 and 1 cards in a required leaf: the small one makes way, the middle one stays.

    leaf-0: a xxxx   b 1...   c 22ff     leaf-1: d ....
    """
    fleet = Fleet("abc d")
    fleet.run("g", "a", 4, gang=GangRequest.uniform(whole(4), 1, required="leaf"))
    small, middle = fleet.run("x", "b", 1).members, fleet.run("y", "c", 2).members
    gang = fleet.running[0]
    fleet.running = [type(gang)("g", (*gang.members, *small, *middle), gang=gang.gang)]
    (repaired,) = recover(fleet, nodes="a").repairs
    assert repaired.outcome is Outcome.MOVED
    assert moved(repaired) == {"g-0": ("a", "b", "leaf"), "x-0": ("b", "c", "leaf")}


def test_a_segment_stays_together():
    """Segments of two ranks on a node each: the lost rank's mate has to come along to where both fit.

    a 00..   b 1111   c ....      a loses the card of rank 0; two cards are left there
    """
    fleet = Fleet("abc")
    gang = GangRequest.uniform(whole(2), 4, segments=(Segment(2, "node"),))
    fleet.run("g", "aabb", 2, gang=gang)
    lost = held(fleet, 0).gpus
    (repaired,) = recover(fleet, cards={"a": lost}).repairs
    assert moved(repaired) == {"g-0": ("a", "c", "leaf"), "g-1": ("a", "c", "leaf")}


def test_limits_of_the_gang_hold():
    fleet = Fleet("abc def", cards=4)
    fleet.run("g", "abd", 1, gang=GangRequest.uniform(whole(1), 3, max_pods_per_node=1, max_nodes_per_leaf=2))
    (repaired,) = recover(fleet, nodes="d").repairs
    assert moved(repaired) == {"g-2": ("d", "e", "leaf")}
    (repaired,) = recover(fleet, domains=[("leaf", "leaf-1")]).repairs
    assert repaired.outcome is Outcome.WAITS


def test_the_limit_of_gpus_per_leaf_holds():
    fleet = Fleet("abc def", cards=4)
    fleet.run("g", "abd", 2, gang=GangRequest.uniform(whole(2), 3, max_gpus_per_leaf=4))
    (repaired,) = recover(fleet, nodes="d").repairs
    assert moved(repaired) == {"g-2": ("d", "e", "leaf")}
    (repaired,) = recover(fleet, domains=[("leaf", "leaf-1")]).repairs
    assert repaired.outcome is Outcome.WAITS


def test_cards_of_one_model_stay_of_one_model():
    """a, b and d are H100 nodes, c is not; d is full of other work."""
    shape = Shape(nvswitch(4), "H100", 81_920)
    other = Shape(nvswitch(4), "A100", 81_920)
    nodes = [Node(name, other if name == "c" else shape, 64_000, 2**40) for name in "abcd"]
    fitter = Fitter(Snapshot.from_nodes(nodes))
    places = [Grant(node, gpus=0b1111) for node in (0, 1, 3)]
    fitter.snapshot.commit_all(places)
    gang = GangRequest.uniform(whole(4), 2, hardware=Hardware.SAME)
    members = tuple(Member(f"g-{i}", whole(4), place) for i, place in enumerate(places[:2]))
    failure = Failure(frozenset({"b"}))
    (repaired,) = plan_recovery(fitter, None, [Running("g", members, gang=gang)], failure).repairs
    assert repaired.outcome is Outcome.WAITS
    mixed = Running("g", members, gang=GangRequest.uniform(whole(4), 2))
    (repaired,) = plan_recovery(fitter, None, [mixed], failure).repairs
    assert moved(repaired) == {"g-1": ("b", "c", "cluster")}


def test_inside_an_nvlink_domain_no_network_is_asked_for():
    fleet = Fleet("abc", cards=4)
    places = [Place(name, ("leaf-0", "spine-0"), nvlink="x") for name in "abc"]
    fleet.tree = build_tree(places, ("leaf", "spine"))
    fleet.run("g", "ab", 4, gang=GangRequest.uniform(whole(4), 2, min_network_gb_per_s=60.0))
    (repaired,) = recover(fleet, nodes="b").repairs
    assert repaired.outcome is Outcome.REPLACED


def test_a_slow_network_is_not_accepted():
    fleet = Fleet("ab c")
    fleet.run("g", "ab", 4, gang=GangRequest.uniform(whole(4), 2, min_network_gb_per_s=60.0))
    assert recover(fleet, nodes="b").repairs[0].outcome is Outcome.WAITS
    fleet.running[0] = type(fleet.running[0])(
        "g", fleet.running[0].members, gang=GangRequest.uniform(whole(4), 2, min_network_gb_per_s=40.0)
    )
    assert recover(fleet, nodes="b").repairs[0].outcome is Outcome.REPLACED


def test_a_member_that_must_leave_goes_though_nothing_is_said_to_have_failed():
    fleet = Fleet("abc")
    fleet.run("g", "ab", 4)
    first, second = fleet.running[0].members
    fleet.running[0] = dataclasses.replace(fleet.running[0], members=(first, dataclasses.replace(second, failed=True)))
    (repaired,) = recover(fleet).repairs
    assert repaired.lost == ("g-1",)
    assert [move.member for move in repaired.moves] == ["g-1"], "the other stays"
