"""What the rounds of a cluster benchmark come to, and which sizes it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from kgwe.bench import cluster, nodes
from kgwe.bench.cluster import Options
from kgwe.bench.fill import PhaseResult
from kgwe.bench.load import Load, Phase
from kgwe.errors import Permanent


def result(per_s: float, **more) -> PhaseResult:
    numbers = {
        "bind_p50_s": 1.0,
        "bind_p99_s": 2.0,
        "submit_s": 0.5,
        "api_writes_per_pod": 8.0,
        "unbound": 0,
        "doubled": 0,
        "oversubscribed": 0,
        "refused_bindings": 0,
        "settled": True,
        "wall_s": 9.0,
        "cpu_s": {"etcd": 1.0},
        "writes": {"pods": 1.0},
    }
    return PhaseResult(**{"per_s": per_s, **numbers, **more})


def controller_result(per_s: float, **more) -> PhaseResult:
    mine = {"cpu_s": {"kgwe-scheduler": 3.0}, "rss_mb": 60.0, "rss_peak_mb": 70.0, "api_writes_per_pod": 13.0}
    return result(per_s, **{**mine, **more})


def test_one_round_is_reported_as_it_is():
    metrics = cluster.summarize([{Phase.JOBS: result(20.0), Phase.WORKLOADS: controller_result(15.0)}], wall_s=30.04)
    assert metrics["workloads_per_s"] == metrics["pods_per_s"] == 15.0
    assert metrics["kube_scheduler_jobs_per_s"] == 20.0
    assert metrics["ratio"] == 0.75
    assert (metrics["api_writes_per_pod"], metrics["baseline_api_writes_per_pod"]) == (13.0, 8.0)
    assert (metrics["rss_mb"], metrics["rss_peak_mb"], metrics["cpu_s"]) == (60.0, 70.0, 3.0)
    assert metrics["wall_s"] == 30.0
    assert "rounds_per_s" not in metrics
    assert cluster.is_correct(metrics)


def test_several_rounds_are_medians_and_the_ratio_is_the_median_of_their_ratios():
    rounds = [
        {Phase.JOBS: result(jobs), Phase.WORKLOADS: controller_result(mine)}
        for jobs, mine in ((10.0, 9.0), (20.0, 10.0), (40.0, 32.0))
    ]
    metrics = cluster.summarize(rounds, wall_s=1.0)
    assert (metrics["kube_scheduler_jobs_per_s"], metrics["workloads_per_s"]) == (20.0, 10.0)
    assert metrics["ratio"] == 0.8
    assert metrics["rounds_per_s"] == {"jobs": [10.0, 20.0, 40.0], "workloads": [9.0, 10.0, 32.0]}


@pytest.mark.parametrize("key", ["unbound", "doubled", "oversubscribed"])
def test_one_mistake_in_any_round_makes_the_whole_run_incorrect(key: str):
    rounds = [{Phase.PODS: result(1.0)}, {Phase.PODS: result(1.0, **{key: 1})}, {Phase.PODS: result(1.0)}]
    metrics = cluster.summarize(rounds, wall_s=1.0)
    assert metrics[key] == 1
    assert not cluster.is_correct(metrics)


def test_phases_that_were_not_asked_for_leave_no_numbers():
    metrics = cluster.summarize([{Phase.NULL: result(100.0)}], wall_s=1.0)
    assert metrics["null_pods_per_s"] == 100.0
    assert not {"ratio", "workloads_per_s", "kube_scheduler_jobs_per_s", "rss_mb"} & metrics.keys()


def test_a_run_that_did_not_settle_in_one_round_did_not_settle():
    metrics = cluster.summarize([{Phase.PODS: result(1.0)}, {Phase.PODS: result(1.0, settled=False)}], wall_s=1.0)
    assert metrics["phases"]["pods"]["settled"] is False


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (Options(nodes=0), "--nodes 0"),
        (Options(workloads=-1), "--workloads -1"),
        (Options(repeat=0), "--repeat 0"),
        (Options(phases=()), "--phases"),
        (Options(nodes=2, workloads=17), "2 nodes hold 16"),
        (Options(nodes=2, workloads=3, gpus_per_workload=5), "hold 2"),
        (Options(nodes=1, workloads=1, gpus_per_workload=9), "hold 0"),
        (Options(nodes=1, workloads=4, warm_up=20), "20 workloads"),
        (Options(nodes=1, workloads=3, warm_up=0, gpus_per_node=2), "1 nodes hold 2"),
        (Options(gpus_per_node=0), "--gpus-per-node 0"),
        (Options(fleet="no-such"), "no fleet model 'no-such'"),
    ],
)
def test_a_size_that_cannot_work_is_refused_before_anything_starts(options: Options, complaint: str):
    with pytest.raises(Permanent, match=complaint):
        options.check()


def test_the_default_size_is_accepted():
    Options(profile=Path("x")).check()


def test_a_fleet_model_tells_how_many_gpus_its_nodes_offer():
    assert Options(nodes=3).node_set.gpus() == [8, 8, 8]
    assert Options(nodes=2, fleet="gb200-nvl72").node_set.gpus() == [4, 4]
    assert Options(nodes=2, gpus_per_node=5).node_set.gpus() == [5, 5]


def test_the_null_binder_spreads_pods_and_never_exceeds_a_node():
    assert nodes.round_robin({"a": 4, "b": 2, "c": 1}, 2, 3) == ["a", "b", "a"]
    assert nodes.round_robin({"a": 1}, 2, 3) == []
    assert nodes.slots([4, 2, 1], 2) == 3


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("kind", ["kgwe", "warp"])
def test_every_phase_submits_objects_of_its_kind_with_names_of_one_length(phase: Phase, kind):
    load = Load(phase, kind, 2, "leastLoaded")
    bodies = [load.body(index) for index in (0, 999_999)]
    assert len({len(body["metadata"]["name"]) for body in bodies}) == 1
    assert {body["kind"] for body in bodies} == {load.resource.kind}
    assert "2" in str(bodies[0]["spec"])
