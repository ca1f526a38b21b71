"""Cutting anew: what is in use stays, the least is destroyed, and a no says what stands in the way."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from kgwe import errors
from kgwe.model.gpu import mig
from kgwe.sharing.mig import layout_graph, recut, slots
from kgwe.sharing.mig.recut import GpuSlices

A100 = mig.GEOMETRIES["A100-80GB"]
ATLAS = layout_graph.get_layout_graph(A100, layout_graph.plain_profiles(A100))
TABLE = slots.SlotTable(ATLAS)


def at(*texts):
    return tuple(mig.parse_placement(A100, text) for text in texts)


def plan_for(cards, profile, count=1):
    return recut.plan_recut(TABLE, cards, profile, count)


def texts(placements):
    return [f"{each.profile.name}@{each.start}" for each in placements]


def test_dra_driver_933_a_3g_is_cut_where_spare_slices_lie():
    # 1g were cut on 0..6 and only 0, 1 and 5 are still in use... on the other GPU 4, 5 and 6 are spare.
    cards = [
        GpuSlices(at("1g.10gb@0", "1g.10gb@1", "1g.10gb@5"), at("1g.10gb@2", "1g.10gb@3", "1g.10gb@4", "1g.10gb@6")),
        GpuSlices(at("1g.10gb@0"), at("1g.10gb@1", "1g.10gb@4", "1g.10gb@5", "1g.10gb@6")),
    ]
    plan = plan_for(cards, "3g.40gb")
    (change,) = plan.changes
    assert change.gpu == 1
    assert texts(change.serve) == ["3g.40gb@4"]
    assert texts(change.destroy) == ["1g.10gb@4", "1g.10gb@5", "1g.10gb@6"]
    assert "nothing in use is touched" in plan.reason


def test_dra_driver_933_the_2g_is_cut_on_the_card_with_the_holes():
    cards = [GpuSlices(at("1g.10gb@0", "1g.10gb@1", "1g.10gb@5"), at("1g.10gb@2", "1g.10gb@3"))]
    plan = plan_for(cards, "2g.20gb")
    assert texts(plan.changes[0].serve) == ["2g.20gb@2"]
    assert plan.destroyed == 2


def test_dra_driver_933_the_no_names_the_one_instance_that_must_end():
    stuck = plan_for([GpuSlices(at("1g.10gb@0", "1g.10gb@1", "1g.10gb@5"))], "3g.40gb")
    assert isinstance(stuck, recut.RecutRefusal)
    assert stuck.reason is slots.Shortage.HOLE
    assert [(card, texts([each])) for card, each in stuck.ends] == [(0, ["1g.10gb@5"])]
    assert "0 of 1 x 3g.40gb" in stuck.detail
    assert "1g.10gb@5 on GPU 0" in stuck.detail


def test_a_spare_instance_serves_as_it_is():
    plan = plan_for([GpuSlices(), GpuSlices(spare=at("3g.40gb@4", "1g.10gb@0"))], "3g.40gb")
    assert (plan.destroyed, plan.created) == (0, 0)
    assert plan.changes[0].gpu == 1
    assert "as they are" in plan.reason


def test_free_units_are_used_before_spare_instances_are_destroyed():
    plan = plan_for([GpuSlices(spare=at("7g.80gb@0")), GpuSlices(at("4g.40gb@0"))], "3g.40gb")
    assert plan.changes[0].gpu == 1
    assert (plan.destroyed, plan.created) == (0, 1)


def test_instaslice_614_two_slices_are_two_instances():
    plan = plan_for([GpuSlices(at("4g.40gb@0"), at("3g.40gb@4"))], "1g.10gb", 2)
    served = [each for change in plan.changes for each in change.serve]
    assert len(served) == len(set(served)) == 2
    assert plan.destroyed == 1


def test_several_instances_are_shared_out_over_cards():
    plan = plan_for([GpuSlices(at("3g.40gb@0")), GpuSlices(at("7g.80gb@0")), GpuSlices(at("4g.40gb@0"))], "3g.40gb", 2)
    assert [change.gpu for change in plan.changes] == [0, 2]


def test_more_than_the_cards_hold_is_a_no_without_a_way_out():
    stuck = plan_for([GpuSlices()], "3g.40gb", 3)
    assert (stuck.asked, stuck.possible, stuck.ends) == (3, 2, ())
    assert stuck.reason is slots.Shortage.FULL
    assert "too few" in stuck.detail


def test_an_instance_that_ended_is_spare():
    card = recut.free_instance(GpuSlices(at("3g.40gb@0", "1g.10gb@6")), *at("1g.10gb@6"))
    assert card == GpuSlices(at("3g.40gb@0"), at("1g.10gb@6"))


def test_a_card_cut_into_unknown_profiles_is_refused():
    with pytest.raises(errors.Permanent, match=r"1g.20gb@6 is no place"):
        plan_for([GpuSlices(spare=at("1g.20gb@6"))], "1g.10gb")


def every_way(card, profile):
    """Destroyed and created of every legal way to serve one instance, by trying all sets of spare instances."""
    for size in range(len(card.spare) + 1):
        for kept in itertools.combinations(card.spare, size):
            for place in ATLAS.places_of(profile):
                wanted = ATLAS.places[place]
                if wanted in card.spare:
                    if wanted in kept:
                        yield len(card.spare) - size, 0
                elif wanted not in card.used and not mig.find_problems(A100, [*card.used, *kept, wanted]):
                    yield len(card.spare) - size, 1


@pytest.mark.parametrize("seed", range(40))
def test_no_way_is_cheaper_on_random_cards(seed):
    rng = np.random.default_rng(seed)
    cards = []
    for _ in range(3):
        layout = ATLAS.layout(int(rng.integers(len(ATLAS))))
        used = rng.random(len(layout)) < 0.5
        cards.append(
            GpuSlices(
                tuple(each for each, is_used in zip(layout, used, strict=True) if is_used),
                tuple(each for each, is_used in zip(layout, used, strict=True) if not is_used),
            )
        )
    for profile in ATLAS.profiles:
        cheapest = min((way for card in cards for way in every_way(card, profile.name)), default=None)
        found = plan_for(cards, profile.name)
        if cheapest is None:
            assert isinstance(found, recut.RecutRefusal)
        else:
            assert (found.destroyed, found.created) == cheapest
