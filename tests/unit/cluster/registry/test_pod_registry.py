"""Which changes of pods that no workload owns are announced."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.support.builders.objects import added, changed, make, node, pod_spec, removed

from kgwe.cluster.registry.announcer import ClusterListener
from kgwe.cluster.state.cluster_state import ClusterState
from kgwe.kube.api import resources


def plain(at: str = "", phase: str = "Pending", **labels: str) -> Any:
    meta = {"name": "p", "namespace": "team", "uid": "uid-p", "labels": labels}
    body = {"metadata": meta, "spec": pod_spec(2) | {"nodeName": at}, "status": {"phase": phase}}
    return make(resources.POD.type, body)


class Feed:
    """A state, and the phases of the external pods that it announced."""

    def __init__(self) -> None:
        self.state = ClusterState()
        self.state.on_node(added(node("n1")))
        self.announced: list[str] = []
        self.state.announcer.subscribe(
            ClusterListener(
                external_pod_changed=lambda _uid, pod: self.announced.append(
                    "gone" if pod is None else pod.status.phase
                )
            )
        )

    def see(self, *pods: Any) -> list[str]:
        """What is announced when a pod goes through these states."""
        self.announced.clear()
        before = self.state.pods.get("uid-p")
        for each in pods:
            self.state.on_pod(added(each) if before is None else changed(before, each))
            before = each
        return list(self.announced)


@pytest.fixture
def feed():
    return Feed()


def test_a_bound_pod_of_no_gang_is_announced_once(feed):
    assert feed.see(plain(), plain("n1"), plain("n1", "Running"), plain("n1", "Unknown")) == ["Pending", "Pending"]
    assert feed.state.pods["uid-p"].status.phase == "Unknown"
    assert feed.state.plain_pods.held == {"team": 2000}


def test_a_status_change_of_an_unbound_pod_is_announced(feed):
    assert feed.see(plain(), plain(phase="Running")) == ["Pending", "Running"]


def test_a_bound_pod_whose_labels_change_is_announced(feed):
    feed.see(plain("n1", "Running"))
    assert feed.see(plain("n1", "Running", tier="gold")) == ["Running"]


def test_a_bound_pod_whose_requests_change_is_announced_and_counted_again(feed):
    feed.see(plain("n1", "Running"))
    larger = plain("n1", "Running")
    larger = msgspec.structs.replace(larger, spec=make(type(larger.spec), pod_spec(3) | {"nodeName": "n1"}))
    assert feed.see(larger) == ["Running"]
    assert feed.state.fleet.snapshot.free.tolist() == [0xF8]


def test_every_change_of_a_pod_of_a_gang_is_announced(feed):
    notes = {"kgwe.nvidia.io/gang": "g", "kgwe.nvidia.io/gang-size": "1"}
    states = [plain("n1", phase) for phase in ("Pending", "Running")]
    states = [
        msgspec.structs.replace(each, metadata=msgspec.structs.replace(each.metadata, annotations=notes))
        for each in states
    ]
    assert feed.see(*states) == ["Pending", "Running"]
    assert feed.state.gangs.owner_of("uid-p")


def test_a_bound_pod_is_read_again_after_objects_that_describe_gangs_changed(feed):
    feed.see(plain("n1"))
    feed.state.gangs.on_config_changed()
    assert feed.see(plain("n1", "Running")) == ["Running"]


def test_the_end_of_a_pod_is_announced(feed):
    bound = plain("n1", "Running")
    feed.see(bound)
    feed.state.on_pod(removed(bound))
    assert feed.announced == ["Running", "gone"]
    assert feed.state.plain_pods.held == {}
