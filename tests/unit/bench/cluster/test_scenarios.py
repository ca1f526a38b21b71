"""What each scenario submits, and what stands there before."""

from __future__ import annotations

from collections import Counter

import pytest

from kgwe.bench.cluster import scenarios
from kgwe.bench.cluster.load import Load, gang_annotations
from kgwe.bench.cluster.scenarios import Gang, Phase, Piece, Scenario
from kgwe.kube.api import resources

NODES = {f"node-{number:03d}": 8 for number in range(100)}


def gangs_of(pieces: list[Piece]) -> dict[Gang, list[Piece]]:
    found: dict[Gang, list[Piece]] = {}
    for piece in pieces:
        assert piece.gang is not None
        found.setdefault(piece.gang, []).append(piece)
    return found


@pytest.mark.parametrize("scenario", Scenario)
def test_names_are_unique_and_of_one_length(scenario: Scenario):
    pieces = scenarios.list_objects(scenario, scenarios.SIZES[scenario])
    assert len({piece.name for piece in pieces}) == len(pieces)
    assert len({len(piece.name) for piece in pieces}) == 1


def test_gangs_come_whole_and_one_after_the_other():
    pieces = scenarios.list_objects(Scenario.GANGS, scenarios.SIZES[Scenario.GANGS])
    gangs = gangs_of(pieces)
    assert len(gangs) == 50
    assert all(len(members) == gang.pods == 8 and gang.required == "leaf" for gang, members in gangs.items())
    assert [piece for members in gangs.values() for piece in members] == pieces


def test_fragmented_has_large_gangs_and_small_ones():
    gangs = gangs_of(scenarios.list_objects(Scenario.FRAGMENTED, scenarios.SIZES[Scenario.FRAGMENTED]))
    assert Counter((gang.pods, members[0].gpus) for gang, members in gangs.items()) == {(12, 8): 20, (6, 4): 20}


@pytest.mark.parametrize("scenario", [Scenario.FILL, Scenario.GANGS])
def test_the_warm_up_is_of_the_same_sort_and_small(scenario: Scenario):
    pieces = scenarios.warm_up(scenario, 6)
    assert [piece.gpus for piece in pieces] == [1] * 6
    sizes = [] if scenario is Scenario.FILL else [gang.pods for gang in gangs_of(pieces)]
    assert sizes == ([] if scenario is Scenario.FILL else [4, 2])


# --- how they are written -------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("kind", ["kgwe", "warp"])
@pytest.mark.parametrize("scenario", Scenario)
def test_every_phase_submits_objects_of_its_kind(scenario: Scenario, phase: Phase, kind):
    load = Load(scenario, phase, kind)
    body = load.body(Piece("w-000001", 2, Gang("g", 3)))
    assert body["kind"] == load.resource.kind
    assert "2" in str(body["spec"])


def test_only_kgwe_is_told_of_gangs():
    gang = Gang("g", 3, required="leaf")
    piece = Piece("w-000000", 8, gang)
    mine, alone, null = (
        Load(Scenario.GANGS, phase).body(piece) for phase in (Phase.KGWE, Phase.KUBE_SCHEDULER, Phase.NULL)
    )
    assert mine["metadata"]["annotations"].items() >= gang_annotations(gang).items()
    assert mine["spec"]["schedulingGates"] == [{"name": "kgwe.nvidia.io/plan"}]
    for other in (alone, null):
        assert "gang" not in str(other)
        assert "schedulingGates" not in other["spec"]
    assert mine["spec"]["containers"] == alone["spec"]["containers"] == null["spec"]["containers"]
    assert "schedulerName" in null["spec"]


def test_pods_without_a_gang_are_the_same_for_everybody():
    piece = Piece("w-000000", 1)
    assert Load(Scenario.FILL, Phase.KGWE).body(piece) == Load(Scenario.FILL, Phase.KUBE_SCHEDULER).body(piece)


def test_workloads_are_measured_beside_jobs_and_bare_pods():
    kinds = [Load(Scenario.WORKLOADS, phase).resource for phase in (Phase.NULL, Phase.KUBE_SCHEDULER, Phase.KGWE)]
    assert kinds == [resources.POD, resources.JOB, resources.GPU_WORKLOAD]


def test_wishes_that_are_not_made_are_not_written():
    assert gang_annotations(Gang("g", 3, preferred="leaf")) == {
        "kgwe.nvidia.io/gang": "g",
        "kgwe.nvidia.io/gang-size": "3",
        "kgwe.nvidia.io/topology-preferred": "leaf",
    }


# --- what stands there already --------------------------------------------------------------------------


def held(scenario: Scenario, **size) -> Counter[str]:
    count: Counter[str] = Counter()
    for pod in scenarios.list_running_pods(scenario, scenarios.size_of(scenario, **size), NODES, seed=1):
        count[pod.node] += pod.gpus
    return count


@pytest.mark.parametrize("scenario", [Scenario.FILL, Scenario.GANGS, Scenario.BIGGANG, Scenario.WORKLOADS])
def test_most_scenarios_begin_with_empty_nodes(scenario: Scenario):
    assert scenarios.list_running_pods(scenario, scenarios.SIZES[scenario], NODES, seed=1) == []


def test_impossible_leaves_just_so_many_nodes_free():
    count = held(Scenario.IMPOSSIBLE, free_nodes=10)
    assert Counter(count.values()) == {8: 90}


def test_fragmented_takes_the_share_it_says_from_whole_and_half_nodes():
    count = held(Scenario.FRAGMENTED, taken=0.45)
    assert sum(count.values()) == 360
    assert set(count.values()) <= {4, 8}
    assert min(Counter(count.values()).values()) >= 25
    assert max(count.values()) <= 8


def test_what_is_taken_at_random_is_the_same_for_the_same_seed():
    size = scenarios.SIZES[Scenario.FRAGMENTED]
    first, again, other = (scenarios.list_running_pods(Scenario.FRAGMENTED, size, NODES, seed) for seed in (1, 1, 2))
    assert first == again != other


def test_restart_has_every_pod_running_and_a_gpu_left_on_every_node():
    size = scenarios.size_of(Scenario.RESTART, pods=1000)
    pods = scenarios.list_running_pods(Scenario.RESTART, size, NODES, seed=1)
    assert len(pods) == 1000
    assert Counter(pod.gpus for pod in pods) == {1: 700, 0: 300}
    assert set(held(Scenario.RESTART, pods=1000).values()) == {7}
