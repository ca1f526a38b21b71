"""The meter of a node writes the same segments as a sweep over all facts, whenever the facts arrive."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st
from tests.support.builders.costs import T0, Everyone

from kgwe.costing import books
from kgwe.costing.metering.device_choice import GpuWish, choose_devices, guess_layouts
from kgwe.costing.metering.division import Claim, GpuClaim, GpuCut
from kgwe.costing.metering.meter import NodeMeter, NodeState
from kgwe.costing.metering.timeline import ClaimSpan
from kgwe.costing.prices.book import NodeKind, Price, PriceBook
from kgwe.costing.segments import Bucket, Part, Segment, SegmentKey
from kgwe.costing.split import HostShape, SplitMethod
from kgwe.model.gpu.mig import GEOMETRIES

GPUS = tuple(GpuCut(f"GPU-{number}", "H100", shares=4) for number in range(4))
STATE = NodeState("node", NodeKind("p5", "us", gpu_model="H100", gpus=4), GPUS, HostShape(8000, 2**34))
BOOK = PriceBook(
    (
        Price(4_000_000, instance_type="p5", region="us", valid_until_s=T0 + 500),
        Price(3_999_999, instance_type="p5", region="us", valid_from_s=T0 + 500),
    )
)
METHOD = SplitMethod.FIXED
TICK, GRACE, END = 60, 120, 1200


def write(ledger: dict[SegmentKey, Segment], segments: list[Segment]) -> None:
    for each in segments:
        if each.seconds:
            ledger[each.key] = each
        else:
            del ledger[each.key]


def make_claims(rng: random.Random) -> list[ClaimSpan]:
    found = []
    for number in range(rng.randint(1, 8)):
        start = T0 + rng.randint(0, END - 100)
        end = rng.choice((None, start + rng.randint(1, 600)))
        held = (GpuClaim(f"GPU-{rng.randrange(4)}", rng.choice((Part.GPU, Part.SHARE))),)
        found.append(ClaimSpan(start, end, Claim(f"pod-{number}", gpus=held, cpu_milli=rng.randint(0, 2000))))
    return found


@given(st.integers(0, 2**32), st.booleans())
def test_facts_that_come_late_by_less_than_the_grace_lose_nothing(seed, restart):
    rng = random.Random(seed)
    claims, everyone = make_claims(rng), Everyone()
    told: list[tuple[int, ClaimSpan]] = []
    for span in claims:
        delay = 0 if restart else rng.randint(0, GRACE - TICK)
        told.append((span.start_s + delay, ClaimSpan(span.start_s, None, span.claim)))
        if span.end_s is not None:
            told.append((span.end_s + delay, span))
            told.append((span.end_s + delay, span))  # twice
    told.sort(key=lambda each: each[0])
    ledger: dict[SegmentKey, Segment] = {}
    meter = NodeMeter(T0)
    meter.set_state(T0, STATE)
    for now in range(T0 + TICK, T0 + END + GRACE + TICK, TICK):
        while told and told[0][0] <= now:
            span = told.pop(0)[1]
            meter.set_claim(span, everyone[span.claim.holder])
        write(ledger, meter.derive(min(now, T0 + END), BOOK, METHOD))
        meter.settle(min(now, T0 + END) - GRACE, BOOK, METHOD)
        if restart and rng.random() < 0.2:
            # A new process starts where the last one had counted to, and reads the pods that the cluster still has.
            meter = NodeMeter(min(now, T0 + END))
            meter.set_state(T0, STATE)
            for span in claims:
                if span.start_s <= now:
                    seen = (
                        span
                        if span.end_s is not None and span.end_s <= now
                        else ClaimSpan(span.start_s, None, span.claim)
                    )
                    meter.set_claim(seen, everyone[span.claim.holder])
    whole = NodeMeter(T0)
    whole.set_state(T0, STATE)
    for span in claims:
        whole.set_claim(span, everyone[span.claim.holder])
    expected = whole.derive(T0 + END, BOOK, METHOD)
    found = books.keep_books(ledger.values(), T0, T0 + END)
    assert found.unbalanced == 0
    assert found.by_bucket == books.keep_books(expected, T0, T0 + END).by_bucket
    assert books.attribute(ledger.values(), T0, T0 + END, books.Dimension.POD) == books.attribute(
        expected, T0, T0 + END, books.Dimension.POD
    )
    if not restart:
        assert set(ledger.values()) == set(expected)


def test_a_price_change_ends_segments():
    meter = NodeMeter(T0)
    meter.set_state(T0, STATE)
    fleet = [each for each in meter.derive(T0 + 1000, BOOK, METHOD) if each.bucket is Bucket.FLEET]
    assert [(each.start_s - T0, each.seconds, each.rate) for each in fleet] == [
        (0, 500, 4_000_000),
        (500, 500, 3_999_999),
    ]


def test_a_node_without_a_price_is_metered_without_money():
    meter = NodeMeter(T0)
    meter.set_state(T0, STATE)
    found = books.keep_books(meter.derive(T0 + 3600, PriceBook(), METHOD), T0, T0 + 3600)
    assert found.fleet == 0
    assert found.sums(Bucket.UNALLOCATED).unpriced_ppm_s == 4 * 3600 * 1_000_000


def test_a_node_that_is_gone_costs_nothing_more():
    meter = NodeMeter(T0)
    meter.set_state(T0, STATE)
    meter.set_state(T0 + 100, None)
    found = meter.derive(T0 + 500, BOOK, METHOD)
    assert {each.end_s for each in found} == {T0 + 100}
    meter.settle(T0 + 400, BOOK, METHOD)
    assert meter.is_finished


def test_a_pod_gets_free_gpus_first():
    held = [GpuClaim("GPU-0"), GpuClaim("GPU-2", Part.SHARE, -1, 1)]
    assert [each.gpu for each in choose_devices(GpuWish(gpus=2), GPUS, held)] == ["GPU-1", "GPU-3"]
    assert [each.gpu for each in choose_devices(GpuWish(gpus=4), GPUS, held)] == ["GPU-1", "GPU-3", "GPU-0", "GPU-2"]


def test_sharers_fill_a_gpu():
    held: list[GpuClaim] = []
    for _ in range(16):
        held += choose_devices(GpuWish(shares=1), GPUS, held)
    assert {gpu.uuid: sum(each.gpu == gpu.uuid for each in held) for gpu in GPUS} == {gpu.uuid: 4 for gpu in GPUS}


def test_layouts_are_guessed_from_the_advertised_slices():
    geometry = GEOMETRIES["A100-80GB"]
    layouts = guess_layouts(geometry, 2, {"3g.40gb": 3, "1g.10gb": 3})
    assert sorted(place.profile for layout in layouts for place in layout) == ["1g.10gb"] * 3 + ["3g.40gb"] * 3
    cut = tuple(GpuCut(f"GPU-{number}", "A100", geometry, layout) for number, layout in enumerate(layouts))
    held: list[GpuClaim] = []
    for _ in range(3):
        held += choose_devices(GpuWish(slices=(("3g.40gb", 1),)), cut, held)
    assert len(set(held)) == 3
