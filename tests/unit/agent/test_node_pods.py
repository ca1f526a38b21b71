"""The pods of the node as the API server tells them, and what they ask for."""

from __future__ import annotations

import httpx2
from tests.support.fakes.kubelet import GPU, pod

from kgwe.apps.agent import node_pods
from kgwe.apps.agent.node_pods import NodePods
from kgwe.kube.client.client import KubeClient
from kgwe.kube.transport.httpx_transport import HttpxTransport


class Server:
    """One pod, and a count of questions."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.code = 200

    async def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.asked.append(request.url.path)
        if self.code == 200 and not request.url.path.endswith("/a"):
            return httpx2.Response(404, json={"message": "not found"})
        body = {"metadata": {"name": "a", "namespace": "team", "uid": "u"}, "message": "not now"}
        return httpx2.Response(self.code, json=body)

    def pods(self, clock) -> NodePods:
        http = httpx2.AsyncClient(transport=httpx2.MockTransport(self), base_url="https://cluster.example")
        return NodePods(KubeClient(HttpxTransport(http), field_manager="test"), "n1", clock)


async def test_a_pod_that_is_asked_for():
    server = Server()
    found = await server.pods(lambda: 0.0).find("team", "a")
    assert found is not None
    assert found.metadata.uid == "u"
    assert server.asked == ["/api/v1/namespaces/team/pods/a"]


async def test_one_that_is_not_there_is_asked_for_seldom():
    now = [0.0]
    server = Server()
    pods = server.pods(lambda: now[0])
    for _ in range(3):
        assert await pods.find("team", "b") is None
    assert len(server.asked) == 1
    now[0] = 31.0
    assert await pods.find("team", "b") is None
    assert len(server.asked) == 2


async def test_a_server_that_is_away_is_left_alone_for_a_moment():
    now = [0.0]
    server = Server()
    server.code = 500
    pods = server.pods(lambda: now[0])
    for _ in range(3):
        assert await pods.find("team", "a") is None
    tries = len(server.asked)
    server.code, now[0] = 200, 3.0
    assert await pods.find("team", "a") is not None
    assert len(server.asked) == tries + 1


def test_what_containers_ask_for_in_the_order_they_are_served():
    made = pod("a", 2, 0, 1, init=(4,), sidecar=(1,))
    assert node_pods.count_requested(made, GPU) == {"side0": 1, "init0": 4, "c0": 2, "c2": 1}
    assert node_pods.count_requested(made, "nvidia.com/mig-1g.10gb") == {}
    assert node_pods.init_containers(made) == {"init0"}
    assert node_pods.count_peak(made, GPU) == 5, "the sidecar beside the init container"
    assert node_pods.count_peak(pod("b", 2, 1, init=(1, 1)), GPU) == 3
    assert node_pods.count_peak(made, "nvidia.com/mig-1g.10gb") == 0
