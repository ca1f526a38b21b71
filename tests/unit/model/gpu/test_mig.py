"""Cutting a card: only legal places, and the reason when a layout cannot be."""

from __future__ import annotations

import itertools

import pytest

from kgwe import errors
from kgwe.model.gpu import mig

A100 = mig.GEOMETRIES["A100-80GB"]


def layout(*texts: str) -> list[mig.Placement]:
    return [mig.parse_placement(A100, text) for text in texts]


@pytest.mark.parametrize(
    "texts",
    [
        ["7g.80gb@0"],
        ["3g.40gb@0", "3g.40gb@4"],
        ["4g.40gb@0", "3g.40gb@4"],
        ["3g.40gb@0", "2g.20gb@4", "1g.10gb@6"],
        [f"1g.10gb@{start}" for start in range(7)],
        ["1g.10gb+me@0", "1g.10gb@1"],
        [],
    ],
)
def test_a_legal_layout_has_no_problems(texts):
    assert mig.find_problems(A100, layout(*texts)) == []


@pytest.mark.parametrize(
    ("texts", "why"),
    [
        (["3g.40gb@0", "2g.20gb@2"], "2g.20gb@2 overlaps 3g.40gb@0"),
        (["1g.10gb+me@0", "1g.10gb+me@1"], "only one instance"),
        (["4g.40gb@0", "1g.20gb@4", "1g.20gb@6", "1g.10gb@5"], "overlaps 1g.20gb@4"),
    ],
)
def test_an_illegal_layout_says_why(texts, why):
    assert why in "; ".join(mig.find_problems(A100, layout(*texts)))


def test_more_compute_than_the_card_has_is_a_problem():
    extra = mig.Placement(mig.Profile("5g.40gb", 5, 4, (4,), 1, 0), 4)
    assert "9 compute slices are asked of 7" in mig.find_problems(A100, [*layout("4g.40gb@0"), extra])


@pytest.mark.parametrize("text", ["1g.10gb", "1g.10gb@", "1g.10gb@7", "2g.20gb@1", "1g.10gb@-1", "1g.10gb@0.0"])
def test_a_place_that_does_not_exist_is_refused_with_those_that_do(text):
    with pytest.raises(errors.Permanent, match=r"can be one of .*@0"):
        mig.parse_placement(A100, text)


def test_an_unknown_profile_is_refused_with_those_there_are():
    with pytest.raises(errors.Permanent, match=r"no MIG profile '5g.50gb'; it has 1g.10gb, "):
        mig.parse_placement(A100, "5g.50gb@0")


def test_instance_ids_are_those_of_the_driver():
    assert mig.parse_placement(A100, "7g.80gb@0").instance_id(A100) == 0
    assert mig.parse_placement(A100, "3g.40gb@4").instance_id(A100) == 2
    assert mig.parse_placement(A100, "2g.20gb@4").instance_id(A100) == 5
    assert mig.parse_placement(A100, "1g.10gb@0").instance_id(A100) == 7
    a30 = mig.GEOMETRIES["A30-24GB"]
    assert [mig.parse_placement(a30, f"1g.6gb@{start}").instance_id(a30) for start in range(4)] == [3, 4, 5, 6]


def test_instances_that_can_live_together_have_different_ids():
    places = [mig.Placement(profile, start) for profile in A100.profiles.values() for start in profile.starts]
    for a, b in itertools.combinations(places, 2):
        if not mig.find_problems(A100, [a, b]):
            assert a.instance_id(A100) != b.instance_id(A100)


def test_resource_names_are_those_of_the_device_plugin():
    assert A100.profile("1g.10gb").resource == "nvidia.com/mig-1g.10gb"
    assert A100.profile("1g.10gb+me").resource == "nvidia.com/mig-1g.10gb.me"


def test_plain_profiles_give_the_known_number_of_layouts():
    # 298 layouts of 1g, 2g, 3g, 4g and 7g without +me and double memory (the uncut card included), 19 of them maximal.
    places = [
        mig.Placement(profile, start)
        for name, profile in A100.profiles.items()
        if name not in ("1g.20gb", "1g.10gb+me")
        for start in profile.starts
    ]
    legal: list[tuple[mig.Placement, ...]] = [()]
    grown = legal
    while grown:
        grown = [
            (*found, place)
            for found in grown
            for place in places
            if (not found or place.start > found[-1].start) and not mig.find_problems(A100, [*found, place])
        ]
        legal += grown
    assert len(legal) == 298
    maximal = [
        found
        for found in legal
        if not any(mig.find_problems(A100, sorted([*found, place], key=lambda p: p.start)) == [] for place in places)
    ]
    assert len(maximal) == 19
