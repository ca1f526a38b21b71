"""Which cards of a node are taken."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tests.support.machines import reference

from kgwe import errors
from kgwe.local.fleet import models
from kgwe.model.gpu import bandwidth
from kgwe.model.gpu.topology import Relation, Slot, Wiring
from kgwe.placement.fleet.node import Preference
from kgwe.placement.gpuset import bitmask
from kgwe.placement.gpuset import gpu_tables as subset

ALL = 0b1111_1111


def take(
    wiring: Wiring, free: int, count: int, preference: Preference = Preference.NONE, **more: bool
) -> tuple[int, ...]:
    choice = subset.build_table(wiring, preference, **more).choose(free, count)
    return choice.gpus if choice else ()


def cube() -> Wiring:
    return models.load("v100-cube").pools[0].machine.wiring


def test_tables_are_arrays_over_all_masks():
    table = subset.build_table(reference.nvswitch())
    assert table.best_sets(4).shape == table.gb_per_s(4).shape == (256,)
    assert table.best_sets(4).dtype == np.uint16
    assert table.gb_per_s(4).dtype == np.float32
    assert table.match_preference(4).dtype == np.bool_


def test_a_table_cannot_be_changed_by_its_readers():
    with pytest.raises(ValueError, match="read-only"):
        subset.build_table(reference.nvswitch()).best_sets(1)[3] = 0


def test_one_look_up_answers_for_a_whole_cluster_of_mixed_nodes():
    wirings = [reference.nvswitch(), reference.pcie_pairs(4), cube()]
    tables = subset.ShapeTables(wirings)
    rng = np.random.default_rng(7)
    shape_of_node = rng.integers(0, 3, 500)
    free = rng.integers(0, np.array([256, 16, 256])[shape_of_node])
    at = tables.offset[shape_of_node] + free
    for count in (1, 2, 3, 5):
        chosen = tables.best_sets(count, Preference.NONE)[at]
        rates = tables.gb_per_s(count, Preference.NONE)[at]
        for node in range(500):
            choice = subset.build_table(wirings[shape_of_node[node]]).choose(int(free[node]), count)
            expected = (choice.mask, choice.gb_per_s) if choice else (0, subset.NONE_GB_PER_S)
            assert (chosen[node], rates[node]) == expected


def test_too_few_free_cards_are_no_set():
    table = subset.build_table(reference.nvswitch())
    assert table.choose(0b111, 4) is None
    assert table.gb_per_s(4)[0b111] == subset.NONE_GB_PER_S < bandwidth.UNKNOWN_GB_PER_S
    assert table.choose(ALL, 9) is None
    assert table.choose(0, 1) is None


def test_no_cards_at_all_is_not_a_question():
    with pytest.raises(errors.InvariantBroken):
        subset.build_table(reference.nvswitch()).best_sets(0)


def test_the_fastest_ring_wins():
    assert take(reference.pcie_pairs(), 0b1111_1110, 2) == (2, 3)
    assert take(cube(), ALL, 2) in {(0, 3), (2, 3), (4, 7), (6, 7), (1, 2), (5, 6), (0, 4), (1, 5)}
    assert subset.build_table(cube()).gb_per_s(2)[ALL] == 100


def test_four_cards_of_the_cube_leave_the_other_socket_whole():
    assert take(cube(), ALL, 4) == (0, 1, 2, 3)


def test_single_cards_fill_broken_pairs_and_halves_first():
    free, order = ALL, []
    for _ in range(8):
        (card,) = take(reference.pcie_pairs(), free, 1)
        order.append(card)
        free &= ~(1 << card)
    assert order == [0, 1, 2, 3, 4, 5, 6, 7]
    assert take(reference.pcie_pairs(), 0b1111_1011, 1) == (3,)
    assert take(reference.pcie_pairs(), 0b1011_1111, 1) == (7,)


def test_behind_a_switch_the_sockets_are_kept_whole():
    assert take(reference.nvswitch(), ALL, 4) == (0, 1, 2, 3)
    assert take(reference.nvswitch(), 0b1111_0111, 3) == (0, 1, 2)
    assert take(reference.nvswitch(), 0b1111_0011, 2) == (0, 1)


def test_one_card_has_no_link_and_every_limit():
    choice = subset.build_table(reference.pcie_pairs()).choose(ALL, 1, 900)
    assert choice
    assert choice.gb_per_s == math.inf


def test_a_bandwidth_limit_is_kept_in_data_sheet_figures():
    table = subset.build_table(reference.nvswitch())
    assert table.choose(ALL, 8, 900)
    assert table.choose(ALL, 8, 900.5) is None
    assert subset.build_table(reference.pcie_pairs()).choose(ALL, 4, 100) is None
    assert subset.build_table(cube()).choose(ALL, 2, 100)
    assert subset.build_table(cube()).choose(ALL, 3, 100) is None


def test_both_conventions_are_at_hand():
    table = subset.build_table(reference.nvswitch())
    assert table.gb_per_s(8)[ALL] == 900
    assert table.bus_gb_per_s(8)[ALL] == pytest.approx(370.8)
    assert table.bus_gb_per_s(8)[1] == subset.NONE_GB_PER_S


def test_nvlink_required_means_between_every_two_cards():
    required = Preference.NVLINK_REQUIRED
    assert take(cube(), ALL, 4, required) == (0, 1, 2, 3)
    assert take(cube(), 0b0011_0011, 4, required) == (), "a ring of NVLinks, but 0 and 5 have none"
    assert take(cube(), ALL, 8, required) == ()
    assert take(reference.nvswitch(), ALL, 8, required) == tuple(range(8))
    assert take(reference.pcie_pairs(), ALL, 2, required) == ()
    assert take(reference.pcie_pairs(), ALL, 1, required) == (0,)


def test_same_numa_never_crosses_sockets_and_never_takes_unknown_for_same():
    same = Preference.SAME_NUMA
    assert take(reference.nvswitch(), ALL, 4, same) == (0, 1, 2, 3)
    assert take(reference.nvswitch(), 0b1111_0111, 4, same) == (4, 5, 6, 7)
    assert take(reference.nvswitch(), ALL, 5, same) == ()
    blind = Wiring(tuple(Slot(str(i)) for i in range(4)), 4, 18)
    assert take(blind, 0b1111, 2, same) == ()
    assert take(blind, 0b1111, 1, same) == (0,)


def test_same_pcie_switch_never_passes_a_host_bridge():
    same = Preference.SAME_PCIE_SWITCH
    assert take(reference.nvswitch(), 0b1111_1110, 2, same) == (2, 3)
    assert take(reference.nvswitch(), ALL, 3, same) == ()
    tree = Wiring(tuple(Slot(str(i), 0, pcie=("rc", "top", f"sw{i // 2}")) for i in range(4)))
    assert take(tree, 0b1111, 4, same) == (0, 1, 2, 3)
    assert take(tree, 0b1111, 2, same) == (0, 1)
    nowhere = Wiring(tuple(Slot(str(i), 0) for i in range(4)), 4, 18)
    assert take(nowhere, 0b1111, 2, same) == ()


def test_a_preference_that_is_not_required_gives_way_and_says_so():
    table = subset.build_table(reference.nvswitch(), Preference.SAME_NUMA, required=False)
    assert table.choose(0b1111_0111, 4) == subset.GpuSetChoice(0b1111_0000, 900, preference_met=True)
    choice = table.choose(ALL, 5)
    assert choice
    assert not choice.preference_met
    assert table.match_preference(4)[ALL]
    assert not table.match_preference(5)[ALL]


def test_none_and_nvlink_optimal_are_one_table():
    assert subset.build_table(cube()) is subset.build_table(cube(), Preference.NVLINK_OPTIMAL)


@pytest.mark.parametrize("preference", Preference)
def test_every_preference_has_a_table(preference):
    assert subset.build_table(reference.nvswitch(), preference).best_sets(1)[ALL]


def test_bus_ids_make_no_difference():
    other = Wiring(tuple(Slot("other", slot.numa, "0-9", slot.pcie) for slot in cube().slots), 2, 0, cube().mesh)
    assert subset.build_table(other) is subset.build_table(cube())


def test_unknown_never_beats_known():
    unknown, sys = Relation.UNKNOWN, Relation.SYS
    seen = ((Relation.SELF, unknown, unknown), (unknown, Relation.SELF, sys), (unknown, sys, Relation.SELF))
    wiring = Wiring((Slot("a"), Slot("b"), Slot("c")), seen=seen)
    assert take(wiring, 0b111, 2) == (1, 2)
    table = subset.build_table(wiring)
    assert table.gb_per_s(2)[0b011] == bandwidth.UNKNOWN_GB_PER_S
    assert table.choose(0b011, 2, 0.1) is None
    assert table.choose(0b011, 2) == subset.GpuSetChoice(0b011, bandwidth.UNKNOWN_GB_PER_S, preference_met=True)


def test_a_slow_card_is_left_to_those_who_need_only_one():
    slow = Wiring(reference.nvswitch().slots, 4, 18, links_down=(0, 9, 0, 0, 0, 0, 0, 0))
    assert 1 not in take(slow, ALL, 4)
    assert take(slow, ALL, 1) == (1,)


def test_sixteen_cards_are_tabled():
    wiring = reference.pcie_pairs(16)
    table = subset.build_table(wiring)
    full = (1 << 16) - 1
    assert take(wiring, full, 8) == tuple(range(8))
    assert take(wiring, full & ~0b10, 1) == (0,)
    assert table.gb_per_s(2)[full] == 24
    assert table.best_sets(16)[full] == full


def test_more_cards_than_a_table_holds_are_refused():
    with pytest.raises(errors.Permanent, match="at most 16"):
        subset.build_table(reference.pcie_pairs(17))


def test_a_node_without_cards_has_an_empty_table():
    assert subset.build_table(Wiring(())).choose(0, 1) is None


def test_splits_pair_every_set_with_every_set_of_the_others():
    pairs = [(chosen, int(left)) for chosen, rest in bitmask.iter_splits(range(5), 2) for left in rest]
    assert len(pairs) == len(set(pairs)) == math.comb(5, 2) * 8
    assert all(chosen & left == 0 and chosen.bit_count() == 2 for chosen, left in pairs)
