"""GB/s of pairs and sets, against what was measured."""

from __future__ import annotations

import csv
import math

import pytest
from tests.support.machines import reference

from kgwe import errors
from kgwe.model.gpu import bandwidth
from kgwe.model.gpu.topology import Nic, Relation, Slot, Wiring


def bridged(links: int, version: int, link_gb_per_s: float = 0.0) -> Wiring:
    slots = (Slot("a", 0), Slot("b", 0))
    return Wiring(slots, version, mesh=((0, 1, links),), link_gb_per_s=link_gb_per_s)


def related(relation: Relation, pcie_gb_per_s: float = 0.0) -> Wiring:
    seen = ((Relation.SELF, relation), (relation, Relation.SELF))
    return Wiring((Slot("a"), Slot("b")), seen=seen, pcie_gb_per_s=pcie_gb_per_s)


def test_an_h100_behind_nvswitch_has_900_gb_per_s_to_one_peer_and_in_any_ring():
    wiring = reference.nvswitch()
    assert bandwidth.pair_gb_per_s(wiring, 0, 7) == 900
    assert [bandwidth.set_gb_per_s(wiring, range(count)) for count in range(2, 9)] == [900] * 7


def test_a_b200_has_twice_that_and_an_a100_600():
    assert bandwidth.set_gb_per_s(reference.nvswitch(version=5), range(8)) == 1800
    assert bandwidth.set_gb_per_s(reference.nvswitch(links=12, version=3), range(8)) == 600


@pytest.mark.parametrize(
    ("wiring", "measured"),
    [
        (bridged(4, 3, 14.0625), 47.45),  # A40
        (reference.nvswitch(links=12, version=3), 222.07),
        (reference.nvswitch(links=12, version=3), 230),
        (reference.nvswitch(), 376),
        (related(Relation.NODE), 3.86),
        (related(Relation.SYS), 1.4),
        (related(Relation.PHB), 5.2),
    ],
)
def test_bus_bandwidth_is_within_a_tenth_of_what_was_measured(wiring, measured):
    assert bandwidth.set_bus_gb_per_s(wiring, range(2)) == pytest.approx(measured, rel=0.1)


def test_the_calibration_covers_the_measurements_at_hand():
    rows = list(csv.DictReader(reference.reference("topology", "bandwidth.csv").read_text().splitlines()))
    measured = {(row["machine"], row["link_class"]): float(row["bus_bandwidth_gb_s"]) for row in rows}
    assert bandwidth.set_bus_gb_per_s(bridged(4, 3, 14.0625), (0, 1)) == pytest.approx(
        measured["8xA40", "NV4"], rel=0.1
    )
    a100 = bandwidth.set_bus_gb_per_s(reference.nvswitch(links=12, version=3), range(4))
    assert a100 == pytest.approx(measured["DGX A100 640GB", "NV12 (NVSwitch)"], rel=0.1)
    h100 = bandwidth.set_bus_gb_per_s(reference.nvswitch(), range(2))
    assert h100 == pytest.approx(measured["HGX H100", "NV18 (NVSwitch)"], rel=0.1)
    for relation in (Relation.NODE, Relation.SYS):
        assert bandwidth.PATH_BUS_GB_PER_S[relation] == pytest.approx(measured["8xA40", relation.value], rel=0.1)


def test_classes_are_ordered_and_unknown_is_below_all_and_equal_to_none():
    order = [Relation.PIX, Relation.PXB, Relation.PHB, Relation.NODE, Relation.SYS, Relation.UNKNOWN]
    rates = [bandwidth.pair_gb_per_s(related(relation), 0, 1) for relation in order]
    assert rates == sorted(set(rates), reverse=True)
    assert rates[-1] == bandwidth.UNKNOWN_GB_PER_S


def test_every_relation_has_a_figure():
    assert set(bandwidth.PATH_BUS_GB_PER_S) == set(Relation) - {Relation.SELF, Relation.NVLINK}


def test_a_faster_slot_speeds_up_what_stays_on_pcie_and_nothing_else():
    assert bandwidth.pair_bus_gb_per_s(related(Relation.PIX, 31.5), 0, 1) == pytest.approx(24)
    assert bandwidth.pair_bus_gb_per_s(related(Relation.SYS, 31.5), 0, 1) == bandwidth.PATH_BUS_GB_PER_S[Relation.SYS]


def test_nvlink_of_no_named_generation_counts_as_the_slowest():
    assert bandwidth.pair_gb_per_s(bridged(4, 0), 0, 1) == 200


def test_a_card_with_links_down_slows_its_pairs_only():
    whole = reference.nvswitch()
    wiring = Wiring(whole.slots, 4, 18, links_down=(0, 6, 0, 0, 0, 0, 0, 0))
    assert bandwidth.pair_gb_per_s(wiring, 0, 1) == 600
    assert bandwidth.pair_gb_per_s(wiring, 0, 2) == 900
    assert bandwidth.set_gb_per_s(wiring, range(8)) == 600
    assert bandwidth.set_gb_per_s(wiring, (0, 2, 3, 4)) == 900


def test_a_set_is_as_fast_as_the_worst_link_of_its_best_ring():
    # 0-1-2-3 in a square of double links, diagonals over the host: the ring avoids the diagonals.
    square = Wiring(tuple(Slot(str(i), i % 2) for i in range(4)), 2, mesh=((0, 1, 2), (1, 2, 2), (2, 3, 2), (0, 3, 2)))
    assert bandwidth.set_gb_per_s(square, range(4)) == 100
    assert bandwidth.set_gb_per_s(square, (0, 1, 2)) < 100


def test_an_unknown_link_that_cannot_be_avoided_makes_the_set_unknown():
    wiring = Wiring((Slot("a"), Slot("b"), Slot("c")), 4, mesh=((0, 1, 18), (1, 2, 18)))
    assert bandwidth.set_gb_per_s(wiring, (0, 1)) == 900
    assert bandwidth.set_gb_per_s(wiring, (0, 1, 2)) == bandwidth.UNKNOWN_GB_PER_S


def test_one_card_waits_for_no_link():
    assert bandwidth.set_gb_per_s(reference.pcie_pairs(), [3]) == math.inf


@pytest.mark.parametrize("cards", [(), (0, 8), (-1, 0)])
def test_cards_that_are_not_there_are_refused(cards):
    with pytest.raises(errors.Permanent, match="8 GPUs"):
        bandwidth.set_gb_per_s(reference.pcie_pairs(), cards)


def test_more_cards_than_a_table_holds_are_refused():
    with pytest.raises(errors.Permanent, match="at most 16"):
        bandwidth.set_gb_per_s(reference.pcie_pairs(17), range(17))


def with_nics(*rates: int) -> Wiring:
    nics = tuple(Nic(f"nic{i}", rate, i // 2, (f"rc{i}", f"sw{i}"), i) for i, rate in enumerate(rates))
    return Wiring(reference.pcie_pairs().slots, nics=nics)


def test_cards_send_through_their_nearest_network_cards_and_share_them():
    wiring = with_nics(400, 400, 400, 400)
    assert bandwidth.find_nearest_nics(wiring, 5) == (2,)
    assert bandwidth.network_gb_per_s(wiring, (0, 1)) == 50
    assert bandwidth.network_gb_per_s(wiring, (0, 2)) == 100
    assert bandwidth.network_gb_per_s(wiring, range(8)) == 200


def test_a_network_rate_that_is_not_known_leaves_the_sum_unknown():
    assert bandwidth.network_gb_per_s(with_nics(400, 0), (0, 2)) == bandwidth.UNKNOWN_GB_PER_S
    assert bandwidth.network_gb_per_s(reference.pcie_pairs(), (0,)) == bandwidth.UNKNOWN_GB_PER_S
