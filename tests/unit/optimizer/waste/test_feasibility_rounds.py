"""Advice of one round can be followed together, in any order."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.builders import objects

from kgwe.apps.optimizer.waste.feasibility import Feasibility
from kgwe.cluster import offline
from kgwe.forecast.waste.alternatives import Action, Alternative
from kgwe.kube.api import resources
from kgwe.model.units import amounts

A100 = "A100-SXM4-80GB"
LABEL = "NVIDIA-A100-SXM4-80GB"
SLICE = Alternative(Action.MIG_PROFILE, 1, A100, mig_profile="1g.10gb")


class Cluster:
    """Nodes with A100, pods on them, and the checks."""

    def __init__(self) -> None:
        self.view = offline.empty_view()
        self.room = Feasibility(self.view)

    def add_node(self, name: str, model: str = LABEL, **offers: str) -> None:
        offered = {"pods": "110", "cpu": "64", **offers}
        body = {
            "metadata": {"name": name, "labels": {"nvidia.com/gpu.product": model}},
            "status": {"allocatable": offered, "conditions": [{"type": "Ready", "status": "True"}]},
        }
        self.view.state.on_node(objects.added(objects.make(resources.NODE.type, body)))

    def add_pod(self, name: str, node: str, gpus: int = 1) -> None:
        meta = {"name": name, "namespace": "team", "uid": name}
        body: dict[str, Any] = {"metadata": meta, "spec": objects.pod_spec(gpus, node), "status": {"phase": "Running"}}
        self.view.state.on_pod(objects.added(objects.make(resources.POD.type, body)))

    def count_free(self) -> dict[str, int]:
        return objects.free(self.view.state)


@pytest.fixture
def cluster() -> Cluster:
    """One full node of two GPUs with two pods, and one node with a free slice."""
    made = Cluster()
    made.add_node("whole", **{amounts.GPU: "2"})
    made.add_node("cut", **{amounts.GPU: "0", "nvidia.com/mig-1g.10gb": "1"})
    made.add_pod("a", "whole")
    made.add_pod("b", "whole")
    return made


def test_a_slice_is_promised_to_one_pod_of_a_round(cluster: Cluster):
    cluster.room.start_round()
    assert cluster.room.check("a", SLICE) is True
    assert cluster.room.check("b", SLICE) is False


def test_a_new_round_starts_from_the_cluster(cluster: Cluster):
    assert cluster.room.check("a", SLICE) is True
    cluster.room.start_round()
    assert cluster.room.check("b", SLICE) is True


def test_the_same_pod_may_be_checked_again(cluster: Cluster):
    assert [cluster.room.check("a", SLICE) for _ in range(3)] == [True] * 3


def test_checks_do_not_change_the_fleet(cluster: Cluster):
    before = cluster.count_free()
    cluster.room.check("a", SLICE)
    assert cluster.count_free() == before


def test_a_change_of_the_cluster_starts_a_new_round(cluster: Cluster):
    assert cluster.room.check("a", SLICE) is True
    cluster.add_node("more", **{amounts.GPU: "0", "nvidia.com/mig-1g.10gb": "1"})
    assert [cluster.room.check(pod, SLICE) for pod in ("a", "b")] == [True, True]
    assert cluster.room.check("a", SLICE) is True


def test_a_pod_may_keep_a_part_of_its_own_gpus():
    cluster = Cluster()
    cluster.add_node("full", **{amounts.GPU: "4"})
    cluster.add_pod("a", "full", gpus=4)
    assert cluster.room.check("a", Alternative(Action.FEWER_GPUS, 2, A100)) is True


def test_gpus_that_a_pod_would_free_are_promised_to_no_other_pod():
    cluster = Cluster()
    cluster.add_node("full", **{amounts.GPU: "4"})
    cluster.add_node("other", model="NVIDIA-L40S", **{amounts.GPU: "1"})
    cluster.add_pod("a", "full", gpus=4)
    cluster.add_pod("b", "other")
    assert cluster.room.check("a", Alternative(Action.FEWER_GPUS, 2, A100)) is True
    assert cluster.room.check("b", Alternative(Action.SMALLER_GPU, 1, A100)) is False


def test_an_earlier_answer_of_a_pod_is_taken_back_before_the_next(cluster: Cluster):
    assert cluster.room.check("a", SLICE) is True
    assert cluster.room.check("a", Alternative(Action.FEWER_GPUS, 1, A100)) is True
    assert cluster.room.check("b", SLICE) is True


def test_room_on_another_model_does_not_count(cluster: Cluster):
    wanted = Alternative(Action.MIG_PROFILE, 1, "H100-SXM5-80GB", mig_profile="1g.10gb")
    cluster.add_node("h100", model="NVIDIA-H100-80GB-HBM3", **{amounts.GPU: "1"})
    assert cluster.room.check("a", wanted) is False


def test_as_many_pods_are_advised_as_there_are_slices():
    cluster = Cluster()
    cluster.add_node("whole", **{amounts.GPU: "8"})
    cluster.add_node("cut", **{amounts.GPU: "0", "nvidia.com/mig-1g.10gb": "5"})
    for number in range(8):
        cluster.add_pod(f"p{number}", "whole")
    cluster.room.start_round()
    assert [cluster.room.check(f"p{number}", SLICE) for number in range(8)] == [True] * 5 + [False] * 3
