"""Scores, strategies, refusals: on fleets small enough to know the right answer."""

import dataclasses

import numpy as np
import pytest
from tests.support.machines import reference

from kgwe import errors
from kgwe.model.gpu import catalog
from kgwe.model.gpu.mig import parse_placement
from kgwe.model.gpu.topology import Slot, Wiring
from kgwe.placement.fleet.node import Gpus, Node, Preference, Request, Shape
from kgwe.placement.fleet.snapshot import Grant, Snapshot
from kgwe.placement.pod.engine import Decision, Engine
from kgwe.placement.pod.fit import Fitter
from kgwe.placement.pod.fit_status import FitStatus
from kgwe.placement.pod.ranking import ALIASES, Strategy, parse_strategy
from kgwe.placement.pod.score import Weights
from kgwe.placement.pod.shortage import Shortage
from kgwe.placement.refusal import Reason, Refusal

H100 = Shape(reference.nvswitch(8), "NVIDIA-H100-80GB-HBM3", 81559, "Hopper")
A100 = Shape(reference.nvswitch(8, links=12, version=3), "NVIDIA-A100-SXM4-80GB", 81920, "Ampere")
L40S = Shape(reference.pcie_pairs(8), "NVIDIA-L40S", 46068, "Ada")
UNKNOWN = Shape(Wiring(tuple(Slot(f"b{i}") for i in range(8))), "NVIDIA-L40S", 46068, "Ada")
GIB = 2**30


def node(name, shape=H100, **more):
    return Node(name, shape, 96_000, 1024 * GIB, **more)


def fleet(*listed):
    return Snapshot.from_nodes(listed)


def decide(engine, request, **more) -> Decision:
    answer = engine.decide(request, **more)
    assert isinstance(answer, Decision), answer
    return answer


def refuse(engine, request) -> Refusal:
    answer = engine.decide(request)
    assert isinstance(answer, Refusal), answer
    return answer


# --- score ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("preference", "shape", "expected"),
    [
        (Preference.NONE, H100, 60.0),
        (Preference.NVLINK_OPTIMAL, H100, 100.0),
        (Preference.NVLINK_REQUIRED, H100, 100.0),
        # 600 of 900 GB/s, and every link is NVLink: 50 + 50 * (33.3 + 20 + 10) / 80.
        (Preference.NVLINK_OPTIMAL, A100, 89.583),
        (Preference.NVLINK_OPTIMAL, UNKNOWN, 50.0),
    ],
)
def test_eight_cards_score_by_their_wiring(preference, shape, expected):
    engine = Engine(fleet(node("other", ready=False), node("this", shape)))
    answer = decide(engine, Request(Gpus(count=8), preference=preference))
    assert answer.score.topology == pytest.approx(expected, abs=1e-3)
    assert (answer.score.resource, answer.score.balance) == (100.0, 100.0)


def test_the_best_wiring_of_each_preference_reaches_the_top_of_its_range():
    engine = Engine(fleet(node("n")))
    tops = {Preference.SAME_NUMA: 4, Preference.SAME_PCIE_SWITCH: 2}
    found = {
        preference: max(engine.scorer._topology_points(count, preference).points.tolist())
        for preference, count in tops.items()
    }
    assert found == {Preference.SAME_NUMA: 90.0, Preference.SAME_PCIE_SWITCH: 80.0}


def test_unknown_wiring_never_beats_wiring_known_to_be_bad():
    snapshot = fleet(node("unknown", UNKNOWN), node("pcie", L40S))
    for count in (2, 4, 8):
        answer = decide(Engine(snapshot), Request(Gpus(count=count), preference=Preference.NVLINK_OPTIMAL))
        assert answer.name == "pcie"


def test_used_nodes_are_filled_before_empty_ones():
    snapshot = fleet(node("empty"), node("used"))
    snapshot.commit(Grant(1, gpus=0b1111))
    assert decide(Engine(snapshot), Request(Gpus(count=4))).name == "used"


def test_cpu_left_behind_lowers_the_balance_and_spare_cpu_does_not():
    snapshot = fleet(node("starved"), node("rich"))
    snapshot.commit(Grant(0, cpu_milli=88_000, gpus=0b1))
    snapshot.commit(Grant(1, gpus=0b1))
    engine = Engine(snapshot)
    request = Request(Gpus(count=1), cpu_milli=1_000)
    parts = engine.scorer.score_parts(request, np.arange(2))
    # 6 of 8 cards are left, and 7 of 96 cores.
    assert parts.balance.tolist() == pytest.approx([100 * (1 - (6 / 8 - 7 / 96)), 100.0])
    assert decide(engine, request).name == "rich"


def test_work_without_gpus_stays_off_the_gpus():
    cpu_node = Node("cpu", Shape(Wiring(()), ""), 96_000, 1024 * GIB)
    engine = Engine(fleet(node("gpu"), cpu_node))
    assert decide(engine, Request(Gpus(), cpu_milli=32_000)).name == "cpu"


@pytest.mark.parametrize("weights", [(40, 35, 24), (50, 60, -10), (100.1, 0, 0), (float("nan"), 50, 50)])
def test_weights_that_do_not_add_up_to_100_are_refused(weights):
    with pytest.raises(errors.Permanent, match="together they must be 100"):
        Weights(*weights)


def test_weights_shift_the_choice():
    snapshot = fleet(node("full", L40S), node("fast", H100))
    snapshot.commit(Grant(0, gpus=0b1111))
    request = Request(Gpus(count=4), preference=Preference.NVLINK_OPTIMAL)
    assert decide(Engine(snapshot, Weights(100, 0, 0)), request).name == "fast"
    assert decide(Engine(snapshot, Weights(0, 100, 0)), request).name == "full"


def test_a_hint_decides_between_equals_and_is_bounded():
    engine = Engine(fleet(node("a"), node("b")))
    answer = decide(engine, Request(Gpus(count=2)), hint=np.array([0.0, 500.0]))
    assert (answer.name, answer.score.hint) == ("b", 10.0)
    assert decide(engine, Request(Gpus(count=2)), hint=np.array([float("nan"), -1.0])).name == "a"


# --- strategies -----------------------------------------------------------------------------------------


def mixed():
    snapshot = fleet(
        node("h100", price_micro_per_hour=80_000_000),
        node("used", L40S, price_micro_per_hour=8_000_000),
        node("spot", L40S, spot=True),
        node("small", dataclasses.replace(L40S, wiring=reference.pcie_pairs(4))),
    )
    snapshot.commit(Grant(1, gpus=0b111111))
    return snapshot


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        (Strategy.SCORE, "used"),
        (Strategy.PACK, "used"),
        (Strategy.SPREAD, "h100"),
        (Strategy.LEAST_LOADED, "h100"),
        (Strategy.COST_OPTIMIZED, "used"),
    ],
)
def test_each_strategy_has_its_own_favourite(strategy, expected):
    assert decide(Engine(mixed()), Request(Gpus(count=2)), strategy=strategy).name == expected


def test_without_a_price_spot_comes_first_but_after_any_known_price():
    snapshot = mixed()
    engine = Engine(snapshot, strategy=Strategy.COST_OPTIMIZED)
    order = engine.list_best_nodes(Request(Gpus(count=1)), 10)
    assert [snapshot.nodes[each].name for each in order] == ["used", "h100", "spot", "small"]


def test_random_is_repeatable_reaches_every_node_and_needs_a_source():
    engine = Engine(mixed(), strategy=Strategy.RANDOM)
    request = Request(Gpus(count=1))
    drawn = [decide(engine, request, rng=np.random.default_rng(seed)).name for seed in range(40)]
    assert drawn == [decide(engine, request, rng=np.random.default_rng(seed)).name for seed in range(40)]
    assert set(drawn) == {"h100", "used", "spot", "small"}
    with pytest.raises(errors.InvariantBroken, match="needs a source of randomness"):
        engine.decide(request)


def test_strategies_are_found_by_name_and_alias():
    assert [parse_strategy(name) for name in ("pack", *ALIASES)] == [Strategy.PACK, *ALIASES.values()]
    with pytest.raises(errors.Permanent, match="the strategies are score, pack"):
        parse_strategy("fastest")


def test_equal_nodes_are_taken_in_their_order():
    engine = Engine(fleet(*(node(f"n{i}") for i in range(5))))
    assert decide(engine, Request(Gpus(count=8))).node == 0
    assert engine.list_best_nodes(Request(Gpus(count=8)), 3) == [0, 1, 2]


# --- islands and shares ---------------------------------------------------------------------------------


def test_one_card_goes_where_an_island_is_already_broken_even_to_an_emptier_node():
    snapshot = fleet(node("four left", H100), node("odd one", H100))
    snapshot.commit(Grant(0, gpus=0b00001111))
    snapshot.commit(Grant(1, gpus=0b00000001))
    answer = decide(Engine(snapshot), Request(Gpus(count=1)))
    assert (answer.name, answer.grant.gpus) == ("odd one", 0b10)


def test_a_share_goes_to_the_tightest_card_that_holds_it():
    snapshot = fleet(node("n"))
    snapshot.commit(Grant(0, share=(3, 300, 0)))
    snapshot.commit(Grant(0, share=(5, 600, 0)))
    engine = Engine(snapshot)
    assert decide(engine, Request(Gpus(milli=400))).grant.share == (5, 400, 0)
    assert decide(engine, Request(Gpus(milli=500))).grant.share == (3, 500, 0)


def test_a_share_opens_a_whole_card_last_and_then_one_that_breaks_least():
    snapshot = fleet(node("n"))
    snapshot.commit(Grant(0, gpus=0b00000001))
    assert decide(Engine(snapshot), Request(Gpus(milli=400))).grant.share == (1, 400, 0)


def test_slices_come_from_the_card_with_fewest_left():
    model = catalog.find_model("A100-SXM4-80GB")
    assert model.geometry is not None
    cut = tuple(parse_placement(model.geometry, text) for text in ("2g.20gb@0", "2g.20gb@2", "3g.40gb@4"))
    shape = dataclasses.replace(A100, geometry=model.geometry)
    snapshot = fleet(node("n", shape, cut={0: cut, 1: cut}))
    snapshot.commit(Grant(0, slices=((1, cut[2]),)))
    answer = decide(Engine(snapshot), Request(Gpus(profile="2g.20gb", slices=3)))
    assert [(card, each.start) for card, each in answer.grant.slices] == [(1, 0), (1, 2), (0, 0)]


# --- refusals -------------------------------------------------------------------------------------------


def test_a_refusal_counts_reasons_and_names_the_nearest_node():
    snapshot = fleet(node("busy"), node("busier"), node("sick", ready=False), node("slow", L40S))
    snapshot.commit(Grant(0, gpus=0b11))
    snapshot.commit(Grant(1, gpus=0b1111))
    answer = refuse(Engine(snapshot), Request(Gpus(count=8), preference=Preference.NVLINK_REQUIRED))
    assert answer.counts == {"GPUsTaken": 2, "NodeNotReady": 1, "WiringNotMet": 1}
    assert answer.code is Reason.NO_ROOM
    assert answer.possible
    assert isinstance(answer.detail, Shortage)
    assert (answer.detail.name, answer.detail.gpus) == ("busy", 2)
    assert answer.message == (
        "0/4 nodes available for 8 GPUs: 2 insufficient GPUs, 1 not ready, 1 without free GPUs connected as required."
        " Best: busy (6 free)."
    )


def test_a_refusal_says_when_waiting_does_not_help():
    answer = refuse(Engine(fleet(node("n"))), Request(Gpus(count=9), cpu_milli=200_000))
    assert not answer.possible
    assert answer.message.endswith(" Best: n (8 free; 96 cores free, 200 cores requested).")


def test_a_refusal_is_taken_back_when_room_appears():
    snapshot = fleet(node("n"))
    undo = snapshot.commit(Grant(0, gpus=0xFF))
    engine = Engine(snapshot)
    assert refuse(engine, Request(Gpus(count=8))) is refuse(engine, Request(Gpus(count=8)))
    undo()
    assert decide(engine, Request(Gpus(count=8))).fitting == 1


def test_no_nodes_is_a_refusal_too():
    assert refuse(Engine(fleet()), Request(Gpus(count=1))).message == "0/0 nodes available for 1 GPU."
    assert Fitter(fleet()).count_pods(Request(Gpus(count=1))).tolist() == []


def test_reasons_are_told_apart():
    assert len({verdict.reason for verdict in FitStatus}) == len(FitStatus)


def test_a_decision_knows_its_bandwidth():
    engine = Engine(fleet(node("n")))
    assert decide(engine, Request(Gpus(count=4))).gb_per_s == 900.0
    assert decide(engine, Request(Gpus(count=1))).gb_per_s is None


def test_many_requests_do_not_fill_the_memory():
    engine = Engine(fleet(node("n")))
    for cpu in range(3_000):
        engine.decide(Request(Gpus(count=1), cpu_milli=cpu))
    assert len(engine._views) <= 128
    assert len(engine.fitter._when_empty) <= 2048
