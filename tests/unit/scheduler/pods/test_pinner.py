"""Who is given which seat, in how many writes, and what happens when the pod goes meanwhile."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.builders.objects import (
    TWO,
    UID,
    added,
    changed,
    deployment,
    job,
    leaving,
    node,
    pod,
    removed,
    replica,
    workload,
)
from tests.support.fakes.recording_client import RecordingClient
from tests.support.patience import PATIENCE_S

from kgwe import errors
from kgwe.apps.scheduler.pods import pinner
from kgwe.apps.scheduler.pods.pinner import Pinner
from kgwe.cluster.registry.announcer import ClusterListener
from kgwe.cluster.state.cluster_state import ClusterState
from kgwe.cluster.workload import placement_annotations
from kgwe.kube.api import core
from kgwe.placement.live.holding import Holding


@pytest.fixture
def state():
    made = ClusterState()
    for name in ("n1", "n2"):
        made.on_node(added(node(name)))
    made.on_kgwe(added(workload(count=8)))
    return made


@pytest.fixture
def client():
    return RecordingClient()


@pytest.fixture
async def seating_pods(state, client, monkeypatch):
    monkeypatch.setattr(pinner, "_LOOK_AGAIN_S", 0.02)
    means: Any = SimpleNamespace(client=client, state=state, bytes_of=lambda _: b"")  # all that it takes of them
    made = Pinner(means)
    made.start()
    state.announcer.subscribe(
        ClusterListener(
            workload_changed=lambda _: None,
            workload_touched=lambda _: None,
            capacity_freed=lambda: None,
            workload_removed=lambda _: None,
            pod_unseated=made.pin,
        )
    )
    yield made
    await made.stop()


async def until(true):
    async with asyncio.timeout(PATIENCE_S):
        while not true():  # noqa: ASYNC110 - there is nothing to wait on
            await asyncio.sleep(0.001)


async def idle(made):
    """Nothing is being written, and nothing is about to be."""
    await until(lambda: not len(made._queue))


def seats(client):
    return {
        name: body["metadata"]["annotations"][placement_annotations.SEAT_ANNOTATION] for name, body in client.patches
    }


def gated(name, index):
    return pod(name, at="", index=index, gated=True, phase="Pending")


@pytest.mark.usefixtures("seating_pods")
async def test_a_gangs_pods_get_the_seats_of_their_ranks_in_one_write_each(state, client, monkeypatch):
    monkeypatch.setattr(pinner, "_LOOK_AGAIN_S", 60.0)
    state.on_job(added(job(seats=TWO)))
    state.on_pod(added(gated("p1", 1)))
    state.on_pod(added(gated("p0", 0)))
    await until(lambda: len(client.patches) == 2)
    assert seats(client) == {"p0": f"{UID}/0", "p1": f"{UID}/1"}
    body = dict(client.patches)["p0"]
    assert body["metadata"]["uid"] == "uid-p0"
    assert body["metadata"]["annotations"][placement_annotations.CARDS_ANNOTATION] == "f0"
    assert body["spec"]["schedulingGates"] == []
    (term,) = body["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    assert term["matchFields"] == [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]


@pytest.mark.usefixtures("seating_pods")
async def test_a_second_pod_of_one_rank_gets_nothing_while_the_first_is_there(state, client, monkeypatch):
    monkeypatch.setattr(pinner, "_LOOK_AGAIN_S", 60.0)
    state.on_job(added(job(seats=TWO)))
    state.on_pod(added(gated("first", 0)))
    await until(lambda: len(client.patches) == 1)
    state.on_pod(added(gated("second", 0)))
    state.on_pod(added(gated("other", 1)))
    await until(lambda: len(client.patches) == 2)
    assert seats(client) == {"first": f"{UID}/0", "other": f"{UID}/1"}
    state.on_pod(removed(gated("first", 0)))
    await until(lambda: "second" in seats(client))
    assert seats(client)["second"] == f"{UID}/0"


async def test_replicas_get_a_seat_each_that_nobody_has(state, client, seating_pods):
    state.on_deployment(added(deployment()))
    state.on_pod(added(replica("seated", at="", seat=f"{UID}/0")))
    for name in ("a", "b"):
        state.on_pod(added(replica(name, at="", gated=True, phase="Pending")))
    await until(lambda: client.patches)
    await idle(seating_pods)
    assert set(seats(client).values()) == {f"{UID}/1"}, "one of them, once; the other has none to get"
    assert len(set(seats(client))) == 1


async def test_who_found_no_seat_gets_that_of_the_next_pod_to_go(state, client, seating_pods):
    state.on_deployment(added(deployment()))
    old = replica("old", at="n1", seat=f"{UID}/0")
    state.on_pod(added(old))
    state.on_pod(added(replica("other", at="n2", seat=f"{UID}/1")))
    state.on_pod(added(replica("new", at="", gated=True, phase="Pending")))
    await idle(seating_pods)
    assert client.patches == []
    state.on_pod(changed(old, leaving(old)))
    await until(lambda: client.patches)
    assert seats(client) == {"new": f"{UID}/0"}


@pytest.mark.usefixtures("seating_pods")
async def test_the_seat_of_a_pod_that_came_and_went_in_this_term_is_given_again(state, client, monkeypatch):
    monkeypatch.setattr(pinner, "_LOOK_AGAIN_S", 60.0)
    state.on_deployment(added(deployment()))
    waiting = replica("first", at="", gated=True, phase="Pending")
    state.on_pod(added(waiting))
    state.on_pod(added(replica("other", at="n2", seat=f"{UID}/1")))
    await until(lambda: client.patches)
    bound = replica("first", at="n1", seat=f"{UID}/0")
    state.on_pod(changed(waiting, bound))
    state.on_pod(removed(bound))
    state.on_pod(added(replica("second", at="", gated=True, phase="Pending")))
    await until(lambda: len(client.patches) > 1)
    assert seats(client) == {"first": f"{UID}/0", "second": f"{UID}/0"}


@pytest.mark.usefixtures("seating_pods")
@pytest.mark.parametrize("error", [errors.Conflict("changed"), errors.Transient("busy"), errors.Permanent("immutable")])
async def test_a_failed_write_is_tried_again(state, client, error):
    client.failures.append(error)
    state.on_job(added(job(seats=TWO)))
    state.on_pod(added(gated("p0", 0)))
    await until(lambda: client.patches)
    assert seats(client) == {"p0": f"{UID}/0"}


async def test_a_pod_that_is_gone_is_let_go(state, client, seating_pods):
    client.failures.append(errors.NotFound("gone"))
    state.on_job(added(job(seats=TWO)))
    state.on_pod(added(gated("p0", 0)))
    await until(lambda: not client.failures and not seating_pods._owner)
    await idle(seating_pods)
    assert client.patches == []


async def test_nothing_is_remembered_of_pods_that_have_their_seats(state, client, seating_pods):
    state.on_job(added(job(seats=TWO)))
    state.on_pod(added(gated("p0", 0)))
    await until(lambda: client.patches)
    state.on_pod(changed(gated("p0", 0), pod("p0", at="n1", index=0)))
    await until(lambda: not seating_pods._given and not seating_pods._owner)
    assert set(seats(client)) == {"p0"}


@pytest.mark.usefixtures("seating_pods")
async def test_a_write_that_the_watch_never_shows_is_written_again(state, client):
    state.on_job(added(job(seats=TWO)))
    state.on_pod(added(gated("p0", 0)))
    await until(lambda: len(client.patches) >= 2)
    assert seats(client) == {"p0": f"{UID}/0"}


async def test_a_pod_that_belongs_to_no_gang_loses_its_gate_and_nothing_else(client, state, seating_pods):
    waiting = pod("p", "not-ours", at="", gated=True)
    state.on_pod(added(waiting))
    client.failures.append(errors.Transient("busy"))
    seating_pods.remove_gate(waiting)
    await until(lambda: client.patches)
    assert client.patches[0] == ("p", {"metadata": {"uid": "uid-p"}, "spec": {"schedulingGates": []}})


def test_the_users_affinity_and_gates_are_kept():
    made = pod("p", at="", gated=True)
    line = core.NodeRequirement("zone", "In", ("a",))
    terms = (core.NodeSelectorTerm(matchExpressions=(line,)), core.NodeSelectorTerm(matchExpressions=(line, line)))
    affinity = core.Affinity(core.NodeAffinity(core.NodeSelector(terms)))
    gates = (*made.spec.schedulingGates, core.SchedulingGate("mine"))
    spec = type(made.spec)(containers=made.spec.containers, affinity=affinity, schedulingGates=gates)
    body = pinner.pin_patch(type(made)(made.metadata, spec), "w", 3, Holding("n1"))
    required = body["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert [len(term["matchExpressions"]) for term in required["nodeSelectorTerms"]] == [1, 2]
    assert all(term["matchFields"][-1]["values"] == ["n1"] for term in required["nodeSelectorTerms"])
    assert body["spec"]["schedulingGates"] == [{"name": "mine"}]
    assert body["metadata"]["annotations"] == {placement_annotations.SEAT_ANNOTATION: "w/3"}, (
        "cards that are not known are not told"
    )


async def test_a_seat_that_was_released_is_removed_from_what_the_pod_says(state, client, seating_pods):
    said = {placement_annotations.SEAT_ANNOTATION: "gang:team/g/0", placement_annotations.CARDS_ANNOTATION: "f"}
    for name, at in (("waits", ""), ("bound", "n1"), ("plain", "")):
        state.on_pod(added(pod(name, "job-x", at=at, phase="Pending", notes=said if name != "plain" else {})))
    client.failures = [errors.Conflict("changed meanwhile")]
    for name in ("waits", "bound", "plain"):
        seating_pods.unpin(state.pods[f"uid-{name}"])
    await until(lambda: client.patches)
    await idle(seating_pods)
    ((name, body),) = client.patches
    assert name == "waits", "a pod that was bound meanwhile has its seat"
    assert set(body["metadata"]["annotations"].values()) == {None}
    assert placement_annotations.SEAT_ANNOTATION in body["metadata"]["annotations"]
    assert "resourceVersion" in body["metadata"]
