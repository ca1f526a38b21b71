"""Refusals: what binds, how short it is, and changes that really start the gang."""

from __future__ import annotations

import dataclasses

import pytest
from tests.support.builders.racks import H100, cards, placed, racks
from tests.support.machines import reference

from kgwe.model.network import domains
from kgwe.model.network.domains import Place
from kgwe.placement.disruption.running import Member, Running
from kgwe.placement.fleet.node import Node, Preference, Shape, SpotPolicy
from kgwe.placement.fleet.snapshot import Snapshot
from kgwe.placement.fleet.taints import Taint
from kgwe.placement.planning import diagnosis
from kgwe.placement.planning.diagnosis import ChangeKind, Diagnosis, GangReason
from kgwe.placement.planning.gang_planner import (
    NODE,
    Evictable,
    GangPlanner,
    GangRequest,
    Hardware,
    Role,
    Segment,
    plan_gang,
)
from kgwe.placement.pod.fit import Fitter
from kgwe.placement.pod.fit_status import FitStatus
from kgwe.placement.refusal import Refusal

A100 = Shape(reference.nvswitch(8, 12, 3), "A100-SXM4-80GB", 81_920, "Ampere")


def texts(refusal):
    return {change.kind: change.text for change in refusal.changes}


#        spine s           spine t
#     a: 8 8  b: 8 0     c: 8 8  d: 0 0
DRAWN = {"s": {"a": [8, 8], "b": [8, 0]}, "t": {"c": [8, 8], "d": [0, 0]}}


def test_a_level_too_low_is_said_with_the_smallest_step_up():
    refusal = racks(DRAWN).refuse(GangRequest.uniform(cards(8), 3, required="leaf"))
    assert refusal.reason is GangReason.NO_DOMAIN_LARGE_ENOUGH
    assert (refusal.level, refusal.room, refusal.short) == ("leaf", 2, 1)
    assert texts(refusal) == {
        ChangeKind.LOWER_LEVEL: "require spine instead of leaf (spine s, 50 GB/s between nodes)",
        ChangeKind.FEWER_REPLICAS: "run 2 pods instead of 3 (count: 16)",
    }
    far = racks(DRAWN).refuse(GangRequest.uniform(cards(8), 4, required="leaf"))
    assert texts(far)[ChangeKind.LOWER_LEVEL].startswith("drop the required level leaf (")


def test_a_preference_that_starts_the_gang_is_named():
    pod = cards(2, preference=Preference.NVLINK_REQUIRED)
    refusal = racks({"s": {"a": [8, 8]}}, shape=Shape(reference.pcie_pairs(8), "NVIDIA-L40S", 46_068, "Ada")).refuse(
        GangRequest.uniform(pod, 2)
    )
    assert texts(refusal)[ChangeKind.RELAX_WIRING] == "set topology.preference to NVLinkOptimal"


def test_one_pod_is_singular():
    refusal = racks({"s": {"a": [8, 0]}}).refuse(GangRequest.uniform(cards(8), 2, required="leaf"))
    assert texts(refusal)[ChangeKind.FEWER_REPLICAS] == "run 1 pod instead of 2 (count: 8)"


def test_the_words_tell_the_whole_of_it():
    refusal = racks(DRAWN).refuse(GangRequest.uniform(cards(8), 3, required="leaf", name="llama"))
    assert refusal.describe() == (
        "Gang llama cannot start. Even with nothing running, one leaf holds 2 of 3 pods.\n"
        "Best: leaf a, 2 of 3 pods fit, 1 short.\n"
        "Nodes: 5 available, 3 insufficient GPUs.\n"
        "Level node: 0/8 available, at most 1 of 3 pods fit in one.\n"
        "Level leaf: 0/4 available, at most 2 of 3 pods fit in one.\n"
        "Will not start by waiting.\n"
        "One of these changes is enough:\n"
        "  - require spine instead of leaf (spine s, 50 GB/s between nodes)\n"
        "  - run 2 pods instead of 3 (count: 16)"
    )
    assert refusal.summary() == (
        "0/4 leaves available for 3 pods of 8 GPUs (nodes: 3 insufficient GPUs). Best: leaf a (2 of 3 pods fit). Even"
        " with nothing running, one leaf holds 2 of 3 pods. Try: require spine instead of leaf (spine s, 50 GB/s"
        " between nodes)."
    )


def test_without_a_required_level_nodes_are_counted():
    refusal = racks(DRAWN).refuse(GangRequest.uniform(cards(8), 6))
    assert refusal.summary() == (
        "5/8 nodes available for 6 pods of 8 GPUs: 3 insufficient GPUs. Only 5 of 6 pods fit now. Try: run 5 pods"
        " instead of 6 (count: 40)."
    )


def test_what_no_node_could_hold_is_said_first():
    refusal = racks(DRAWN).refuse(GangRequest.uniform(cards(16), 4, required="leaf"))
    assert refusal.summary() == (
        "0/4 leaves available for 4 pods of 16 GPUs (nodes: 8 with fewer than 16 whole GPUs). Each pod asks for 16"
        " GPUs; the largest node has 8. Set gpusPerPod to 8 or less."
    )
    assert refusal.binding_constraint == "Each pod asks for 16 GPUs; the largest node has 8"


def test_too_little_room_everywhere_counts_the_verdicts_of_nodes():
    refusal = racks(DRAWN).refuse(GangRequest.uniform(cards(8), 6))
    assert refusal.reason is GangReason.TOO_LITTLE_ROOM
    assert refusal.statuses == {FitStatus.FITS: 5, FitStatus.GPUS_TAKEN: 3}
    assert not refusal.is_hopeless
    assert refusal.proven


def mixed(**spot):
    """Two H100, two A100, two A100 that `spot` says more of; one leaf."""
    nodes = [Node(f"n{i}", H100 if i < 2 else A100, 64_000, 2**40, **(spot if i > 3 else {})) for i in range(6)]
    tree = domains.build_tree([Place(node.name, ("a",), gb_per_s=50.0) for node in nodes], ("leaf",))
    return GangPlanner(Fitter(Snapshot.from_nodes(nodes)), tree)


def refused(planner, gang):
    refusal = planner.plan(gang)
    assert isinstance(refusal, Refusal)
    assert isinstance(refusal.detail, Diagnosis)
    return refusal.detail


def test_another_gpu_model_is_named():
    refusal = refused(mixed(), GangRequest.uniform(cards(8, model="H100-SXM5-80GB"), 3))
    assert refusal.reason is GangReason.WRONG_GPU_MODEL
    assert refusal.statuses[FitStatus.WRONG_MODEL] == 4
    assert texts(refusal)[ChangeKind.OTHER_MODEL] == "accept GPU model A100-SXM4-80GB (gpuModel)"


def test_models_are_mixed_only_when_the_gang_allows_it():
    refusal = refused(mixed(), GangRequest.uniform(cards(8), 5, hardware=Hardware.SAME))
    assert (refusal.reason, refusal.room) == (GangReason.MODELS_DIFFER, 4)
    mix = texts(refusal)[ChangeKind.MIX_MODELS]
    assert mix == (
        "mix GPU models A100-SXM4-80GB and H100-SXM5-80GB (hardware: PreferSame; the slowest GPU sets the pace)"
    )
    assert len(placed(mixed(), GangRequest.uniform(cards(8), 5)).seats) == 5


def test_spot_nodes_are_suggested_by_their_taint():
    planner = mixed(spot=True, taints=(Taint("spot", "true", "NoSchedule"),))
    refusal = refused(planner, GangRequest.uniform(cards(8), 6))
    assert refusal.reason is GangReason.NODES_TAINTED
    assert texts(refusal)[ChangeKind.TOLERATE_SPOT] == "tolerate the taint spot=true:NoSchedule of spot nodes"


def test_a_gang_that_requires_spot_is_told_of_room_elsewhere():
    refusal = refused(mixed(spot=True), GangRequest.uniform(cards(8, spot=SpotPolicy.REQUIRE), 5))
    assert refusal.reason is GangReason.NOT_ON_SPOT
    assert texts(refusal)[ChangeKind.ALLOW_ON_DEMAND] == "allow nodes that are not spot (spotPolicy: Allow)"


def test_wiring_that_is_not_there_can_be_let_go():
    shape = dataclasses.replace(H100, wiring=reference.pcie_pairs(8))
    cluster = racks({"s": {"a": [8, 8]}}, shape=shape)
    refusal = cluster.refuse(GangRequest.uniform(cards(4, preference=Preference.NVLINK_REQUIRED), 2))
    assert refusal.reason is GangReason.WIRING_NOT_MET
    assert refusal.statuses == {FitStatus.WIRING: 2}


def test_fewer_replicas_come_in_whole_segments_and_of_the_role_that_is_short():
    roles = (Role("leader", cards(1), 1), Role("worker", cards(8), 6))
    refusal = racks(DRAWN).refuse(GangRequest(roles))
    assert texts(refusal)[ChangeKind.FEWER_REPLICAS] == "run 4 worker pods instead of 6"
    change = next(each for each in refusal.changes if each.kind is ChangeKind.FEWER_REPLICAS)
    assert [role.replicas for role in change.gang.roles] == [1, 4]


def test_a_gang_that_even_an_empty_cluster_does_not_hold_is_told_so():
    groups = (Segment(4, NODE),)
    refusal = racks(DRAWN).refuse(GangRequest.uniform(cards(4), 4, segments=groups))
    assert refusal.is_hopeless
    assert (refusal.room, refusal.short) == (0, 4), "room for half a segment is none"
    assert "Even with nothing running, the cluster holds 0 of 4 pods." in refusal.describe()


# --- evictions ------------------------------------------------------------------------------------------
#
#     a: 8 0 0      b: 0 0 8        small holds a2, large holds a3 and b1, high holds b2


@pytest.fixture
def busy():
    return racks({"s": {"a": [8, 0, 0], "b": [0, 0, 8]}})


def running(cluster, name, priority, *nodes, **more):
    members = tuple(Member(node, cards(8), cluster.held[node]) for node in nodes)
    return Running(name, members, priority, **more)


def evictable(cluster, **more):
    return Evictable(
        [
            running(cluster, "large", 1, "a3", "b1"),
            running(cluster, "small", 1, "a2", **more),
            running(cluster, "high", 5, "b2"),
        ],
        now_s=3600.0,
    )


@pytest.mark.parametrize(
    ("pods", "level", "priority", "owners"),
    [
        pytest.param(2, "leaf", 5, ("small",), id="the smallest that suffices"),
        pytest.param(3, "leaf", 5, ("large", "small"), id="several when one is not enough"),
        pytest.param(4, "spine", 5, ("large",), id="one large rather than several"),
        pytest.param(3, "leaf", 1, None, id="never work of the same priority"),
        pytest.param(6, "spine", 5, None, id="nobody when it would not suffice"),
        pytest.param(6, "spine", 6, ("large", "small", "high"), id="all of lower priority"),
    ],
)
def test_evictions_are_the_least_that_suffice(busy, pods, level, priority, owners):
    gang = GangRequest.uniform(cards(8), pods, required=level, priority=priority)
    before = busy.snapshot.free.tolist()
    refusal = busy.refuse(gang, evictable=evictable(busy))
    found = [change.evicts for change in refusal.changes if change.kind is ChangeKind.EVICT]
    assert [tuple(victim.workload for victim in each) for each in found] == ([] if owners is None else [owners])
    assert busy.snapshot.free.tolist() == before


def test_evictions_are_said_with_what_they_cost(busy):
    gang = GangRequest.uniform(cards(8), 2, required="leaf", priority=5)
    refusal = busy.refuse(gang, evictable=evictable(busy))
    assert texts(refusal)[ChangeKind.EVICT] == "evict small (lower priority; costs 8.13 GPU-hours)"


def test_of_work_that_can_spare_pods_only_so_many_go():
    cluster = racks({"s": {"a": [8, 0, 0]}})
    service = running(cluster, "service", 0, "a2", "a3", min_members=1)
    gang = GangRequest.uniform(cards(8), 2, priority=1)
    refusal = cluster.refuse(gang, evictable=Evictable([service], now_s=3600.0))
    assert texts(refusal)[ChangeKind.EVICT].startswith("evict 1 pod of service (")


def test_nobody_is_named_who_may_not_be_stopped(busy):
    gang = GangRequest.uniform(cards(8), 2, required="leaf", priority=2)
    refusal = busy.refuse(gang, evictable=evictable(busy, preemptible=False))
    named = [victim.workload for change in refusal.changes for victim in change.evicts]
    assert named == ["large"]


def test_a_single_gang_can_be_planned_without_a_planner(busy):
    fitter = Fitter(busy.snapshot)
    assert plan_gang(fitter, busy.tree, GangRequest.uniform(cards(8), 2)) == placed(
        busy.planner, GangRequest.uniform(cards(8), 2)
    )


def test_every_reason_and_kind_is_told_in_words():
    assert set(diagnosis._REASONS) == set(GangReason)
    assert set(diagnosis._BINDING.values()) <= set(GangReason)
