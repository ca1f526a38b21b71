"""The cluster as the optimizer sees it."""

from __future__ import annotations

from tests.support.builders import optimizer_pods
from tests.support.fakes.memory_api import MemoryApi

from kgwe.apps.optimizer.cluster_view import ClusterView
from kgwe.apps.optimizer.history.runs import RunTracker
from kgwe.kube.api import resources
from kgwe.kube.client.client import KubeClient
from kgwe.model.usage.window import PodKey


async def test_nodes_and_pods_are_watched_for_placement():
    view = ClusterView(KubeClient(MemoryApi()), RunTracker())
    await view.add_state()
    watched = [informer.resource for informer in view.informers]
    assert {resources.NODE, resources.POD} <= set(watched)


def test_only_a_pod_that_exists_and_asks_for_none_is_without_gpus():
    view = ClusterView(KubeClient(MemoryApi()), RunTracker())
    for name, limits in (("exporter", {}), ("train", {"nvidia.com/gpu": "1"})):
        view.pods.store[f"team/{name}"] = optimizer_pods.make_pod(name, limits=limits, namespace="team")
    names = ("exporter", "train", "gone")
    assert [view.is_without_gpus(PodKey("team", name)) for name in names] == [True, False, False]


def test_a_pod_is_on_the_node_that_it_is_bound_to():
    view = ClusterView(KubeClient(MemoryApi()), RunTracker())
    for name, node in (("train", "n7"), ("pending", "")):
        view.pods.store[f"team/{name}"] = optimizer_pods.make_pod(name, namespace="team", node=node)
    names = ("train", "pending", "gone")
    assert [view.find_node(PodKey("team", name)) for name in names] == ["n7", None, None]
