"""Segments cover what a node costs, to the micro-dollar, whatever happened on it and however it is told."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.builders.costs import A100, T0, Everyone, make_history, use_of

from kgwe.costing import books
from kgwe.costing.metering.division import Claim, GpuClaim, GpuCut, NodeCut, divide_node
from kgwe.costing.metering.mig_weights import SlicePlace, weigh_slices
from kgwe.costing.metering.timeline import ClaimSpan, NodeSpan, sweep_node
from kgwe.costing.prices.book import Capacity
from kgwe.costing.segments import Bucket, Part
from kgwe.costing.split import Rates

HOUR = 3600
DOLLAR = 1_000_000


def node_of(dollars: int = 1, gpus: int = 1, *, shares: int = 1, slices: tuple[SlicePlace, ...] = ()) -> NodeCut:
    cards = tuple(GpuCut(f"GPU-{number}", "A100", A100, slices, shares) for number in range(gpus))
    return NodeCut("node", Rates(dollars * DOLLAR, 0, 0), cards, price="book")


def allocated(found: books.Books) -> int:
    return found.sums(Bucket.ALLOCATED).ticks


def bill(node: NodeCut, claims: list[ClaimSpan], start: int, end: int) -> books.Books:
    swept = sweep_node([NodeSpan(start, None, node)], claims, (start, end), Everyone())
    return books.keep_books(swept.segments, start, end)


class TestKnownAmounts:
    @given(st.lists(st.integers(T0, T0 + 10 * HOUR), max_size=30))
    def test_a_dollar_an_hour_for_ten_hours_is_ten_dollars_however_it_is_sampled(self, cuts):
        span = ClaimSpan(T0, None, Claim("a", gpus=(GpuClaim("GPU-0"),)))
        moments = sorted({T0, *cuts, T0 + 10 * HOUR})
        opened, kept = None, {}
        for start, end in itertools.pairwise(moments):
            swept = sweep_node([NodeSpan(T0, None, node_of())], [span], (start, end), Everyone(), opened)
            opened = swept.open
            kept.update({each.key: each for each in swept.segments})
        found = books.keep_books(kept.values(), T0, moments[-1])
        assert allocated(found) == 10 * DOLLAR * 3600
        sampled = [books.keep_books(kept.values(), *pair) for pair in itertools.pairwise(moments)]
        assert sum(map(allocated, sampled)) == 10 * DOLLAR * 3600

    def test_four_sharers_for_an_hour_are_one_gpu_hour(self):
        claims = [
            ClaimSpan(T0, None, Claim(uid, gpus=(GpuClaim("GPU-0", Part.SHARE),))) for uid in ("a", "b", "c", "d")
        ]
        found = bill(node_of(2, shares=4), claims, T0, T0 + HOUR)
        sums = found.sums(Bucket.ALLOCATED)
        assert sums.ppm_s == 1_000_000 * HOUR
        assert sums.ticks == 2 * DOLLAR * HOUR
        assert found.unallocated == 0

    def test_two_3g_slices_pay_the_whole_gpu_in_equal_parts(self):
        layout = (SlicePlace("3g.20gb", 0), SlicePlace("3g.20gb", 4))
        claims = [
            ClaimSpan(T0, None, Claim("a", gpus=(GpuClaim("GPU-0", Part.SLICE, 0),))),
            ClaimSpan(T0, None, Claim("b", gpus=(GpuClaim("GPU-0", Part.SLICE, 4),))),
        ]
        swept = sweep_node([NodeSpan(T0, None, node_of(slices=layout))], claims, (T0, T0 + HOUR), Everyone())
        costs = {each.holder.uid: each.ticks for each in swept.segments if each.holder}
        assert costs == {"a": DOLLAR * HOUR // 2, "b": DOLLAR * HOUR // 2}

    def test_a_pod_of_90_seconds_costs_90_seconds(self):
        claims = [ClaimSpan(T0 + 17, T0 + 107, Claim("a", gpus=(GpuClaim("GPU-0"),)))]
        found = bill(node_of(4), claims, T0, T0 + HOUR)
        assert allocated(found) == 90 * 4 * DOLLAR
        assert found.unallocated == (HOUR - 90) * 4 * DOLLAR

    def test_pods_on_the_same_claim_share_its_cost(self):
        claims = [ClaimSpan(T0, None, Claim(uid, gpus=(GpuClaim("GPU-0"),))) for uid in ("a", "b")]
        swept = sweep_node([NodeSpan(T0, None, node_of())], claims, (T0, T0 + HOUR), Everyone())
        assert sorted(each.ticks for each in swept.segments if each.holder) == [DOLLAR * HOUR // 2] * 2

    def test_a_pod_without_gpus_pays_for_cpus_and_memory(self):
        node = NodeCut("node", Rates(950_000, 30_000, 20_000), (GpuCut("GPU-0"),), cpu_milli=8000, memory_bytes=64)
        lines = divide_node(node, [Claim("a", cpu_milli=2000, memory_bytes=16)])
        assert [each.rate for each in lines if each.holder == "a"] == [7_500 + 5_000]

    def test_what_no_pod_holds_on_a_reserved_node_is_reserved_idle(self):
        node = NodeCut("node", Rates(DOLLAR, 0, 0), (GpuCut("GPU-0"),), capacity=Capacity.RESERVED, price="book")
        found = bill(node, [], T0, T0 + HOUR)
        assert (found.reserved_idle, found.unallocated, found.unbalanced) == (DOLLAR * HOUR, 0, 0)

    def test_a_daemonset_is_overhead(self):
        claims = [ClaimSpan(T0, None, Claim("d", is_overhead=True, gpus=(GpuClaim("GPU-0"),)))]
        found = bill(node_of(), claims, T0, T0 + HOUR)
        assert found.sums(Bucket.OVERHEAD).ticks == DOLLAR * HOUR
        assert found.unbalanced == 0


class TestSlices:
    def test_slices_of_a_full_gpu_weigh_the_whole_gpu(self):
        for layout in (
            [("7g.40gb", 0)],
            [("4g.20gb", 0), ("3g.20gb", 4)],
            [("1g.5gb", start) for start in range(7)],
            [("3g.20gb", 0), ("2g.10gb", 4), ("1g.5gb", 6)],
        ):
            weights = weigh_slices(A100, tuple(SlicePlace(*each) for each in layout))
            assert weights.rest == 0

    def test_a_gpu_with_room_leaves_the_rest_unallocated(self):
        weights = weigh_slices(A100, (SlicePlace("3g.20gb", 0),))
        # 3 of 7 compute slices and 4 of 8 memory slices.
        assert weights.slices[0] / (weights.slices[0] + weights.rest) == (3 / 7 + 4 / 8) / 2


def count_each_second(nodes: list[NodeSpan], claims: list[ClaimSpan], start: int, end: int) -> dict[Bucket, int]:
    """The oracle: divide the node in every single second."""
    total: dict[Bucket, int] = {}
    for at in range(start, end):
        alive = [each for each in nodes if each.start_s <= at and (each.end_s is None or at < each.end_s)]
        if not alive:
            continue
        node = max(alive, key=lambda each: each.start_s).node
        held = [each.claim for each in claims if each.start_s <= at and (each.end_s is None or at < each.end_s)]
        for line in divide_node(node, sorted(held, key=lambda each: each.holder)):
            total[line.bucket] = total.get(line.bucket, 0) + line.rate
    return {bucket: ticks for bucket, ticks in total.items() if ticks}


@given(st.integers(0, 2**32), st.integers(0, 60), st.integers(0, 60))
def test_books_balance_and_equal_the_sum_of_all_seconds(seed, skip, drop):
    nodes, claims = make_history(seed, 120)
    start, end = T0 + skip, T0 + 120 - drop
    swept = sweep_node(nodes, claims, (T0, T0 + 120), Everyone())
    found = books.keep_books(swept.segments, start, end)
    assert found.unbalanced == 0
    assert {bucket: sums.ticks for bucket, sums in found.by_bucket.items() if sums.ticks} == count_each_second(
        nodes, claims, start, end
    )
    assert all(each.rate >= 0 for each in swept.segments)
    by_namespace = books.attribute(swept.segments, start, end, books.Dimension.NAMESPACE)
    assert sum(each.ticks for each in by_namespace.values()) == found.allocated + found.idle


@given(st.integers(0, 2**32), st.randoms(use_true_random=False))
def test_facts_may_come_late_twice_and_in_any_order(seed, rng):
    nodes, claims = make_history(seed)
    window = (T0, T0 + 400)
    straight = sweep_node(nodes, claims, window, Everyone())
    told = [*claims, *rng.sample(claims, len(claims) // 2)]
    rng.shuffle(told)
    shuffled = sorted(nodes, key=lambda _: rng.random())
    assert set(sweep_node(shuffled, told, window, Everyone()).segments) == set(straight.segments)


@given(st.integers(0, 2**32), st.lists(st.integers(1, 399), max_size=4))
def test_windows_add_up(seed, edges):
    nodes, claims = make_history(seed)
    segments = sweep_node(nodes, claims, (T0, T0 + 400), Everyone()).segments
    measured = [use_of(each, seed) for each in segments]
    whole = books.keep_books(measured, T0, T0 + 400)
    assert whole.unbalanced == 0
    moments = sorted({T0, T0 + 400, *(T0 + each for each in edges)})
    parts = [books.keep_books(measured, *pair) for pair in itertools.pairwise(moments)]
    for name in ("fleet", "allocated", "idle", "unallocated", "reserved_idle"):
        assert sum(getattr(part, name) for part in parts) == getattr(whole, name)
        assert all(getattr(part, name) >= 0 for part in parts)


@given(st.integers(0, 2**32), st.integers(1, 399))
def test_a_restart_changes_no_cost(seed, at):
    """What is counted after a restart begins where the last count ended."""
    nodes, claims = make_history(seed)
    whole = sweep_node(nodes, claims, (T0, T0 + 400), Everyone())
    before = sweep_node(nodes, claims, (T0, T0 + at), Everyone())
    after = sweep_node(nodes, claims, (T0 + at, T0 + 400), Everyone())
    rows = {each.key: each for each in (*before.segments, *after.segments)}
    assert (
        books.keep_books(rows.values(), T0, T0 + 400).by_bucket
        == books.keep_books(whole.segments, T0, T0 + 400).by_bucket
    )
    carried = sweep_node(nodes, claims, (T0 + at, T0 + 400), Everyone(), before.open)
    rows = {each.key: each for each in (*before.segments, *carried.segments)}
    assert set(rows.values()) == set(whole.segments)


def test_segments_end_at_midnight():
    midnight = 20_000 * 86_400
    swept = sweep_node([NodeSpan(midnight - 50, None, node_of())], [], (midnight - 50, midnight + 50), Everyone())
    assert sorted((each.start_s, each.end_s) for each in swept.segments if each.bucket is Bucket.FLEET) == [
        (midnight - 50, midnight),
        (midnight, midnight + 50),
    ]


def test_a_segment_that_is_cut_costs_the_same():
    node = node_of(3)
    swept = sweep_node([NodeSpan(T0, None, node)], [], (T0, T0 + 100), Everyone())
    whole = use_of(next(each for each in swept.segments if each.bucket is Bucket.UNALLOCATED), 1)
    first, rest = whole.cut(T0 + 37)
    assert first.ticks + rest.ticks == whole.ticks
    assert first.measured_s + rest.measured_s == whole.measured_s
    assert first.busy_ms <= first.measured_s * 1000


@pytest.mark.slow
def test_ten_thousand_histories_balance():
    for seed in range(10_000):
        nodes, claims = make_history(seed)
        segments = sweep_node(nodes, claims, (T0, T0 + 400), Everyone()).segments
        edge = T0 + seed % 400
        parts = [books.keep_books(segments, T0, edge), books.keep_books(segments, edge, T0 + 400)]
        assert [part.unbalanced for part in parts] == [0, 0]
        assert sum(part.fleet for part in parts) == books.keep_books(segments, T0, T0 + 400).fleet
