"""Distributions: rounded as the rule says, laid out as well as any layout can, in-use instances kept."""

from __future__ import annotations

import functools
import itertools
import operator

import numpy as np
import pytest

from kgwe import errors
from kgwe.model.gpu import mig
from kgwe.sharing.mig import layout_graph, strategy
from kgwe.sharing.mig.recut import GpuSlices

A100 = mig.GEOMETRIES["A100-80GB"]


def at(*texts):
    return tuple(mig.parse_placement(A100, text) for text in texts)


def texts(placements):
    return [f"{each.profile.name}@{each.start}" for each in placements]


def test_shares_are_of_memory_units_over_all_cards():
    assert strategy.round_shares(A100, 4, {"3g.40gb": 0.5, "1g.10gb": 0.25}) == {"3g.40gb": 4, "1g.10gb": 8}


def test_the_largest_remainder_gets_the_units_that_are_left():
    # 24 units: 3.6 x 2g and 2.4 x 3g and 7.2 x 1g; three floors leave 24 - 6 - 8 - 7 = 3 units.
    shares = {"2g.20gb": 0.3, "3g.40gb": 0.4, "1g.10gb": 0.3}
    assert strategy.round_shares(A100, 3, shares) == {"2g.20gb": 4, "3g.40gb": 2, "1g.10gb": 8}


def test_three_thirds_are_one():
    third = 1 / 3
    counts = strategy.round_shares(A100, 3, {"3g.40gb": third, "2g.20gb": third, "1g.10gb": third})
    assert counts == {"3g.40gb": 2, "2g.20gb": 4, "1g.10gb": 8}


def test_what_is_left_of_one_stays_whole_cards():
    cut = strategy.plan_uncut(A100, 8, {"1g.10gb": 0.25})
    assert cut.whole == 6
    assert cut.counts == {"1g.10gb": 14}
    assert cut.short == {"1g.10gb": 2}


def test_the_seed_document_drawing_is_not_cut():
    # Six 1g and a 2g: eight compute slices on a card that has seven.
    cut = strategy.plan_uncut(A100, 1, {"1g.10gb": 0.75, "2g.20gb": 0.25})
    assert cut.wanted == {"1g.10gb": 6, "2g.20gb": 1}
    assert cut.counts == {"1g.10gb": 5, "2g.20gb": 1}
    assert mig.find_problems(A100, cut.gpus[0].layout) == []


def test_halves_fill_the_card():
    cut = strategy.plan_uncut(A100, 2, {"3g.40gb": 1.0})
    assert [texts(card.layout) for card in cut.gpus] == [["3g.40gb@0", "3g.40gb@4"]] * 2
    assert cut.shares == {"3g.40gb": 1.0}


def test_in_use_instances_stay_and_count():
    cards = [GpuSlices(at("1g.10gb@0", "1g.10gb@2")), GpuSlices(spare=at("7g.80gb@0"))]
    cut = strategy.fit_distribution(A100, cards, {"3g.40gb": 0.75, "1g.10gb": 0.25})
    assert set(at("1g.10gb@0", "1g.10gb@2")) <= set(cut.gpus[0].layout)
    assert cut.gpus[0].destroy == ()
    assert texts(cut.gpus[1].destroy) == ["7g.80gb@0"]
    assert cut.counts == {"3g.40gb": 3, "1g.10gb": 4}


def test_in_use_instances_beyond_their_share_are_reported():
    cut = strategy.fit_distribution(A100, [GpuSlices(at("7g.80gb@0"))], {"1g.10gb": 1.0})
    assert cut.over == {"7g.80gb": 1}
    assert cut.short == {"1g.10gb": 8}


def test_a_card_that_is_cut_as_wanted_is_left_alone():
    shares = {"3g.40gb": 0.5, "2g.20gb": 0.25, "1g.10gb": 0.25}
    first = strategy.plan_uncut(A100, 5, shares)
    again = strategy.fit_distribution(A100, [GpuSlices(spare=card.layout) for card in first.gpus], shares)
    assert [card.layout for card in again.gpus] == [card.layout for card in first.gpus]
    assert not any(card.destroy or card.create for card in again.gpus)


def test_spare_instances_in_the_way_are_destroyed():
    cards = [GpuSlices(spare=at("1g.10gb@0", "1g.10gb@4"))]
    cut = strategy.fit_distribution(A100, cards, {"3g.40gb": 0.5, "1g.10gb": 0.25})
    assert cut.short == {}
    assert texts(cut.gpus[0].destroy) in (["1g.10gb@4"], ["1g.10gb@0"])


@pytest.mark.parametrize(
    ("shares", "why"),
    [
        ({"1g.10gb": 0.7, "2g.20gb": 0.7}, "more than 1"),
        ({"1g.10gb": 0.0}, "above 0"),
        ({"1g.10gb": float("nan")}, "above 0"),
        ({"5g.50gb": 0.5}, "no MIG profile"),
    ],
)
def test_a_distribution_that_cannot_be_is_refused(shares, why):
    with pytest.raises(errors.Permanent, match=why):
        strategy.plan_uncut(A100, 2, shares)


@functools.cache
def most_units(atlas):
    """(cards, instances wanted) -> the most units of them any layouts have: all multisets tried."""
    sets = sorted({tuple(atlas.count_profiles(s).get(p.name, 0) for p in atlas.profiles) for s in range(len(atlas))})
    sized = [(counts, sum(n * p.units for n, p in zip(counts, atlas.profiles, strict=True))) for counts in sets]

    @functools.cache
    def best(left, remaining):
        if not left:
            return 0
        found = 0
        for counts, size in sized:
            rest = tuple(map(operator.sub, remaining, counts))
            if min(rest) >= 0:
                found = max(found, size + best(left - 1, rest))
        return found

    return best


@pytest.mark.parametrize("name", ["A100-80GB", "A30-24GB", "RTX-PRO-6000"])
@pytest.mark.parametrize("cards", [1, 2, 3])
def test_no_layout_serves_more_of_a_distribution(name, cards):
    geometry = mig.GEOMETRIES[name]
    names = [p for p in geometry.profiles if geometry.profiles[p].is_plain]
    atlas = layout_graph.get_layout_graph(geometry, names)
    rng = np.random.default_rng(cards)
    for _ in range(24 // cards):
        parts = rng.dirichlet(np.full(len(names), 0.6))
        shares = {p: round(float(x), 3) for p, x in zip(names, parts, strict=True) if x > 0.01}
        if sum(shares.values()) > 1:
            continue
        cut = strategy.plan_uncut(geometry, cards, shares)
        placed = sum(n * geometry.profile(p).units for p, n in cut.counts.items())
        cuttable = cards - strategy.count_whole_gpus(geometry, cards, shares)
        assert placed == most_units(atlas)(cuttable, tuple(cut.wanted.get(p.name, 0) for p in atlas.profiles)), shares


@pytest.mark.parametrize("geometry", [pytest.param(g, id=g.name) for g in mig.GEOMETRIES.values()])
def test_every_pair_of_profiles_gives_legal_layouts_and_exact_sums(geometry):
    # All profiles for one card of each family, which is what differs; names for all.
    is_widest = geometry is A100 or geometry.compute == 4
    names = geometry.profiles if is_widest else layout_graph.plain_profiles(geometry)
    for first, second in itertools.combinations(names, 2):
        shares = {first: 0.5, second: 0.3}
        cut = strategy.plan_uncut(geometry, 5, shares)
        for card in cut.gpus:
            assert mig.find_problems(geometry, card.layout) == []
        for name, n in cut.wanted.items():
            assert cut.counts.get(name, 0) + cut.short.get(name, 0) == n
            # Largest remainder: never a whole instance away from the share.
            assert abs(n - shares[name] * 5 * geometry.units / geometry.profile(name).units) < 1
        assert (
            sum(n * geometry.profile(name).units for name, n in cut.wanted.items()) <= 0.8 * 5 * geometry.units + 1e-9
        )
