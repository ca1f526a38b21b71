"""Prices of instances: nothing is lost on a full card and nothing is paid twice."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from kgwe import errors
from kgwe.model.gpu import mig
from kgwe.sharing.mig import layout_graph, share

A100 = mig.GEOMETRIES["A100-80GB"]


def layout(*texts):
    return [mig.parse_placement(A100, text) for text in texts]


@pytest.mark.parametrize("geometry", [pytest.param(g, id=g.name) for g in mig.GEOMETRIES.values()])
def test_parts_of_every_full_card_add_up_to_exactly_the_card(geometry):
    is_widest = geometry is A100 or geometry.compute == 4
    atlas = layout_graph.get_layout_graph(geometry, None if is_widest else layout_graph.plain_profiles(geometry))
    for state in np.flatnonzero(atlas.maximal).tolist():
        assert sum(share.settle_shares(geometry, atlas.layout(state)), Fraction(0)) == 1


def test_parts_of_any_card_and_its_idle_rest_add_up_to_the_card():
    atlas = layout_graph.get_layout_graph(A100)
    for state in range(0, len(atlas), 3):
        found = atlas.layout(state)
        rest = share.idle_share(A100, found)
        assert sum(share.settle_shares(A100, found), Fraction(0)) + rest == 1
        assert 0 <= rest <= 1
        assert found or rest == 1


def test_two_3g_fill_the_card_and_pay_half_each():
    assert share.settle_shares(A100, layout("3g.40gb@0", "3g.40gb@4")) == (Fraction(1, 2), Fraction(1, 2))


def test_seven_1g_pay_a_seventh_each():
    assert set(share.settle_shares(A100, layout(*(f"1g.10gb@{start}" for start in range(7))))) == {Fraction(1, 7)}


def test_what_can_still_be_sold_is_idle():
    assert share.settle_shares(A100, layout("1g.10gb@6")) == (Fraction(1, 7),)
    assert share.idle_share(A100, layout("1g.10gb@6")) == Fraction(6, 7)
    assert share.idle_share(A100, []) == 1


def test_double_memory_is_paid_by_memory():
    assert share.list_share(A100, A100.profile("1g.20gb")) == Fraction(1, 4)


def test_an_impossible_card_has_no_price():
    with pytest.raises(errors.Permanent, match="overlaps"):
        share.settle_shares(A100, layout("7g.80gb@0", "1g.10gb@0"))
