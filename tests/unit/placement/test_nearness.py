"""How near free cards are to each other."""

from kgwe.model.gpu.topology import Slot, Wiring
from kgwe.placement.gpuset.topology_score import score_nearness

SWITCHED = Wiring(slots=tuple(Slot(bus="") for _ in range(8)), nvlink_version=4, switch_links=18)
PAIRS = Wiring(slots=tuple(Slot(bus="") for _ in range(4)), nvlink_version=3, mesh=((0, 1, 4), (2, 3, 4)))


def test_cards_of_one_nvlink_fabric_are_as_near_as_can_be():
    assert score_nearness(SWITCHED, 0b11111111) == score_nearness(SWITCHED, 0b101) == 100.0


def test_pairs_are_averaged_and_unknown_paths_count_nothing():
    assert score_nearness(PAIRS, 0b0011) == 100.0
    assert score_nearness(PAIRS, 0b0101) == 50.0
    assert score_nearness(PAIRS, 0b1111) == 50.0 + 50.0 * 2 / 6


def test_one_card_has_nothing_to_be_wired_to_and_no_card_scores_nothing():
    assert score_nearness(PAIRS, 0b1000) == 100.0
    assert score_nearness(PAIRS, 0) == 0.0
