"""The prices of MixFit and the limit it is measured against, on mixes small enough to know the answer."""

from __future__ import annotations

import numpy as np
import pytest

from kgwe.placement.packing.fleet import Demand, Fleet, NodeSpec, Pod
from kgwe.placement.packing.policy import Mix, choose_node
from kgwe.placement.packing.prices import CpuReach, ModelRent
from kgwe.placement.packing.value import LEVELS, ShareWorth
from kgwe.sim.packing import POLICIES, limit


def share(milli: int, *, cpu: int = 1000, spec: str = "") -> Demand:
    return Demand(cpu, milli, 1, spec)


def node(name: str = "n", *, cpu: int = 64_000, cards: int = 2, model: str = "T4") -> NodeSpec:
    return NodeSpec(name, cpu, 256_000, cards, model)


class TestLimit:
    @pytest.mark.parametrize(
        ("asked", "cards"),
        [
            pytest.param({1000: 7}, 7, id="whole cards"),
            pytest.param({600: 4, 400: 4}, 4, id="perfect pairs"),
            pytest.param({600: 4, 400: 2}, 4, id="large ones alone"),
            pytest.param({510: 3}, 3, id="nothing pairs"),
            pytest.param({300: 9}, 3, id="three to a card"),
            pytest.param({470: 2, 370: 2, 160: 2}, 2, id="three sizes to the brim"),
        ],
    )
    def test_fewest_cards(self, asked, cards):
        assert limit.fewest_cards(asked) == pytest.approx(cards)

    def test_no_share_at_all_is_no_waste(self):
        assert limit.fullest_allocation({}) == 100.0

    def test_of_very_many_sizes_the_limit_is_near_and_never_too_low(self):
        # Two of these never share a card, so a card is as full as its one share.
        asked = dict.fromkeys(range(501, 1000), 1)
        assert 75.0 <= limit.fullest_allocation(asked) < 76.0
        assert limit.fullest_allocation(dict.fromkeys(range(1, 1001), 1)) == pytest.approx(100.0)


class TestShareWorth:
    def test_a_hole_nobody_can_fill_is_worth_next_to_nothing(self):
        worth = ShareWorth(Mix((share(810), share(160)), (99, 1)))
        levels = np.array([[LEVELS] * 50 + [19] * 50])
        for _ in range(50):
            worth.update(levels, coming_milli=50_000)
        assert worth.worth[19] < 15
        assert worth.worth[LEVELS] > 600

    def test_the_hole_that_matches_what_comes_loses_least(self):
        worth = ShareWorth(Mix((share(470), share(320)), (1, 1)))
        worth.update(np.full((1, 100), LEVELS), coming_milli=100_000)
        losses = worth.losses(32)
        # 320 beside 640 of others, rather than into the hole a 470 could use.
        assert losses[36] < losses[53]
        assert np.isinf(losses[31])


class TestRents:
    def test_a_model_others_cannot_do_without_is_dear(self):
        fleet = Fleet([node("a", model="T4"), node("b", model="G2"), node("c", model="G2")])
        rent = ModelRent(fleet, Mix((share(1000), share(1000, spec="T4")), (70, 30)))
        rent.update()
        assert rent.rent[0] > 0.1
        assert rent.rent[1] == rent.rent[2] == 0

    def test_no_model_is_dear_when_nobody_is_choosy(self):
        fleet = Fleet([node("a", model="T4"), node("b", model="G2")])
        rent = ModelRent(fleet, Mix((share(1000),), (1,)))
        rent.update()
        assert not rent.rent.any()

    def test_gpu_without_cpu_is_worth_nothing(self):
        usable = CpuReach(Mix((share(1000, cpu=8000),), (1,))).usable_worth(
            np.array([1000.0, 1000.0, 1000.0]), np.array([0, 4000, 8000]), 1000.0
        )
        assert usable[0] == 0
        assert 0 < usable[1] < usable[2] == 1000


class TestChoices:
    """MixFit, one decision at a time."""

    def choose(self, nodes: list[NodeSpec], used: list[tuple[int, Demand]], mix: Mix, demand: Demand) -> int | None:
        fleet = Fleet(nodes)
        for where, taken in used:
            fleet.place(Pod(taken, 0), where, fleet.find_tightest_gpus(where, taken))
        policy = POLICIES["MixFit"](fleet, mix, np.random.default_rng(0))
        return choose_node(policy, fleet, Pod(demand, 0))

    def test_a_pod_without_gpu_goes_where_the_cards_are_gone(self):
        mix = Mix((share(1000, cpu=30_000),), (1,))
        used = [(1, share(1000)), (1, share(1000))]
        assert self.choose([node("a"), node("b")], used, mix, Demand(8000, 0, 0)) == 1

    def test_an_eater_of_cpu_goes_where_cpu_is_plentiful(self):
        mix = Mix((share(1000, cpu=16_000),), (1,))
        nodes = [node("poor", cpu=32_000), node("rich", cpu=128_000)]
        assert self.choose(nodes, [], mix, share(1000, cpu=28_000)) == 1

    def test_a_small_eater_goes_where_cpu_is_scarce(self):
        mix = Mix((share(1000, cpu=16_000),), (1,))
        nodes = [node("rich", cpu=128_000), node("poor", cpu=16_000)]
        assert self.choose(nodes, [], mix, share(1000, cpu=1000)) == 1

    def test_a_pod_that_may_choose_leaves_the_model_others_need(self):
        mix = Mix((share(1000), share(1000, spec="T4")), (1, 1))
        nodes = [node("a", model="T4"), node("b", model="G2")]
        assert self.choose(nodes, [], mix, share(1000)) == 1

    def test_a_single_card_does_not_break_a_node_that_large_pods_need(self):
        mix = Mix((share(1000), Demand(2000, 1000, 2)), (1, 1))
        used = [(1, share(1000))]
        assert self.choose([node("a"), node("b")], used, mix, share(1000)) == 1
