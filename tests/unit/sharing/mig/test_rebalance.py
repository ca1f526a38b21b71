"""What a strategy's cards are to become, step by step."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.builders.mig_groups import OPEN, cut, group, names
from tests.support.machines.mig_card import A100, places

from kgwe.sharing.mig.rebalance import decide_layouts
from kgwe.sharing.mig.types import Gate, PartitionedGpu, SliceRequest


def whole(number: int, node: str = "n0", **more: bool) -> PartitionedGpu:
    return replace(PartitionedGpu(f"GPU-{number}", node, is_whole=True), **more)  # type: ignore[arg-type] # all are bool


def test_new_cards_are_cut_as_the_distribution_says() -> None:
    fresh = [whole(number, is_decided=False) for number in range(4)]
    for dynamic in (False, True):
        decision = decide_layouts(group(*fresh, dynamic=dynamic, shares={"3g.40gb": 0.5}), [], OPEN)
        assert sorted(names(decision)) == ["3g.40gb@0 3g.40gb@4"] * 2 + ["whole"] * 2
        assert all(card.is_decided for card in decision.gpus)
        assert len(decision.changed) == 2


def test_what_stays_whole_is_best_what_somebody_has_whole() -> None:
    fresh = [whole(0, is_decided=False, is_taken=True), whole(1, is_decided=False)]
    decision = decide_layouts(group(*fresh, dynamic=False, shares={"7g.80gb": 0.5}), [], OPEN)
    assert names(decision) == ["whole", "7g.80gb@0"]


def test_no_whole_card_is_cut_before_the_one_that_takes_its_place_is_whole() -> None:
    later = cut(1, node="n1", is_decided=False, is_open=False)
    cards = group(whole(0, is_decided=False), later, dynamic=False, shares={"1g.10gb": 0.5})
    assert not decide_layouts(cards, [], OPEN).changed
    opened = replace(cards, gpus=(cards.gpus[0], replace(later, is_open=True)))
    assert names(decide_layouts(opened, [], OPEN)) == [" ".join(f"1g.10gb@{start}" for start in range(7)), "whole"]


def test_only_so_many_nodes_begin_at_a_time() -> None:
    fresh = [whole(number, f"n{number // 2}", is_decided=False) for number in range(8)]
    decision = decide_layouts(group(*fresh, dynamic=False), [], Gate(slots=2, busy=frozenset({"n0"})))
    changed = {card.node for card in decision.gpus if card.uuid in decision.changed}
    assert len(changed) == 2
    assert "n0" not in changed
    assert [card.is_decided for card in decision.gpus].count(True) == 4, "the others wait for their turn"


def test_a_fixed_distribution_does_not_follow_demand() -> None:
    here = cut(0, spare="1g.10gb@0 1g.10gb@1 1g.10gb@2 1g.10gb@3 1g.10gb@4 1g.10gb@5 1g.10gb@6")
    decision = decide_layouts(group(here, dynamic=False), [SliceRequest("pod", "3g.40gb")], OPEN)
    assert not decision.changed
    assert decision.waiting == {"pod": "no spare 3g.40gb, and allowDynamicReconfig is false"}


def test_what_waits_is_cut_for_beside_what_is_in_use() -> None:
    here = cut(0, "3g.40gb@0", "2g.20gb@4 1g.10gb@6")
    decision = decide_layouts(group(here), [SliceRequest("pod", "3g.40gb")], OPEN)
    assert names(decision) == ["3g.40gb@0 3g.40gb@4"]
    assert not decision.waiting
    after = group(*decision.gpus)
    assert not decide_layouts(after, [SliceRequest("pod", "3g.40gb")], OPEN).changed, (
        "it still waits, and is served already"
    )


def test_a_spare_instance_serves_as_it_is_and_only_one() -> None:
    here = cut(0, "3g.40gb@0", "3g.40gb@4")
    first, second = SliceRequest("a", "3g.40gb"), SliceRequest("b", "3g.40gb")
    assert not decide_layouts(group(here), [first], OPEN).changed
    decision = decide_layouts(group(here), [first, second], OPEN)
    assert decision.waiting["b"].startswith("0 of 1 x 3g.40gb can be cut")
    assert not decide_layouts(group(here), [first, SliceRequest("c", "1g.10gb")], OPEN).changed, (
        "what waits longest keeps its place"
    )


def test_slices_of_one_pod_are_on_one_node() -> None:
    cards = [cut(0, "4g.40gb@0", node="n0"), cut(1, "4g.40gb@0", node="n1"), cut(2, node="n1")]
    decision = decide_layouts(group(*cards), [SliceRequest("pod", "3g.40gb", 3)], OPEN)
    assert names(decision) == ["4g.40gb@0", "4g.40gb@0 3g.40gb@4", "3g.40gb@0 3g.40gb@4"]
    assert decide_layouts(group(*cards), [SliceRequest("pod", "3g.40gb", 4)], OPEN).waiting


def test_a_pod_that_may_not_go_there_is_not_cut_for_there() -> None:
    cards = [cut(0, spare="3g.40gb@0", node="n0"), cut(1, spare="2g.20gb@0", node="n1")]
    elsewhere = SliceRequest("pod", "3g.40gb", nodes=frozenset({"n1"}))
    assert names(decide_layouts(group(*cards), [elsewhere], OPEN)) == ["3g.40gb@0", "2g.20gb@0 3g.40gb@4"]
    assert decide_layouts(group(*cards), [replace(elsewhere, nodes=frozenset())], OPEN).waiting


def test_cards_the_distribution_leaves_whole_stay_whole() -> None:
    cards = [cut(0, "7g.80gb@0"), whole(1), whole(2)]
    shares = {"7g.80gb": 0.66}
    decision = decide_layouts(
        group(*cards, shares=shares), [SliceRequest("a", "7g.80gb"), SliceRequest("b", "7g.80gb")], OPEN
    )
    assert names(decision) == ["7g.80gb@0", "7g.80gb@0", "whole"]
    assert len(decision.waiting) == 1
    taken = [cut(0, "7g.80gb@0"), whole(1, is_taken=True), whole(2)]
    decision = decide_layouts(group(*taken, shares=shares), [SliceRequest("a", "7g.80gb")], OPEN)
    assert names(decision) == ["7g.80gb@0", "whole", "7g.80gb@0"]


def test_a_card_that_is_being_cut_is_not_cut_again() -> None:
    decision = decide_layouts(group(cut(0, spare="1g.10gb@0", is_open=False)), [SliceRequest("a", "7g.80gb")], OPEN)
    assert not decision.changed
    assert decision.waiting == {
        "a": "no GPU can be re-cut: each is changing, in use undivided, or kept whole by the distribution"
    }


def test_slices_that_were_busy_of_late_are_the_last_to_go() -> None:
    warm = replace(cut(0, spare="4g.40gb@0"), warm=frozenset(places(A100, "4g.40gb@0")))
    cold = cut(1, spare="2g.20gb@0 2g.20gb@2 1g.10gb@4")
    decision = decide_layouts(group(warm, cold), [SliceRequest("a", "7g.80gb")], OPEN)
    assert names(decision) == ["4g.40gb@0", "7g.80gb@0"], "though it destroys more"
    decision = decide_layouts(group(warm), [SliceRequest("a", "7g.80gb")], OPEN)
    assert names(decision) == ["7g.80gb@0"], "work that waits comes before work that may come"


def test_a_rebalance_follows_what_was_asked_half_way_and_only_if_much_would_move() -> None:
    small = "1g.10gb@0 1g.10gb@1 1g.10gb@2 1g.10gb@3 1g.10gb@4 1g.10gb@5 1g.10gb@6"
    cards = [cut(number, spare=small) for number in range(4)]
    asked = {"3g.40gb": 9.0}
    assert not decide_layouts(group(*cards, mix=asked), [], OPEN).changed, "not due"
    decision = decide_layouts(group(*cards, due=True, mix=asked), [], OPEN)
    assert sum(layout.count("3g.40gb") for layout in names(decision)) == 4, "half of the units"
    again = group(*decision.gpus, due=True, mix=asked)
    assert not decide_layouts(again, [], OPEN).changed
    little = group(*decision.gpus, due=True, mix={"3g.40gb": 9.0, "1g.10gb": 1.0})
    assert not decide_layouts(little, [], OPEN).changed, "within the dead band"


def test_preferred_profiles_are_kept_ready_where_that_costs_nothing() -> None:
    here = cut(0, "3g.40gb@0")
    decision = decide_layouts(group(here, preferred=("2g.20gb", "3g.40gb", "1g.6gb")), [], OPEN)
    assert names(decision) == ["3g.40gb@0 2g.20gb@4"]
    full = cut(0, "3g.40gb@0", "3g.40gb@4")
    assert not decide_layouts(group(full, preferred=("2g.20gb",)), [], OPEN).changed


def test_profiles_that_the_card_has_not_are_no_ones_concern() -> None:
    fresh = whole(0, is_decided=False)
    decision = decide_layouts(group(fresh, shares={"1g.6gb": 1.0}), [SliceRequest("a", "2g.12gb")], OPEN)
    assert names(decision) == ["whole"]
    assert decision.gpus[0].is_decided
    assert not decision.waiting


@pytest.mark.parametrize("dynamic", [False, True])
def test_mode_without_instances_becomes_what_the_distribution_says(dynamic: bool) -> None:  # noqa: FBT001 - parametrized
    decision = decide_layouts(group(cut(0, is_decided=False), dynamic=dynamic, shares={"1g.10gb": 0.01}), [], OPEN)
    assert names(decision) == ["whole"]
