"""All layouts of all models: as many as the hardware has, every one legal, every step reversible."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from kgwe import errors
from kgwe.model.gpu import mig
from kgwe.sharing.mig import layout_graph

GEOMETRIES = list(mig.GEOMETRIES.values())
A100 = mig.GEOMETRIES["A100-80GB"]


def plain(geometry):
    return layout_graph.get_layout_graph(geometry, layout_graph.plain_profiles(geometry))


def widest(geometry):
    """All profiles for one card of each family, which is what differs; names for all."""
    return layout_graph.get_layout_graph(geometry) if geometry is A100 or geometry.compute == 4 else plain(geometry)


def named(geometry):
    return pytest.param(geometry, id=geometry.name)


@pytest.mark.parametrize("geometry", [named(g) for g in GEOMETRIES if g.compute == 7])
def test_a_seven_slice_card_has_298_layouts_19_of_them_maximal_of_14_kinds(geometry):
    atlas = plain(geometry)
    maximal = np.flatnonzero(atlas.maximal)
    assert len(atlas) == 298
    assert len(maximal) == 19
    assert len({tuple(sorted(atlas.count_profiles(state).items())) for state in maximal}) == 14


@pytest.mark.parametrize("geometry", [named(g) for g in GEOMETRIES if g.compute == 4])
def test_a_four_slice_card_has_26_layouts_five_of_them_maximal(geometry):
    atlas = plain(geometry)
    assert (len(atlas), int(atlas.maximal.sum())) == (26, 5)


def test_all_thirteen_models_are_known():
    assert len(GEOMETRIES) == 13


@pytest.mark.parametrize("geometry", [named(g) for g in GEOMETRIES])
def test_every_layout_of_every_model_is_legal(geometry):
    atlas = widest(geometry)
    for state in range(len(atlas)):
        assert mig.find_problems(geometry, atlas.layout(state)) == []


@pytest.mark.parametrize("geometry", [named(g) for g in GEOMETRIES if g is A100 or g.compute == 4])
def test_no_legal_layout_is_missing(geometry):
    # Any set of places at all, not only those grown one by one.
    atlas = plain(geometry)
    most = max(len(atlas.list_places(state)) for state in range(len(atlas)))
    legal = sum(
        not mig.find_problems(geometry, found)
        for size in range(most + 2)
        for found in itertools.combinations(atlas.places, size)
    )
    assert legal == len(atlas)


@pytest.mark.parametrize("geometry", [named(g) for g in GEOMETRIES])
def test_a_layout_read_back_is_the_layout_set(geometry):
    atlas = widest(geometry)
    for state in range(len(atlas)):
        layout = atlas.layout(state)
        assert atlas.find_state(layout) == state
        assert atlas.find_state(reversed(layout)) == state
        texts = [f"{each.profile.name}@{each.start}" for each in layout]
        assert atlas.find_state(mig.parse_placement(geometry, text) for text in texts) == state


@pytest.mark.parametrize("geometry", [named(g) for g in GEOMETRIES])
def test_every_step_can_be_taken_back(geometry):
    atlas = widest(geometry)
    states, places = np.nonzero(atlas.with_place != layout_graph.NONE)
    assert (atlas.without_place[atlas.with_place[states, places], places] == states).all()
    assert (atlas.with_place != layout_graph.NONE).sum() == (atlas.without_place != layout_graph.NONE).sum()
    # An instance in any layout can end: what remains is legal.
    assert (
        (atlas.without_place != layout_graph.NONE).sum(axis=1) == [len(atlas.list_places(s)) for s in range(len(atlas))]
    ).all()


def test_units_taken_are_those_of_the_instances():
    atlas = layout_graph.get_layout_graph(A100)
    for state in range(0, len(atlas), 7):
        units = {unit for each in atlas.layout(state) for unit in each.occupied}
        assert atlas.occupied[state] == sum(1 << unit for unit in units)


def test_room_is_how_many_more_fit():
    atlas = plain(A100)
    state = atlas.find_state([mig.parse_placement(A100, text) for text in ("1g.10gb@0", "1g.10gb@1", "1g.10gb@5")])
    room = dict(zip((p.name for p in atlas.profiles), atlas.room[state].tolist(), strict=True))
    assert room == {"1g.10gb": 4, "2g.20gb": 1, "3g.40gb": 0, "4g.40gb": 0, "7g.80gb": 0}


def test_an_illegal_layout_is_refused_with_the_reason():
    with pytest.raises(errors.Permanent, match=r"2g.20gb@2 overlaps 3g.40gb@0"):
        plain(A100).find_state([mig.parse_placement(A100, "3g.40gb@0"), mig.parse_placement(A100, "2g.20gb@2")])


def test_a_profile_that_was_left_out_is_refused():
    with pytest.raises(errors.Permanent, match=r"has no '1g.20gb'"):
        plain(A100).places_of("1g.20gb")


def test_all_media_engines_leave_none_for_plain_neighbours():
    rtx = mig.GEOMETRIES["RTX-PRO-6000"]
    greedy = mig.parse_placement(rtx, "1g.24gb+me.all@0")
    assert mig.find_problems(rtx, [greedy, mig.parse_placement(rtx, "1g.24gb-me@3")]) == []
    assert "lacks its media engines" in mig.find_problems(rtx, [greedy, mig.parse_placement(rtx, "1g.24gb@3")])[0]
