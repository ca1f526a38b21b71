"""The cluster as the optimizer sees it."""

from __future__ import annotations

from tests.support.fakes.memory_api import MemoryApi

from kgwe.apps.optimizer.cluster_view import ClusterView
from kgwe.apps.optimizer.history.runs import RunTracker
from kgwe.kube.api import resources
from kgwe.kube.client.client import KubeClient


async def test_nodes_and_pods_are_watched_for_placement():
    view = ClusterView(KubeClient(MemoryApi()), RunTracker())
    await view.add_state()
    watched = [informer.resource for informer in view.informers]
    assert {resources.NODE, resources.POD} <= set(watched)
