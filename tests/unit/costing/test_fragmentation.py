"""The cost of no pod by cause, on cases that are counted by hand; the causes sum to it."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from kgwe.costing.fragmentation import Cause, Fragment, NodeHistory, Spare, price_causes
from kgwe.costing.segments import PPM


def price(spare, held, *, began=True, ended=True):
    found = price_causes([NodeHistory(spare, held, began, ended)])
    return {cause: each.ticks for cause, each in found.items() if each != Fragment()}


def test_empty_nodes_are_told_apart_by_the_pods_before_and_after():
    spare = [Spare(0, 1000, 2, PPM)]
    held = [(100, 300), (200, 400), (500, 900)]
    assert price(spare, held) == {
        Cause.STARTING: 200,
        Cause.BESIDE: 2 * 700,
        Cause.EMPTY: 200,
        Cause.DRAINING: 200,
    }
    # A node that was there before may have had a pod before, and one that stays may get another.
    assert price(spare, held, began=False, ended=False)[Cause.EMPTY] == 600
    assert price(spare, []) == {Cause.EMPTY: 2000}


def test_the_rest_of_a_shared_gpu_and_of_the_host_have_causes_of_their_own():
    spare = [Spare(0, 10, 3, PPM // 4), Spare(0, 10, 1, 0, is_host=True)]
    assert price(spare, [(0, 10)]) == {Cause.PARTS: 30, Cause.HOST: 10}


@given(st.integers(0, 2**32))
def test_the_causes_sum_to_what_no_pod_held(seed):
    rng = random.Random(seed)
    spare = []
    for _ in range(rng.randint(0, 12)):
        start = rng.randint(0, 100)
        spare.append(Spare(start, start + rng.randint(1, 50), rng.randint(0, 9), rng.choice((PPM, PPM, 250_000, 0))))
    held = [(start, start + rng.randint(1, 30)) for start in (rng.randint(0, 120) for _ in range(rng.randint(0, 5)))]
    found = price_causes([NodeHistory(spare, held, rng.random() < 0.5, rng.random() < 0.5)])
    assert sum(each.ticks for each in found.values()) == sum(each.rate * (each.end_s - each.start_s) for each in spare)
    assert sum(each.ppm_s for each in found.values()) == sum(each.ppm * (each.end_s - each.start_s) for each in spare)
