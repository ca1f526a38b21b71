"""Nodes with more cards than sets can be tabled for: they are used by number, and their wiring is not known."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.builders.racks import H100, cards, placed
from tests.support.machines import reference

from kgwe.model.network import domains
from kgwe.model.network.domains import UNKNOWN_GB_PER_S, Place
from kgwe.placement.fleet.node import Gpus, Node, Preference, Request, Shape
from kgwe.placement.fleet.snapshot import Grant, Snapshot, list_gpus
from kgwe.placement.planning.gang_planner import GangPlanner, GangRequest
from kgwe.placement.pod.engine import Decision, Engine
from kgwe.placement.pod.fit import Fitter
from kgwe.placement.pod.fit_status import FitStatus
from kgwe.placement.refusal import Refusal

WIDE = Shape(reference.nvswitch(20), "H100-SXM5-80GB", 81_559, "Hopper")


def node(name, shape=WIDE, **more):
    return Node(name, shape, 400_000, 2**42, **more)


@pytest.fixture
def engine():
    return Engine(Snapshot.from_nodes([node("narrow", H100), node("wide")]))


def test_a_pod_for_more_cards_than_others_have_goes_there(engine):
    answer = engine.decide(cards(12))
    assert isinstance(answer, Decision)
    assert (answer.name, list_gpus(answer.grant.gpus)) == ("wide", list(range(12)))
    assert answer.gb_per_s == UNKNOWN_GB_PER_S
    undo = engine.snapshot.commit(answer.grant)
    second = engine.decide(cards(9))
    assert isinstance(second, Refusal)
    assert second.counts == {"TooFewGPUs": 1, "GPUsTaken": 1}
    undo()
    assert engine.decide(cards(12)) == answer


@pytest.mark.parametrize(
    "asked",
    [
        {"preference": Preference.NVLINK_REQUIRED},
        {"preference": Preference.SAME_NUMA},
        {"preference": Preference.SAME_PCIE_SWITCH},
        {"min_bandwidth_gbps": 1.0},
    ],
)
def test_wiring_that_is_not_known_meets_no_requirement(engine, asked):
    assert engine.check_nodes(cards(2, **asked))[1] == FitStatus.WIRING
    assert engine.check_nodes(cards(1, **asked))[1] == FitStatus.FITS, "one card has no links"


def test_and_never_beats_wiring_that_is_known(engine):
    for preference in (Preference.NVLINK_OPTIMAL, Preference.NONE):
        known, unknown = engine.scorer.score_parts(cards(4, preference=preference), np.arange(2)).topology
        assert known >= unknown
        assert known > unknown or preference is Preference.NONE


def test_shares_and_whole_cards_live_side_by_side(engine):
    snapshot = engine.snapshot
    snapshot.commit(Grant(0, gpus=H100.all_gpus))
    for _ in range(3):
        answer = engine.decide(Request(Gpus(milli=500, share_mib=1000)))
        assert isinstance(answer, Decision)
        snapshot.commit(answer.grant)
    assert [card for card in range(20) if snapshot.milli[1, card] < 1000] == [0, 1]
    assert engine.fitter.count_pods(cards(3)).tolist() == [0, 6]


def test_a_gang_on_such_nodes_has_a_ring_nobody_knows():
    snapshot = Snapshot.from_nodes([node("w1"), node("w2")])
    tree = domains.build_tree([Place("w1", ("a",), gb_per_s=50.0), Place("w2", ("a",), gb_per_s=50.0)], ("leaf",))
    plan = placed(GangPlanner(Fitter(snapshot), tree), GangRequest.uniform(cards(10), 4))
    assert (len(plan.nodes), plan.ring.gb_per_s) == (2, UNKNOWN_GB_PER_S)
    snapshot.commit_all(plan.grants)
    assert snapshot.free.tolist() == [0, 0]


def test_of_more_cards_than_a_mask_has_bits_the_first_are_used():
    shape = dataclasses.replace(WIDE, wiring=reference.nvswitch(80))
    fitter = Fitter(Snapshot.from_nodes([node("huge", shape), node("narrow", H100)]))
    assert fitter.count_pods(cards(1)).tolist() == [63, 8]
    assert fitter.check_nodes(cards(64)).tolist() == [FitStatus.TOO_FEW_GPUS] * 2


@given(sick=st.integers(0, 2**20 - 1), taken=st.integers(0, 2**20 - 1), count=st.integers(1, 21))
def test_every_free_card_is_counted_and_given_once(sick, taken, count):
    snapshot = Snapshot.from_nodes([node("wide", healthy=~sick)])
    held = taken & ~sick
    if held:
        snapshot.commit(Grant(0, gpus=held))
    fitter, free = Fitter(snapshot), 2**20 - 1 & ~sick & ~taken
    given_cards = []
    while (grant := fitter.find_grant(cards(count), 0)) is not None:
        assert grant.gpus.bit_count() == count
        assert not grant.gpus & ~free
        free &= ~grant.gpus
        given_cards.append(grant)
        snapshot.commit(grant)
    assert free.bit_count() < count
    for each in given_cards:
        snapshot.release(each)
    assert fitter.count_pods(cards(count)).tolist() == [len(given_cards)]
