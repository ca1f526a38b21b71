"""What a node's kubelet says its pods hold counts, whatever was planned."""

from __future__ import annotations

import pytest
from tests.support.builders.held_devices import cards_of, gpu_node
from tests.support.builders.objects import UID, added, changed, free, job, node, pod, workload

from kgwe.cluster.registry.announcer import ClusterListener
from kgwe.cluster.state.cluster_state import ClusterState
from kgwe.placement.planning.plan import Seat


@pytest.fixture
def state() -> ClusterState:
    made = ClusterState()
    made.on_node(added(node("n1")))
    made.on_gpunode(added(gpu_node()))
    return made


def start(state: ClusterState) -> None:
    state.on_kgwe(added(workload()))
    state.on_job(added(job(seats=(Seat("n1", 0b1111),))))
    state.on_pod(added(pod()))


def test_the_pod_has_the_cards_its_kubelet_says(state):
    start(state)
    assert cards_of(state, "uid-p") == 0b1111
    state.on_gpunode(changed(gpu_node(), gpu_node({"pod": "team/p", "uid": "uid-p", "cards": "f0"})))
    assert cards_of(state, "uid-p") == 0b11110000
    assert free(state) == {"n1": 4}
    assert int(state.fleet.snapshot.free[0]) == 0b1111, "what is free is what is really free"


def test_it_does_not_matter_which_watch_is_first(state):
    state.on_gpunode(changed(gpu_node(), gpu_node({"pod": "team/p", "uid": "uid-p", "cards": "f0"})))
    start(state)
    assert cards_of(state, "uid-p") == 0b11110000


def test_a_pod_the_agent_has_not_seen_itself_is_known_by_its_name(state):
    start(state)
    state.on_gpunode(changed(gpu_node(), gpu_node({"pod": "team/p", "cards": "f0"})))
    assert cards_of(state, "uid-p") == 0b11110000


def test_an_earlier_pod_of_the_same_name_is_another(state):
    start(state)
    state.on_gpunode(changed(gpu_node(), gpu_node({"pod": "team/p", "uid": "uid-before", "cards": "f0"})))
    assert cards_of(state, "uid-p") == 0b1111


def test_shares_and_nonsense_move_nobody(state):
    start(state)
    for entry in ({"cards": "f0", "replicas": 4}, {"cards": "zz"}, {"cards": ""}, {"slices": ["x"]}):
        state.on_gpunode(added(gpu_node({"pod": "team/p", "uid": "uid-p"} | entry)))
        assert cards_of(state, "uid-p") == 0b1111


def test_a_plan_on_cards_that_another_pod_really_has_moves_to_what_is_left(state):
    state.on_pod(added(pod("q", job_uid="", gpus=4)))
    state.on_kgwe(added(workload()))
    state.on_job(added(job(seats=(Seat("n1", 0b1111),))))
    state.on_gpunode(changed(gpu_node(), gpu_node({"pod": "team/q", "uid": "uid-q", "cards": "f"})))
    assert cards_of(state, "uid-q") == 0b1111
    assert cards_of(state, f"{UID}/0") == 0b11110000
    assert free(state) == {"n1": 0}


def test_room_is_looked_at_again(state):
    heard: list[str] = []
    start(state)
    state.announcer.subscribe(
        ClusterListener(
            workload_changed=lambda _: None,
            workload_touched=lambda _: None,
            capacity_freed=lambda: heard.append("room"),
            workload_removed=lambda _: None,
            pod_unseated=lambda *_: None,
        )
    )
    entry = {"pod": "team/p", "uid": "uid-p", "cards": "f0"}
    state.on_gpunode(changed(gpu_node(), gpu_node(entry)))
    assert heard == ["room"]
    state.on_gpunode(changed(gpu_node(entry), gpu_node(entry)))
    assert heard == ["room"], "said again, it is no news"
