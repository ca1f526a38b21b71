"""Advice on spot: by measured interruptions, never without them."""

from __future__ import annotations

import math
import random

import pytest

from kgwe.cli.cost.spot import describe
from kgwe.costing.prices.book import PriceBook
from kgwe.scaling.replay.recording import Allocation, NodeLife, Pool, Recording
from kgwe.scaling.spot.advice import Verdict, advise, bound_rate, expand, measure_pools

HOUR = 3600
POOL = Pool("g6e.48xlarge", "L40S", 8)
END = 1000 * HOUR


def node(name: str, start_h: int, end_h: int, *, spot: bool, rate: int) -> NodeLife:
    seconds = (end_h - start_h) * HOUR
    return NodeLife(name, POOL, spot, not spot and rate == 0, start_h * HOUR, end_h * HOUR, seconds, seconds * rate)


def record(lost: int, hours: int, run_h: int, spot_rate: int = 3_000_000) -> Recording:
    """A workload on demand, and spot nodes of which some went away with a pod on them."""
    nodes = [node("od", 0, run_h, spot=False, rate=10_000_000)]
    held = [Allocation("od", 0, run_h * HOUR, gpus=8, owner="ml/Job/train", ticks=run_h * HOUR * 10_000_000)]
    for number in range(max(lost, 1)):
        length = hours // max(lost, 1)
        nodes.append(node(f"s{number}", 0, length, spot=True, rate=spot_rate))
        end_s = length * HOUR if number < lost else length * HOUR - 600
        held.append(Allocation(f"s{number}", 0, end_s, gpus=8, owner="ml/Job/other"))
    return Recording(0, END, tuple(nodes), tuple(held))


def test_interruptions_are_nodes_that_went_away_with_their_pods():
    (pool,) = measure_pools(record(lost=3, hours=300, run_h=10))
    assert (pool.interruptions, pool.node_s, pool.spot, pool.on_demand) == (3, 300 * HOUR, 3_000_000, 10_000_000)
    assert pool.rate == pytest.approx(0.01)
    (quiet,) = measure_pools(record(lost=0, hours=300, run_h=10))
    assert quiet.interruptions == 0
    assert quiet.bound == pytest.approx(-math.log(0.1) / 300)


def test_a_type_without_a_price_has_no_price():
    life = NodeLife("n", POOL, is_spot=False, is_prepaid=False, start_s=0, end_s=HOUR, paid_s=HOUR, ticks=0)
    recording = Recording(0, END, (life,), (Allocation("n", 0, HOUR, gpus=8, owner="ml/Job/train"),))
    (pool,) = pools = measure_pools(recording)
    assert (pool.spot, pool.on_demand) == (None, None)
    (shown,) = describe(recording, pools, advise(recording, pools), PriceBook(()))["pools"]
    assert (shown["spotPrice"], shown["onDemandPrice"]) == (None, None)


def test_short_runs_belong_on_spot_and_long_ones_need_checkpoints():
    for run_h, checkpoint_h, expected in (
        (10, None, Verdict.SPOT),
        (200, None, Verdict.CHECKPOINT),
        (200, 0.5, Verdict.SPOT),
    ):
        recording = record(lost=10, hours=500, run_h=run_h)
        (found,) = advise(recording, measure_pools(recording), checkpoint_h)
        assert found.verdict is expected, run_h
        assert found.owner == "ml/Job/train"
        assert (found.saves > 0) == (expected is Verdict.SPOT)


def test_spot_that_costs_as_much_is_not_advised_and_the_unknown_stays_unknown():
    dear = record(lost=1, hours=500, run_h=10, spot_rate=10_000_000)
    (found,) = advise(dear, measure_pools(dear))
    assert found.verdict is Verdict.ON_DEMAND
    unseen = Recording(0, END, (dear.nodes[0],), (dear.allocations[0],))
    (found,) = advise(unseen, measure_pools(unseen))
    assert (found.verdict, found.spot, found.saves) == (Verdict.UNKNOWN, None, 0)


def test_the_expected_run_time_is_that_of_simulated_interruptions():
    rng = random.Random(3)
    rate, run_h, piece = 0.2, 6.0, 2.0
    total = 0.0
    for _ in range(20_000):
        done = 0.0
        while done < run_h:
            lasts = rng.expovariate(rate)
            total += min(lasts, piece)
            done += piece if lasts >= piece else 0.0
    assert expand(run_h, rate, piece) == pytest.approx(total / 20_000, rel=0.02)
    assert expand(5.0, 0.0) == 5.0
    assert expand(1e6, 1.0) == math.inf


def test_the_bound_covers_the_true_rate_as_often_as_it_says():
    rng = random.Random(5)
    rate, hours = 0.03, 100.0
    covered = 0
    for _ in range(2000):
        at, events = rng.expovariate(rate), 0
        while at < hours:
            events, at = events + 1, at + rng.expovariate(rate)
        covered += bound_rate(events, hours) >= rate
    assert covered >= 0.9 * 2000
