"""Shares of a card, as people write them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgwe.model.devices import shares as pieces
from kgwe.placement.fleet.node import GPU_MILLI, share_milli


@pytest.mark.parametrize(
    ("share", "found"), [(0.5, 2), (0.33, 3), (1 / 3, 3), (0.25, 4), (0.2, 5), (0.14, 7), (1 / 32, 32), (0.031, 32)]
)
def test_a_share_is_one_of_so_many_equal_pieces(share, found):
    assert pieces.shares_of_fraction(share) == found


@pytest.mark.parametrize("share", [0.0, -0.5, 1.0, 0.4, 0.7, 2.0, 0.001, math.nan, math.inf, -math.inf, 5e-324])
def test_what_is_no_such_share_is_refused_with_what_would_be(share):
    with pytest.raises(ValueError, match=r"such as 0\.5"):
        pieces.shares_of_fraction(share)


@given(st.integers(pieces.FEWEST, pieces.MOST), st.floats(-0.009, 0.009))
def test_a_share_written_to_a_hundredth_is_read_back(count, error):
    assert pieces.shares_of_fraction((1 + error) / count) == count


@given(st.floats())
def test_any_number_is_read_or_refused(share):
    try:
        found = pieces.shares_of_fraction(share)
    except ValueError:
        return
    assert pieces.FEWEST <= found <= pieces.MOST
    assert abs(share * found - 1) <= pieces.TOLERANCE


@pytest.mark.parametrize(
    ("offered", "cards", "label", "found"),
    [
        (16, 8, None, 2),
        (16, 8, 1, 2),  # feature discovery has not looked since
        (16, 0, 2, 2),  # nobody describes the cards
        (14, 8, 2, 2),  # the plugin does not offer all
        (16, 8, 4, 2),  # a label from before
        (14, 8, None, 0),
        (16, 0, None, 0),
        (8, 8, None, 0),
        (8 * 64, 8, None, 0),
        (8, 8, 64, 0),
        (14, 8, 64, 0),
        (0, 8, None, 0),
    ],
)
def test_what_a_node_offers_tells_how_it_divides_its_cards(offered, cards, label, found):
    assert pieces.shares_of_capacity(offered, cards, label) == found


def test_while_a_card_is_cut_it_is_as_it_was():
    """The agent says so before the kubelet offers fewer."""
    assert pieces.shares_of_capacity(16, 7, None, before=2) == 2


@pytest.mark.parametrize("count", range(pieces.FEWEST, pieces.MOST + 1))
def test_a_card_has_as_many_shares_as_it_is_divided_into(count):
    each = share_milli(count)
    assert GPU_MILLI // each == count
    assert each not in {share_milli(other) for other in range(pieces.FEWEST, pieces.MOST + 1) if other != count}
