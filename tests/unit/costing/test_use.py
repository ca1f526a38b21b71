"""Measured use is integrated over segments, whenever it is told. Use that was not measured stays unknown."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.builders.costs import holder

from kgwe.costing.metering.division import Claim, GpuClaim, GpuCut
from kgwe.costing.metering.meter import NodeMeter, NodeState
from kgwe.costing.metering.quota import QuotaMeter, Spare, divide_spare
from kgwe.costing.metering.timeline import ClaimSpan
from kgwe.costing.metering.use import UseKey
from kgwe.costing.money import DAY_S
from kgwe.costing.prices.book import NodeKind, Price, PriceBook
from kgwe.costing.segments import PPM, Bucket, Segment, SegmentKey
from kgwe.costing.split import HostShape, SplitMethod

T0 = 1_700_006_400 - 300  # five minutes before midnight UTC
STATE = NodeState("node", NodeKind("p5"), (GpuCut("GPU-0"), GpuCut("GPU-1")), HostShape(8000, 2**34))
BOOK = PriceBook((Price(2_000_000, instance_type="p5"),))
STEP, TICK, GRACE, END = 30, 60, 180, 900


def meter_with(*spans: tuple[str, int, int | None]) -> NodeMeter:
    meter = NodeMeter(T0)
    meter.set_state(T0, STATE)
    for number, (uid, start, end) in enumerate(spans):
        claim = Claim(uid, gpus=(GpuClaim(f"GPU-{number}"),), cpu_milli=1000)
        meter.set_claim(ClaimSpan(T0 + start, None if end is None else T0 + end, claim), holder(uid))
    return meter


def run(meter: NodeMeter, told: list[tuple[int, UseKey, int, int]]) -> list[Segment]:
    """Count every minute; each (time told, key, start, milli) of a step arrives at its time."""
    written: dict[SegmentKey, Segment] = {}
    for now in range(TICK, END + GRACE + 1, TICK):
        for at, key, start, milli in told:
            if now - TICK < at <= now:
                meter.add_use(key, T0 + start, T0 + start + STEP, milli)
        for each in meter.derive(T0 + now, BOOK, SplitMethod.FIXED):
            if each.seconds:
                written[each.key] = each
            else:
                del written[each.key]
        meter.settle(T0 + now - GRACE, BOOK, SplitMethod.FIXED)
    return list(written.values())


@given(st.integers(0, 2**32))
def test_use_is_integrated_exactly_over_whatever_segments_there_are(seed):
    rng = random.Random(seed)
    ends = rng.randint(1, END), rng.choice((None, rng.randint(1, END)))
    meter = meter_with(("a", 0, ends[0]), ("b", rng.randint(0, END), ends[1]))
    told, expected = [], dict.fromkeys("ab", (0, 0))
    for start in range(0, END, STEP):
        for number, uid in enumerate("ab"):
            if rng.random() < 0.3:
                continue
            milli = rng.randint(0, 1000)
            key = UseKey("ml", f"pod-{uid}", f"GPU-{number}")
            told.append((start + STEP + rng.randint(0, GRACE - TICK - STEP), key, start, milli))
            span = next(each for each in meter.list_claims() if each.claim.holder == uid)
            last = T0 + END + GRACE if span.end_s is None else span.end_s
            seconds = max(min(last, T0 + start + STEP) - max(span.start_s, T0 + start), 0)
            measured, busy = expected[uid]
            expected[uid] = measured + seconds, busy + seconds * milli
    segments = run(meter, told)
    for uid in "ab":
        own = [each for each in segments if each.holder is not None and each.holder.uid == uid and each.ppm]
        assert (sum(each.measured_s for each in own), sum(each.busy_ms for each in own)) == expected[uid]
        for each in own:
            assert 0 <= each.measured_s <= each.seconds
            assert 0 <= each.busy_ms <= 1000 * each.measured_s
    assert not any(each.measured_s for each in segments if each.holder is None or not each.ppm)


def test_use_that_comes_after_the_grace_stays_unknown():
    key = UseKey("ml", "pod-a", "GPU-0")
    segments = run(meter_with(("a", 0, None)), [(30 + GRACE + 2 * TICK, key, 0, 500), (60, key, 30, 500)])
    assert sum(each.measured_s for each in segments) == STEP


def test_devices_of_a_pod_count_alike_where_the_node_does_not_name_them():
    segments = run(meter_with(("a", 0, None)), [(60, UseKey("ml", "pod-a", ""), 0, 250)])
    (used,) = [each for each in segments if each.measured_s]
    assert (used.piece.gpu, used.measured_s, used.busy_ms) == ("GPU-0", STEP, STEP * 250)


def test_unused_quota_names_who_keeps_unallocated_gpus():
    spare = Spare(3_000_000, 3 * PPM)
    assert divide_spare({"a": 1, "b": 1}, spare) == {"a": Spare(1_000_000, PPM), "b": Spare(1_000_000, PPM)}
    # More quota than there is to have: together they keep all of it.
    kept = divide_spare({"a": 10, "b": 20}, spare)
    assert sum(each.rate for each in kept.values()) == spare.rate
    assert kept["b"].ppm == 2 * kept["a"].ppm
    assert divide_spare({"a": 4, "b": 0}, Spare(0, 0)) == {}


@pytest.mark.parametrize("every", [1, 7, 60, 599])
def test_unused_quota_costs_the_same_however_often_it_is_counted(every):
    meter, written = QuotaMeter(T0), {}
    for now in sorted({*range(0, 600, every), 600}):
        for each in meter.count(T0 + now, {"a": 2}, Spare(4_000_000, 4 * PPM)):
            assert each.start_s // DAY_S == (each.end_s - 1) // DAY_S
            written[each.key] = each
    assert {each.bucket for each in written.values()} == {Bucket.QUOTA_HELD}
    assert len(written) == 2  # before and after midnight
    assert sum(each.ticks for each in written.values()) == 600 * 2_000_000
