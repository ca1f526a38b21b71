"""Replays of recorded allocations: what each scenario costs, on cases that are counted by hand."""

from __future__ import annotations

import pytest

from kgwe.placement.pod.ranking import Strategy
from kgwe.scaling.replay.elastic_fleet import ElasticFleet
from kgwe.scaling.replay.recording import Allocation, Delays, NodeLife, Pool, Recording
from kgwe.scaling.replay.savings import measure_savings

HOUR = 3600
POOL = Pool("p5.48xlarge", "H100-SXM5-80GB", 8)
ON_DEMAND, SPOT = 8_000_000, 2_000_000


def life(name: str, start: int, end: int, *, spot: bool = False, prepaid: bool = False, pool: Pool = POOL) -> NodeLife:
    seconds = end - start
    return NodeLife(name, pool, spot, prepaid, start, end, seconds, seconds * (SPOT if spot else ON_DEMAND))


def fleet(allocations: list[Allocation], strategy: Strategy = Strategy.PACK, delays: Delays = Delays()):  # noqa: B008
    return ElasticFleet(8, strategy, delays, (0, 100 * HOUR)).run(allocations)


def test_a_node_is_bought_for_what_fits_nowhere_and_returned_when_it_stays_empty():
    delays = Delays(lead_s=100, tail_s=600)
    one = fleet([Allocation("n", 1000, 2000, gpus=8), Allocation("n", 1000, 2000, milli=250)], delays=delays)
    assert (one.nodes, one.launches) == (2, 2)
    assert one.node_s == 2 * (100 + 1000 + 600)
    # The next pod comes before the node is returned, and after it was.
    soon = fleet([Allocation("n", 1000, 2000, gpus=8), Allocation("n", 2600 - 1, 3000, gpus=8)], delays=delays)
    assert (soon.launches, soon.node_s) == (1, 100 + 2000 + 600)
    late = fleet([Allocation("n", 1000, 2000, gpus=8), Allocation("n", 2600, 3000, gpus=8)], delays=delays)
    assert (late.launches, late.node_s) == (2, 100 + 1000 + 600 + 100 + 400 + 600)


def test_nodes_that_are_never_returned_are_paid_until_the_end():
    kept = fleet([Allocation("n", HOUR, 2 * HOUR, gpus=1)], delays=Delays(0, None))
    assert kept.node_s == 99 * HOUR


def test_four_quarters_need_one_gpu_and_more_nodes_are_made_when_they_are_needed():
    assert fleet([Allocation("n", 0, HOUR, milli=250)] * 32).nodes == 1
    assert fleet([Allocation("n", 0, HOUR, milli=250)] * 33).nodes == 2
    many = fleet([Allocation("n", number, HOUR, gpus=8) for number in range(100)])
    assert many.nodes == 100


def test_each_step_is_the_difference_of_two_replays():
    """Two nodes, one of them spot; sixteen quarters on each. Without sharing each pod holds a GPU."""
    quarters = [Allocation(node, 0, HOUR, milli=250) for node in ("a", "b") for _ in range(16)]
    recording = Recording(0, HOUR, (life("a", 0, HOUR), life("b", 0, HOUR, spot=True)), tuple(quarters))
    found = measure_savings(recording)
    assert [each.node_s // HOUR for each in found.outcomes] == [4, 1, 1, 2]
    assert found.baseline == 4 * ON_DEMAND
    assert found.recorded == ON_DEMAND + SPOT
    assert found.saved == 3 * ON_DEMAND - SPOT
    assert dict(found.list_steps()) == {"sharing": 3 * ON_DEMAND, "placement": 0, "spot": -SPOT}
    assert found.possible == 0


def test_placement_saves_what_spread_pods_keep_from_being_returned():
    """A short pod on each of two nodes, then a long one: packed, one node holds all of them."""
    recorded = [Allocation("a", 0, HOUR, gpus=4), Allocation("a", 60, 10 * HOUR, gpus=1)]
    found = measure_savings(Recording(0, 10 * HOUR, (life("a", 0, 10 * HOUR),), tuple(recorded)))
    assert found.saved == found.possible == 0
    packed = [Allocation("a", 0, 2 * HOUR, gpus=3), Allocation("b", 0, 10 * HOUR, gpus=6)]
    both = (life("a", 0, 2 * HOUR), life("b", 0, 10 * HOUR))
    later = [Allocation("b", 60, 10 * HOUR, gpus=1), Allocation("b", 120, 10 * HOUR, gpus=1)]
    spread = measure_savings(Recording(0, 10 * HOUR, both, (*packed, *later)))
    assert dict(spread.list_steps())["placement"] > 0
    assert spread.baseline == 20 * ON_DEMAND


def test_what_is_paid_in_advance_is_the_same_in_every_scenario():
    recording = Recording(
        0, HOUR, (life("a", 0, HOUR, prepaid=True),), tuple(Allocation("a", 0, HOUR, milli=100) for _ in range(80))
    )
    found = measure_savings(recording)
    assert {each.micros for each in found.outcomes} == {found.recorded} == {ON_DEMAND}
    assert found.saved == found.possible == 0


def test_unknown_prices_are_reported_and_not_guessed():
    spot_only = Recording(0, HOUR, (life("a", 0, HOUR, spot=True),), (Allocation("a", 0, HOUR, gpus=1),))
    found = measure_savings(spot_only)
    assert found.assumed_spot == (POOL,)
    assert found.saved == 0
    priced = Recording(0, HOUR, spot_only.nodes, spot_only.allocations, {POOL: ON_DEMAND})
    assert measure_savings(priced).saved == ON_DEMAND - SPOT


def test_delays_are_those_of_nodes_that_began_or_ended_in_the_time():
    nodes = (life("a", 0, 1000), life("b", 200, 2000), life("c", 300, 5000))
    held = [Allocation("a", 0, 400, gpus=1), Allocation("b", 300, 1400, gpus=1), Allocation("c", 500, 5000, gpus=1)]
    found = Recording(0, 5000, nodes, tuple(held)).measure_delays()
    assert found == Delays(150, 600, 2, 2)
    assert Recording(0, 5000, (life("a", 0, 5000),), ()).measure_delays() == Delays(0, 0, 0, 0)


def test_a_pod_larger_than_its_node_is_known_to_be_still_has_a_place():
    small = Pool("unknown", "", 0)
    recording = Recording(0, HOUR, (life("a", 0, HOUR, pool=small),), (Allocation("a", 0, HOUR, gpus=4),))
    assert measure_savings(recording).saved == 0


@pytest.mark.parametrize("strategy", [Strategy.PACK, Strategy.LEAST_LOADED])
def test_a_replay_of_nothing_costs_nothing(strategy):
    assert fleet([], strategy).node_s == 0
