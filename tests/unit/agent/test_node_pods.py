"""The pods of the node as the API server tells them, and what they ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.fakes.kubelet import GPU, pod
from tests.support.fakes.memory_api import MemoryApi

from kgwe.apps.agent import node_pods
from kgwe.apps.agent.node_pods import NodePods
from kgwe.kube.api import resources
from kgwe.kube.client.client import KubeClient

if TYPE_CHECKING:
    from collections.abc import Callable


PATH = "/api/v1/namespaces/team/pods"


@pytest.fixture
def api() -> MemoryApi:
    made = MemoryApi()
    made.call("POST", PATH, {"metadata": {"name": "a"}})
    return made


def node_pods_of(api: MemoryApi, clock: Callable[[], float] = lambda: 0.0) -> NodePods:
    return NodePods(KubeClient(api), "n1", clock)


async def test_a_pod_that_is_asked_for(api):
    found = await node_pods_of(api).find("team", "a")
    assert found is not None
    assert found.metadata.uid == "uid-1"
    assert api.requests == [("GET", f"{PATH}/a")]


async def test_one_that_is_not_there_is_asked_for_seldom(api):
    now = [0.0]
    pods = node_pods_of(api, lambda: now[0])
    for _ in range(3):
        assert await pods.find("team", "b") is None
    assert len(api.requests) == 1
    now[0] = 31.0
    assert await pods.find("team", "b") is None
    assert len(api.requests) == 2


async def test_a_server_that_is_away_is_left_alone_for_a_moment(api):
    now = [0.0]
    api.refuse_next("GET", resources.POD, 500, "not now")
    pods = node_pods_of(api, lambda: now[0])
    for _ in range(3):
        assert await pods.find("team", "a") is None
    assert len(api.requests) == 1
    now[0] = 3.0
    assert await pods.find("team", "a") is not None
    assert len(api.requests) == 2


def test_what_containers_ask_for_in_the_order_they_are_served():
    made = pod("a", 2, 0, 1, init=(4,), sidecar=(1,))
    assert node_pods.count_requested(made, GPU) == {"side0": 1, "init0": 4, "c0": 2, "c2": 1}
    assert node_pods.count_requested(made, "nvidia.com/mig-1g.10gb") == {}
    assert node_pods.init_containers(made) == {"init0"}
    assert node_pods.count_peak(made, GPU) == 5, "the sidecar beside the init container"
    assert node_pods.count_peak(pod("b", 2, 1, init=(1, 1)), GPU) == 3
    assert node_pods.count_peak(made, "nvidia.com/mig-1g.10gb") == 0
