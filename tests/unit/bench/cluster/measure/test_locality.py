"""How near the pods of a gang are, and how near they could be."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.examples import examples

from kgwe.bench.cluster.measure import locality
from kgwe.bench.cluster.measure.locality import Landed


def site(*rooms: int, gpus: int = 8) -> tuple[dict[str, str], dict[str, int]]:
    """(node -> leaf, node -> free GPUs) with so many free nodes in each leaf."""
    names = {f"{leaf}-{number}": f"leaf-{leaf}" for leaf, room in enumerate(rooms) for number in range(room)}
    return names, dict.fromkeys(names, gpus)


def landed(pods: int, *nodes: str, gpus: int = 8) -> Landed:
    return Landed(pods, gpus, nodes)


def test_gangs_in_one_leaf_are_told_from_those_that_are_spread():
    leaf_of, free = site(4, 4)
    gangs = [landed(2, "0-0", "0-1"), landed(2, "0-2", "1-0"), landed(2, "1-1", "1-2")]
    found = locality.measure_locality(gangs, leaf_of, free)
    assert (found.one_leaf_share, found.mean_leaves, found.ideal_leaves) == (0.6667, 1.333, 1.0)
    assert found.max_leaves == 2
    assert (found.whole_gangs, found.partial_gangs) == (3, 0)


def test_a_gang_bound_in_part_is_counted_and_one_not_bound_at_all_is_not():
    leaf_of, free = site(2)
    found = locality.measure_locality([landed(2, "0-0"), landed(2)], leaf_of, free)
    assert (found.whole_gangs, found.partial_gangs) == (0, 1)
    assert found.one_leaf_share is found.mean_leaves is found.ideal_leaves is None


@pytest.mark.parametrize(
    ("rooms", "sizes", "least"),
    [
        ((16, 16, 16), (32,), 2),
        ((16, 16, 16), (33,), 3),
        ((16, 16), (8, 8, 8, 8), 4),
        ((12, 8), (12,), 1),
        ((12, 8, 8), (12, 12), 3),  # only one leaf holds a whole one
        ((8, 8, 8), (12, 12), 4),
        ((5, 3), (3, 3), 2),
    ],
)
def test_the_fewest_leaves_of_gangs_of_one_kind(rooms: tuple[int, ...], sizes: tuple[int, ...], least: int):
    leaf_of, free = site(*rooms)
    assert locality.count_fewest_leaves([landed(size) for size in sizes], leaf_of, free) == least


def test_half_free_nodes_hold_small_pods_only():
    leaf_of, free = site(2, 2)
    free |= {"1-0": 4, "1-1": 4}
    assert locality.count_fewest_leaves([landed(2, gpus=8)], leaf_of, free) == 1
    assert locality.count_fewest_leaves([landed(3, gpus=8)], leaf_of, free) == 2
    assert locality.count_fewest_leaves([landed(4, gpus=4)], leaf_of, free) == 1


def best(rooms: tuple[int, ...], sizes: tuple[int, ...]) -> int | None:
    """The fewest leaves of whole-node gangs over all arrangements; None when they do not fit."""
    if not sizes:
        return 0
    found = []
    first, rest = sizes[0], sizes[1:]
    for shares in itertools.product(*(range(min(room, first) + 1) for room in rooms)):
        if sum(shares) == first:
            others = best(tuple(room - share for room, share in zip(rooms, shares, strict=True)), rest)
            if others is not None:
                found.append(others + sum(1 for share in shares if share))
    return min(found, default=None)


@examples(60)
@given(
    rooms=st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple),
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple),
)
def test_no_arrangement_beats_the_bound(rooms: tuple[int, ...], sizes: tuple[int, ...]):
    leaf_of, free = site(*rooms)
    optimum = best(rooms, sizes)
    bound = locality.count_fewest_leaves([landed(size) for size in sizes], leaf_of, free)
    if optimum is not None:
        assert bound <= optimum
        if len(sizes) == 1:
            assert bound == optimum
