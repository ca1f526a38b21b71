"""Kubernetes' own gangs (PodGroup, alpha and off by default), with its gang scheduling on beside KGWE."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.support.clusters.pods import LEAF

from kgwe.kube.dialects import kinds
from kgwe.local.cluster.components import Features

if TYPE_CHECKING:
    from tests.support.clusters.pods import Live

FEATURES = Features(
    ("GenericWorkload=true", "GangScheduling=true", "TopologyAwareWorkloadScheduling=true"),
    ("scheduling.k8s.io/v1alpha2",),
)


async def group(live: Live, name: str, size: int) -> None:
    spec: dict[str, Any] = {
        "schedulingPolicy": {"gang": {"minCount": size}},
        "schedulingConstraints": {"topology": [{"key": LEAF}]},
    }
    served = next(kind for kind in kinds.POD_GROUPS if kind.version == "v1alpha2")
    await live.bed.client.create(served, {"metadata": {"name": name}, "spec": spec}, "default")


async def members(live: Live, name: str, numbers: range) -> None:
    for number in numbers:
        await live.pod(f"{name}-{number}", 8, schedulingGroup={"podGroupName": name})


async def test_a_native_gang_is_planned_as_a_whole_and_held_until_complete(live: Live) -> None:
    await live.nodes({"a": 2, "b": 4})
    await live.scheduler()
    await group(live, "train", 4)
    await members(live, "train", range(3))
    # Somebody who comes later and has room shows that time enough has passed.
    await live.pod("later", 1)
    await live.until_bound("later", 1)
    assert not live.bound("train")
    await members(live, "train", range(3, 4))
    await live.until_bound("train", 4)
    assert live.leaves("train") == {"b"}
    assert not live.overbooked()


async def test_a_native_gang_that_does_not_fit_holds_nothing(live: Live) -> None:
    await live.nodes({"a": 2, "b": 2})
    await live.scheduler()
    await group(live, "large", 3)
    await members(live, "large", range(3))
    await live.pod("plain", 8)
    await live.until_bound("plain", 1)
    assert not live.bound("large")
    await live.nodes({"c": 3})
    await live.until_bound("large", 3)
    assert live.leaves("large") == {"c"}
