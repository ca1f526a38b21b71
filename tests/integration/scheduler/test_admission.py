"""The admission policy of deploy/admission.yaml on a real API server: who is gated, and who is not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.support.clusters.pods import pod

from kgwe.cluster.workload import placement_annotations
from kgwe.kube.api import resources

if TYPE_CHECKING:
    from tests.support.clusters.bed import Bed


async def gates(bed: Bed, body: dict[str, Any]) -> list[str]:
    made = await bed.client.create(resources.POD, body, "default")
    # Seen before it is cleared away.
    await bed.until(lambda: made.metadata.key in bed.pods.store)
    return [gate.name for gate in made.spec.schedulingGates]


@pytest.mark.parametrize(
    "said",
    [
        {"annotations": {"kgwe.nvidia.io/gang": "g"}},
        {"labels": {"kgwe.nvidia.io/gang": "g"}},
        {"labels": {"scheduling.x-k8s.io/pod-group": "g"}},
        {"labels": {"pod-group.scheduling.sigs.k8s.io": "g"}},
        {"annotations": {"scheduling.k8s.io/group-name": "g"}},
    ],
)
async def test_a_pod_that_names_a_gang_waits_behind_the_gate(bed: Bed, said: dict[str, Any]):
    assert await gates(bed, pod("member", 1, **said)) == [placement_annotations.GATE]


async def test_other_gates_stay_and_ours_is_added_once(bed: Bed):
    said: dict[str, Any] = {"annotations": {"kgwe.nvidia.io/gang": "g"}}

    assert await gates(bed, pod("first", 1, schedulingGates=[{"name": "example.com/mine"}], **said)) == [
        "example.com/mine",
        placement_annotations.GATE,
    ]
    assert await gates(bed, pod("second", 1, gated=True, **said)) == [placement_annotations.GATE]


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"annotations": {"kgwe.nvidia.io/gang": "false"}},
        {"annotations": {"kgwe.nvidia.io/gang": "g"}, "schedulerName": "volcano"},
        {"annotations": {"kgwe.nvidia.io/gang-size": "3"}},
    ],
)
async def test_other_pods_are_left_alone(bed: Bed, said: dict[str, Any]):
    assert await gates(bed, pod("free", 1, **said)) == []
