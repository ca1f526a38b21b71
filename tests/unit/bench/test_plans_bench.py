"""The benchmark of plans says what it is asked to say."""

import pytest

from kgwe.bench.placement import plans


@pytest.mark.slow
def test_it_finds_every_plan_and_counts_what_it_costs():
    measured = plans.run(plans.Options(nodes=64, repeat=1, small=8))
    assert plans.is_correct(measured.metrics)
    assert measured.metrics["running_pods"] == 64 * 8
    assert measured.metrics["preempt_pod_proven"]
    assert measured.metrics["preempt_gang_leaf_victims"] >= 16
    assert measured.metrics["recover_node_moves"] > 0
    assert measured.metrics["defrag_pod_evictions"] > 0
    assert measured.metrics["small_fleets"] > 0
    assert measured.metrics["proposed_mean_excess"] >= 0
    assert all(value >= 0 for name, value in measured.metrics.items() if name.endswith("_s"))


@pytest.mark.parametrize("unplanned", [0, 1])
def test_a_plan_that_was_not_found_is_not_correct(unplanned):
    assert plans.is_correct({"unplanned": unplanned}) is not bool(unplanned)
