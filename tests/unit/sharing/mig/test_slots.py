"""Which slot: holes of the past are not repeated, and a request gets all its slices or none."""

from __future__ import annotations

import numpy as np
import pytest

from kgwe import errors
from kgwe.bench.mig import policies
from kgwe.model.gpu import mig
from kgwe.sharing.mig import layout_graph, slots

A100 = mig.GEOMETRIES["A100-80GB"]
PLAIN = layout_graph.get_layout_graph(A100, layout_graph.plain_profiles(A100))


def fleet(*cards, atlas=PLAIN):
    return np.array([atlas.find_state(mig.parse_placement(A100, text) for text in card) for card in cards], np.int64)


def choose(table, *asked):
    return table.choose_slot(*asked)


def choose_all(table, *asked):
    return table.choose_slots(*asked)


def text(slot):
    return f"{slot.placement.profile.name}@{slot.placement.start}"


def test_the_first_1g_goes_where_nothing_wide_can_start():
    slot = choose(slots.SlotTable(PLAIN), fleet([]), "1g.10gb")
    assert text(slot) == "1g.10gb@6"
    assert "4g.40gb" not in slot.lost
    assert slot.lost["7g.80gb"] == 1


def test_a_3g_leaves_the_only_place_of_a_4g_free():
    assert text(choose(slots.SlotTable(PLAIN), fleet([]), "3g.40gb")) == "3g.40gb@4"


def test_a_small_instance_spares_whole_cards_and_fills_holes():
    table = slots.SlotTable(PLAIN)
    slot = choose(table, fleet([], ["3g.40gb@0", "2g.20gb@4"], []), "1g.10gb")
    assert (slot.gpu, text(slot)) == (1, "1g.10gb@6")


def test_dra_driver_933_three_1g_do_not_come_to_lie_on_0_1_and_5():
    # First-fit filled 0..6 with 1g; ends left 0, 1 and 5, and neither a 3g nor a 4g fitted any more.
    table = slots.SlotTable(PLAIN)
    states = fleet([])
    placed = []
    for _ in range(7):
        slot = choose(table, states, "1g.10gb")
        placed.append(slot.placement)
        states[slot.gpu] = slot.state
    assert placed[0].start == 6
    assert {each.start for each in placed[:3]} == {4, 5, 6}
    # With three running, half a card is whole.
    kept = PLAIN.find_state(placed[:3])
    assert choose(table, np.array([kept]), "4g.40gb").placement.start == 0


def test_dra_driver_933_the_hole_is_named_when_nothing_fits():
    blocked = choose(slots.SlotTable(PLAIN), fleet(["1g.10gb@0", "1g.10gb@1", "1g.10gb@5"]), "3g.40gb")
    assert blocked.reason is slots.Shortage.HOLE
    assert blocked.most_free == 5
    assert "block every start of a 3g.40gb" in blocked.detail


def test_dra_driver_933_a_2g_is_placed_in_the_hole_that_is_left():
    slot = choose(slots.SlotTable(PLAIN), fleet(["1g.10gb@0", "1g.10gb@1", "1g.10gb@5"]), "2g.20gb")
    assert text(slot) == "2g.20gb@2"


def test_a_full_fleet_says_so():
    blocked = choose(slots.SlotTable(PLAIN), fleet(["7g.80gb@0"], ["7g.80gb@0"]), "1g.10gb")
    assert blocked.reason is slots.Shortage.FULL
    assert (blocked.most_free, blocked.free) == (0, 0)


def test_no_cards_is_a_full_fleet():
    assert choose(slots.SlotTable(PLAIN), fleet(), "1g.10gb").reason is slots.Shortage.FULL


def test_only_allowed_cards_are_chosen():
    slot = choose(slots.SlotTable(PLAIN), fleet([], [], []), "1g.10gb", np.array([False, True, False]))
    assert slot.gpu == 1


def test_instaslice_614_a_pod_that_asks_two_slices_gets_two():
    found = choose_all(slots.SlotTable(PLAIN), fleet([]), ["1g.10gb", "1g.10gb"])
    assert len(found) == 2
    assert mig.find_problems(A100, [slot.placement for slot in found]) == []


def test_several_slices_are_placed_all_or_none():
    table = slots.SlotTable(PLAIN)
    before = fleet(["4g.40gb@0"])
    assert isinstance(choose_all(table, before, ["3g.40gb", "1g.10gb"]), slots.SlotRefusal)
    assert len(choose_all(table, before, ["2g.20gb", "1g.10gb"])) == 2
    assert before.tolist() == fleet(["4g.40gb@0"]).tolist()


def test_a_combination_is_found_where_one_by_one_runs_into_a_corner():
    atlas = layout_graph.get_layout_graph(A100, [*layout_graph.plain_profiles(A100), "1g.20gb"])
    # A forecast of whole cards alone says nothing about where on a cut card: what fits together is found all the same.
    table = slots.SlotTable(atlas, {"7g.80gb": 1})
    asked = ["1g.20gb", "2g.20gb", "2g.20gb", "2g.20gb"]
    found = choose_all(table, fleet([], atlas=atlas), asked)
    assert [slot.placement.profile.name for slot in found] == asked
    assert mig.find_problems(A100, [slot.placement for slot in found]) == []


def test_the_forecast_decides_what_is_spared():
    halves = slots.SlotTable(PLAIN, {"3g.40gb": 1.0})
    pairs = slots.SlotTable(PLAIN, {"2g.20gb": 1.0})
    states = fleet(["1g.10gb@0"])
    assert text(choose(halves, states, "1g.10gb")) in {"1g.10gb@1", "1g.10gb@2", "1g.10gb@3"}
    assert text(choose(pairs, states, "1g.10gb")) in {"1g.10gb@1", "1g.10gb@6"}


@pytest.mark.parametrize("mix", [{}, {"1g.10gb": 0.0}, {"1g.10gb": -1.0}, {"1g.10gb": float("nan")}])
def test_a_forecast_that_says_nothing_is_refused(mix):
    with pytest.raises(errors.Permanent, match="forecast"):
        slots.SlotTable(PLAIN, mix)


def test_unusable_units_are_those_the_mix_cannot_take():
    table = slots.SlotTable(PLAIN, {"3g.40gb": 1.0})
    assert table.unusable[PLAIN.find_state([])] == 0
    assert table.unusable[fleet(["1g.10gb@0", "1g.10gb@1", "1g.10gb@5"])[0]] == 5


@pytest.mark.parametrize("name", policies.POLICIES)
def test_every_policy_fills_a_card_with_legal_places_only(name):
    mix = {profile.name: 1.0 for profile in PLAIN.profiles}
    policy = policies.POLICIES[name](PLAIN, mix, 3)
    states = np.zeros(3, np.int64)
    rng = np.random.default_rng(5)
    running: list[tuple[int, int]] = []
    for _ in range(400):
        if running and rng.random() < 0.4:
            card, place = running.pop(int(rng.integers(len(running))))
            states[card] = PLAIN.without_place[states[card], place]
            policy.on_release(card, place)
            continue
        found = policy.place(states, int(rng.integers(len(PLAIN.profiles))))
        if found:
            assert PLAIN.with_place[states[found[0]], found[1]] != layout_graph.NONE
            states[found[0]] = PLAIN.with_place[states[found[0]], found[1]]
            running.append(found)
