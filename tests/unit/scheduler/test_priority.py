"""Which priority of a workload counts: the limit for all users, and the PriorityClass it names."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kgwe.cluster.state.cluster_state import ClusterState
from kgwe.kube.api.kgwe.gpuworkload import GPUWorkload
from kgwe.kube.api.kgwe.schedulerconfig import SchedulerConfig, SchedulerConfigSpec
from kgwe.kube.api.kgwe.warp import WarpGPUWorkload
from kgwe.kube.api.meta import ObjectMeta
from kgwe.kube.api.scheduling import PriorityClass
from kgwe.kube.client.informer import Change

META = {"name": "w", "namespace": "team", "uid": "w-uid"}


def workload(priority: int, priority_class: Any = None) -> GPUWorkload:
    named = {} if priority_class is None else {"priorityClassName": priority_class}
    template = {"spec": {"containers": [{"name": "main", "image": "i"}], **named}}
    spec = {"gpuRequirements": {"count": 1}, "podTemplate": template, "priority": priority}
    return msgspec.convert({"metadata": META, "spec": spec}, GPUWorkload)


def seen(state: ClusterState, found: GPUWorkload) -> int:
    state.on_kgwe(Change(found.metadata.key, None, found))
    return counted(state)


def counted(state: ClusterState) -> int:
    found = state.find_workload("w-uid")
    assert found is not None
    return found.priority


def name_class(state: ClusterState, name: str, value: int) -> None:
    state.on_priority_class(Change(name, None, PriorityClass(ObjectMeta(name=name), value)))


def limit(state: ClusterState, value: int) -> None:
    config = SchedulerConfig(ObjectMeta(name="default"), SchedulerConfigSpec(maxUnprivilegedPriority=value))
    state.on_config(Change("default", None, config))


@pytest.mark.parametrize(
    ("asked", "priority_class", "counts"),
    [
        (10_000, None, 10_000),
        (10_001, None, 10_000),
        (1_000_000, "", 10_000),
        (1_000_000, "urgent", 50_000),
        (20_000, "urgent", 20_000),
        (1_000_000, "absent", 10_000),
        (1_000_000, "lowest", 10_000),
        (5_000, "lowest", 5_000),
        (1_000_000, ["urgent"], 10_000),
    ],
)
def test_a_priority_above_the_limit_counts_up_to_the_value_of_its_class(asked, priority_class, counts):
    state = ClusterState()
    name_class(state, "urgent", 50_000)
    name_class(state, "lowest", -5)
    assert seen(state, workload(asked, priority_class)) == counts


def test_another_limit_or_value_counts_at_once():
    state = ClusterState()
    name_class(state, "urgent", 50_000)
    assert seen(state, workload(700_000, "urgent")) == 50_000
    name_class(state, "urgent", 600_000)
    assert counted(state) == 600_000
    limit(state, 650_000)
    assert counted(state) == 650_000
    state.on_priority_class(Change("urgent", PriorityClass(ObjectMeta(name="urgent"), 600_000), None))
    name_class(state, "other", 1)
    limit(state, 100)
    assert counted(state) == 100
    assert state.find_workload("w-uid").asked_priority == 700_000  # type: ignore[union-attr] # it is there


def test_the_small_kind_has_the_same_limit():
    state = ClusterState()
    limit(state, 500)
    spec = {"modelName": "m", "gpuCount": 1, "priority": "high"}
    found = msgspec.convert({"metadata": META, "spec": spec}, WarpGPUWorkload)
    state.on_warp(Change(found.metadata.key, None, found))
    assert counted(state) == 500
