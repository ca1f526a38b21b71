"""What holds for any network, however badly labelled."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kgwe.model.network import domains
from kgwe.model.network.domains import Place

LEVELS = ("leaf", "spine", "core")


@st.composite
def networks(draw: st.DrawFn) -> list[Place]:
    names = st.sampled_from(("", "a", "b", "c"))
    count = draw(st.integers(0, 12))
    return [
        Place(f"n{i}", tuple(draw(st.lists(names, max_size=3))), draw(names), draw(st.sampled_from((0.0, 12.5, 50.0))))
        for i in range(count)
    ]


@given(places=networks())
def test_domains_are_slices_that_nest(places):
    tree = domains.build_tree(places, LEVELS)
    count = len(places)
    assert sorted(tree.nodes) == sorted(place.node for place in places)
    for number, level in enumerate(tree.levels):
        assert level.starts[-1] == count
        for domain in range(len(level)):
            inside = level.nodes(domain)
            assert inside.start < inside.stop
            assert (tree.domain_of[number, inside] == domain).all()
            if number + 1 < len(LEVELS):
                assert (tree.domain_of[number + 1, inside] == level.parent[domain]).all()
        assert level.sums(np.ones(count, np.int64)).tolist() == np.bincount(tree.domain_of[number]).tolist()


@given(places=networks())
def test_distance_is_symmetric_and_unknown_is_farthest(places):
    tree = domains.build_tree(places, LEVELS, connected=[("leaf", "a", "b"), ("spine", "b", "c")])
    hops = np.array([tree.hops_from(node) for node in range(len(places))]).reshape(len(places), len(places))
    assert (hops == hops.T).all()
    assert (np.diag(hops) == 0).all()
    assert hops.max(initial=0) <= tree.unknown_hops
    assert all(tree.hops(a, b) == hops[a, b] for a in range(len(places)) for b in range(len(places)))
    rates = np.array([tree.gb_per_s_from(node) for node in range(len(places))]).reshape(len(places), len(places))
    assert (rates == rates.T).all()
    assert (rates[hops == tree.unknown_hops] == domains.UNKNOWN_GB_PER_S).all()


@given(places=networks())
def test_a_node_that_says_nothing_is_near_nobody(places):
    tree = domains.build_tree([*places, Place("silent")], LEVELS)
    hops = tree.hops_from(tree.position["silent"])
    assert sorted(hops)[1:] == [tree.unknown_hops] * len(places)


@given(places=networks(), seed=st.randoms(use_true_random=False))
def test_the_order_nodes_are_listed_in_makes_no_difference(places, seed):
    shuffled = list(places)
    seed.shuffle(shuffled)
    one, other = domains.build_tree(places, LEVELS), domains.build_tree(shuffled, LEVELS)
    assert one.nodes == other.nodes
    assert (one.domain_of == other.domain_of).all()


@given(places=networks())
def test_nodes_that_name_different_leaves_are_never_in_one(places):
    tree = domains.build_tree(places, LEVELS)
    leaf = {place.node: place.path[0] if place.path else "" for place in places}
    for domain in range(len(tree.levels[0])):
        assert len({leaf[name] for name in tree.nodes[tree.levels[0].nodes(domain)]}) == 1
