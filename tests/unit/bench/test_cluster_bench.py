"""What the rounds of a cluster benchmark come to, and which sizes it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from kgwe.bench.cluster import nodes, scenarios
from kgwe.bench.cluster.benchmark import Options
from kgwe.bench.cluster.measure import summary
from kgwe.bench.cluster.measure.locality import Nearness
from kgwe.bench.cluster.phase import PhaseResult
from kgwe.bench.cluster.scenarios import Phase, Scenario
from kgwe.errors import Permanent


def result(per_s: float, **more) -> PhaseResult:
    numbers = {
        "bind_p50_s": 1.0,
        "bind_p99_s": 2.0,
        "submit_s": 0.5,
        "api_writes_per_pod": 4.0,
        "cpu_ms_per_pod": 20.0,
        "wall_s": 9.0,
        "cpu_s": {"etcd": 1.0},
        "rss_mb": {"etcd": 50.0},
        "writes": {"pods": 1.0},
    }
    return PhaseResult(**{"per_s": per_s, **numbers, **more})


def kgwe_result(per_s: float, **more) -> PhaseResult:
    mine = {
        "cpu_ms_per_pod": 25.0,
        "cpu_s": {"kgwe-scheduler": 3.0},
        "rss_mb": {"kgwe-scheduler": 60.0},
        "rss_peak_mb": 70.0,
    }
    return result(per_s, **{**mine, **more})


def near(partial_gangs: int, mean_leaves: float | None = 1.0) -> Nearness:
    share = None if mean_leaves is None else 1.0
    return Nearness(
        whole_gangs=3,
        partial_gangs=partial_gangs,
        one_leaf_share=share,
        mean_leaves=mean_leaves,
        ideal_leaves=mean_leaves,
    )


def options(scenario: Scenario = Scenario.FILL, **given) -> Options:
    own = {"gpus_per_node", "fleet", "phases", "warm_up", "repeat", "profile"}
    return Options(
        scenario=scenario,
        size=scenarios.size_of(scenario, **{name: given[name] for name in given.keys() - own}),
        **{name: given[name] for name in given.keys() & own},
    )


def test_one_round_is_reported_as_it_is():
    rounds = [{Phase.NULL: result(30.0), Phase.KUBE_SCHEDULER: result(20.0), Phase.KGWE: kgwe_result(15.0)}]
    metrics = summary.build_metrics(rounds, wall_s=30.04)
    assert (metrics["pods_per_s"], metrics["kube_scheduler_pods_per_s"], metrics["null_pods_per_s"]) == (15, 20, 30)
    assert (metrics["ratio"], metrics["cpu_ratio"]) == (0.75, 0.8)
    assert (metrics["relative_to_null"], metrics["kube_scheduler_relative_to_null"]) == (0.5, 0.667)
    assert "null_relative_to_null" not in metrics
    assert metrics["api_writes_per_pod"] == metrics["kube_scheduler_api_writes_per_pod"] == 4.0
    assert (metrics["rss_mb"], metrics["rss_peak_mb"], metrics["cpu_s"]) == (60.0, 70.0, 3.0)
    assert metrics["wall_s"] == 30.0
    assert "rounds" not in metrics
    assert summary.is_correct(metrics, fits_all=True)


def test_speed_relative_to_null_is_taken_round_by_round():
    rounds = [
        {Phase.NULL: result(null), Phase.KGWE: kgwe_result(mine)}
        for null, mine in ((40.0, 20.0), (20.0, 9.0), (10.0, 4))
    ]
    assert summary.build_metrics(rounds, wall_s=1.0)["relative_to_null"] == 0.45
    alone = summary.build_metrics([{Phase.KGWE: kgwe_result(15.0)}], wall_s=1.0)
    assert "relative_to_null" not in alone


def test_what_a_gate_leaves_possible_is_a_baseline_of_gangs_only():
    metrics = summary.build_metrics([{Phase.GATE: result(20.0), Phase.KGWE: kgwe_result(15.0)}], wall_s=1.0)
    assert (metrics["gate_pods_per_s"], metrics["gate_ratio"]) == (20.0, 0.75)
    options(Scenario.GANGS, phases=(Phase.GATE,)).check()
    with pytest.raises(Permanent, match="use gangs or biggang"):
        options(Scenario.FILL, phases=(Phase.GATE,)).check()


def test_several_rounds_are_medians_and_the_ratio_is_the_median_of_their_ratios():
    rounds = [
        {Phase.KUBE_SCHEDULER: result(alone), Phase.KGWE: kgwe_result(mine)}
        for alone, mine in ((10.0, 9.0), (20.0, 10.0), (40.0, 32.0))
    ]
    metrics = summary.build_metrics(rounds, wall_s=1.0)
    assert (metrics["kube_scheduler_pods_per_s"], metrics["pods_per_s"]) == (20.0, 10.0)
    assert metrics["ratio"] == 0.8
    assert metrics["rounds"] == {"kube-scheduler": [10.0, 20.0, 40.0], "kgwe": [9.0, 10.0, 32.0]}


@pytest.mark.parametrize("key", ["unbound", "doubled", "oversubscribed"])
def test_one_mistake_in_any_round_makes_the_whole_run_incorrect(key: str):
    rounds = [
        {Phase.KUBE_SCHEDULER: result(1.0)},
        {Phase.KUBE_SCHEDULER: result(1.0, **{key: 1})},
        {Phase.KUBE_SCHEDULER: result(1.0)},
    ]
    metrics = summary.build_metrics(rounds, wall_s=1.0)
    assert metrics[key] == 1
    assert not summary.is_correct(metrics, fits_all=True)


def test_work_that_is_not_meant_to_fit_may_stay_unbound():
    metrics = summary.build_metrics([{Phase.KGWE: kgwe_result(1.0, unbound=4)}], wall_s=1.0)
    assert summary.is_correct(metrics, fits_all=False)
    assert not summary.is_correct(metrics, fits_all=True)


def test_one_gang_bound_in_part_by_kgwe_in_any_round_is_a_mistake():
    rounds = [{Phase.KGWE: kgwe_result(1.0, nearness=near(gangs))} for gangs in (0, 1, 0)]
    metrics = summary.build_metrics(rounds, wall_s=1.0)
    assert metrics["partial_gangs"] == 1
    assert not summary.is_correct(metrics, fits_all=False)


def test_kube_scheduler_knows_no_gangs_and_may_bind_them_in_part():
    rounds = [{Phase.KUBE_SCHEDULER: result(1.0, nearness=near(3)), Phase.KGWE: kgwe_result(1.0, nearness=near(0))}]
    metrics = summary.build_metrics(rounds, wall_s=1.0)
    assert (metrics["partial_gangs"], metrics["kube_scheduler_partial_gangs"]) == (0, 3)
    assert summary.is_correct(metrics, fits_all=True)


def test_a_gang_of_which_nothing_was_bound_has_no_leaves_to_report():
    metrics = summary.build_metrics([{Phase.KGWE: kgwe_result(1.0, nearness=near(0, mean_leaves=None))}], wall_s=1.0)
    assert "mean_leaves" not in metrics
    assert metrics["whole_gangs"] == 3


def test_phases_that_were_not_asked_for_leave_no_numbers():
    metrics = summary.build_metrics([{Phase.NULL: result(100.0)}], wall_s=1.0)
    assert metrics["null_pods_per_s"] == 100.0
    assert not {"ratio", "pods_per_s", "kube_scheduler_pods_per_s", "rss_mb"} & metrics.keys()


def test_a_run_that_did_not_settle_in_one_round_did_not_settle():
    metrics = summary.build_metrics([{Phase.NULL: result(1.0)}, {Phase.NULL: result(1.0, settled=False)}], wall_s=1.0)
    assert metrics["phases"]["null"]["settled"] is False


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"nodes": 0}, "--nodes 0"),
        ({"pods": -1}, "--pods"),
        ({"pods": 0}, "nothing to do"),
        ({"repeat": 0}, "--repeat 0"),
        ({"phases": ()}, "--phases"),
        ({"nodes": 2, "pods": 17}, "2 nodes can hold 16"),
        ({"nodes": 2, "pods": 3, "gpus": 5, "warm_up": 0}, "hold 2"),
        ({"nodes": 1, "pods": 1, "gpus": 9, "warm_up": 0}, "hold 0"),
        ({"nodes": 1, "pods": 3, "warm_up": 0, "gpus_per_node": 2}, "1 node can hold 2"),
        ({"gpus_per_node": 0}, "--gpus-per-node 0"),
        ({"leaf": 0}, "--leaf 0"),
        ({"taken": 1.0}, "--taken 1.0"),
        ({"fleet": "no-such"}, "no fleet model 'no-such'"),
        ({"scenario": Scenario.GANGS, "gang_size": 0}, "gangs need --gang-size"),
        ({"scenario": Scenario.GANGS, "nodes": 16, "gangs": 3}, "24 pods do not fit: 16 nodes can hold 16"),
    ],
)
def test_a_size_that_cannot_work_is_refused_before_anything_starts(wrong, complaint: str):
    with pytest.raises(Permanent, match=complaint):
        options(**wrong).check()


@pytest.mark.parametrize("scenario", Scenario)
def test_the_own_size_of_every_scenario_is_accepted(scenario: Scenario):
    options(scenario, profile=Path("x")).check()


def test_a_fleet_model_tells_how_many_gpus_its_nodes_offer():
    assert options(nodes=3).node_set.gpus() == [8, 8, 8]
    assert options(nodes=2, fleet="gb200-nvl72").node_set.gpus() == [4, 4]
    assert options(nodes=2, gpus_per_node=5).node_set.gpus() == [5, 5]


def test_the_null_binder_spreads_pods_and_never_exceeds_a_node():
    assert nodes.round_robin({"a": 4, "b": 2, "c": 1}, [2, 2, 2, 2]) == ["a", "b", "a", None]
    assert nodes.round_robin({"a": 1, "b": 4}, [2, 1, 1, 2]) == ["b", "a", "b", None]
    assert nodes.round_robin({"a": 1}, [2]) == [None]
    assert nodes.count_slots([4, 2, 1], 2) == 3
