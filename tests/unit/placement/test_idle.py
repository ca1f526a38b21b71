"""Where idle GPU goes: one case per cause, and what the caller passes in."""

from __future__ import annotations

from tests import machines
from tests.racks import cards, racks
from tests.small_fleet import CUT, GEOMETRY, SHAPE

from kgwe.model import domains, mig
from kgwe.placement import idle
from kgwe.placement.constraints import Constraints
from kgwe.placement.fit import Fitter
from kgwe.placement.fragmentation import Cause
from kgwe.placement.gang import GangRequest, Role
from kgwe.placement.node import Gpus, Node, Preference, Request, Shape
from kgwe.placement.snapshot import Grant, Snapshot

PLAIN = Shape(machines.pcie_pairs(4), "L4", 24_000)
GIB = 2**30


def causes(wanted, *held, node=None, **more):
    """Milli by cause on one node of four cards, for one kind of pod."""
    one = node or Node("n", PLAIN, 8_000, 64 * GIB, pods=4)
    snapshot = Snapshot.of([one])
    snapshot.commit_all(held)
    tree = domains.build([domains.Place("n", ("a",))], ("leaf",))
    found = idle.split(Fitter(snapshot), tree, [(wanted, 1)], **more)
    assert sum(found.amounts.values()) == found.milli * found.pods
    return dict(found.amounts)


def test_a_free_node_is_usable_and_a_pod_without_gpus_wants_none():
    assert causes(cards(3)) == {Cause.USABLE: 4000}
    assert causes(Request(Gpus(), 1000)) == {Cause.NO_GPU_WANTED: 4000}


def test_shares_too_small_and_cards_too_few():
    shared = Grant(0, share=(0, 700, 0))
    assert causes(Request(Gpus(milli=500)), shared) == {Cause.REMAINDER: 300, Cause.USABLE: 3000}
    assert causes(cards(4), shared) == {Cause.REMAINDER: 300, Cause.TOO_FEW_CARDS: 3000}


def test_what_the_cards_lack_beside_them():
    assert causes(cards(2, cpu_milli=9_000)) == {Cause.SHORT_OF_CPU: 4000}
    assert causes(cards(2, memory_bytes=65 * GIB)) == {Cause.SHORT_OF_MEMORY: 4000}
    assert causes(cards(2, preference=Preference.NVLINK_REQUIRED)) == {Cause.WIRING: 4000}
    full = [Grant(0, cpu_milli=1) for _ in range(4)]
    assert causes(cards(2), *full) == {Cause.TOO_MANY_PODS: 4000}


def test_what_the_node_is():
    assert causes(cards(1, model="H100")) == {Cause.WRONG_MODEL: 4000}
    assert causes(cards(1, min_memory_gb=80)) == {Cause.WRONG_MODEL: 4000}
    elsewhere = Constraints(selector=(("zone", "b"),))
    assert causes(cards(1, constraints=elsewhere)) == {Cause.NOT_ALLOWED: 4000}
    down = Node("n", PLAIN, 8_000, 64 * GIB, ready=False)
    assert causes(cards(1), node=down) == {Cause.NOT_READY: 4000}


def test_sick_cards_and_reservations_are_idle_too():
    sick = Node("n", PLAIN, 8_000, 64 * GIB, healthy=0b0111)
    kept = Grant(0, cards=0b0011)
    found = causes(cards(2), kept, Grant(0, cards=0b0100), node=sick, reserved=[kept])
    assert found == {Cause.UNHEALTHY: 1000, Cause.RESERVED: 2000}


def test_slices_cards_and_what_lies_between_slices():
    #   card 0: 3g 3g 3g 3g 2g 2g 1g .        the last of eight units is covered by nothing
    node = Node("n", SHAPE, 8_000, 64 * GIB, cut={0: CUT})
    assert causes(cards(1), node=node) == {Cause.MIG_HOLE: 125, Cause.CUT: 875, Cause.USABLE: 3000}
    small = Request(Gpus(profile="1g.10gb", slices=1))
    expected = {Cause.MIG_HOLE: 125, Cause.NOT_CUT: 3000, Cause.OTHER_SLICES: 750, Cause.USABLE: 125}
    assert causes(small, node=node) == expected
    two = Request(Gpus(profile="1g.10gb", slices=2))
    assert causes(two, node=node)[Cause.TOO_FEW_CARDS] == 125


def test_the_caller_may_say_how_much_of_a_cut_card_is_a_hole():
    one = (mig.parse_placement(GEOMETRY, "1g.10gb@6"),)
    node = Node("n", SHAPE, 8_000, 64 * GIB, cut={0: one})
    taken = Grant(0, slices=((0, one[0]),))
    found = causes(Request(Gpus(profile="1g.10gb", slices=1)), taken, node=node, holes={(0, 0): 125})
    assert found == {Cause.MIG_HOLE: 125, Cause.NOT_CUT: 3750}
    assert causes(cards(1), taken, node=node, holes={(0, 0): 10**6})[Cause.MIG_HOLE] == 875, "no more than is free"


def test_nodes_in_domains_that_do_not_hold_the_gang():
    #   a: 8 8   b: 8 4
    cluster = racks({"s": {"a": [8, 8], "b": [8, 4]}})
    gang = GangRequest.of(cards(8), 2, required="leaf")
    found = idle.split(Fitter(cluster.snapshot), cluster.tree, [(gang, 1)])
    assert found.amounts == {
        Cause.USABLE: 2 * 16_000,
        Cause.TOO_FEW_CARDS: 2 * 4_000,
        Cause.WRONG_DOMAIN: 2 * 8_000,
    }
    assert found.part(Cause.WRONG_DOMAIN) == 8_000
    roles = (Role("leader", cards(1), 1), Role("worker", cards(8), 3))
    none = idle.split(Fitter(cluster.snapshot), cluster.tree, [(GangRequest(roles, required="leaf"), 1)])
    assert Cause.USABLE not in none.amounts
