"""How pods are taken away: gently where somebody can end them, by force where nobody can."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from tests.support.builders.objects import TWO, added, changed, job, leaving, node, pod, removed, workload
from tests.support.fakes.recording_client import RecordingClient, Write
from tests.support.patience import until

from kgwe import errors
from kgwe.apps.scheduler.disruption.evictor import Evictor
from kgwe.cluster.state.cluster_state import ClusterState
from kgwe.kube.api.core import Condition
from kgwe.kube.client import eviction
from kgwe.kube.client.client import DisruptionBudgetRefused
from kgwe.kube.client.eviction import TRACKING


def describe(write: Write) -> tuple[Any, ...]:
    """A write in few words; each names the pod by its uid."""
    uid = f"uid-{write.name}"
    if write.verb == "create":
        assert write.body["deleteOptions"]["preconditions"]["uid"] == uid
        return write.subresource, write.name
    if write.verb == "delete":
        assert write.options["uid"] == uid
        return "delete", write.name, write.options["grace_s"]
    if not write.subresource:
        return "uncount", write.name
    assert write.body["metadata"]["uid"] == uid
    status = write.body["status"]
    return "status", write.name, status["phase"], status["conditions"][0]["type"]


def down(name):
    made = node(name)
    status = msgspec.structs.replace(made.status, conditions=(Condition("Ready", "Unknown"),))
    return msgspec.structs.replace(made, status=status)


def unready(name):
    made = node(name)
    status = msgspec.structs.replace(made.status, conditions=(Condition("Ready", "False"),))
    return msgspec.structs.replace(made, status=status)


def counted(made):
    return msgspec.structs.replace(made, metadata=msgspec.structs.replace(made.metadata, finalizers=("x/y", TRACKING)))


def of_others(name, **more):
    made = pod(name, "job-of-others", **more)
    return msgspec.structs.replace(made, metadata=msgspec.structs.replace(made.metadata, labels={}))


@pytest.fixture
def state():
    made = ClusterState()
    made.on_node(added(node("n1")))
    made.on_node(added(down("n2")))
    made.on_node(added(unready("n3")))
    made.on_kgwe(added(workload(count=8)))
    made.on_job(added(job(seats=TWO)))
    return made


@pytest.fixture
def client():
    return RecordingClient()


@pytest.fixture
async def removing(state, client):
    means: Any = SimpleNamespace(client=client, state=state)  # all that it takes of them
    made = Evictor(means)
    made.start()
    yield made
    await made.stop()


async def remove(removing, uid, calls):
    """Ask for it, and wait until so many calls were made."""
    removing.remove_pod(uid, "why")
    await until(lambda: len(removing._client.writes) >= calls)
    return [describe(each) for each in removing._client.writes]


async def test_on_a_node_that_answers_it_is_evicted_and_its_end_not_counted(state, removing):
    state.on_pod(added(counted(pod("p", at="n1", index=0))))
    assert await remove(removing, "uid-p", 2) == [("eviction", "p"), ("uncount", "p")]


async def test_on_a_dead_node_it_is_deleted_by_force(state, removing):
    state.on_pod(added(counted(pod("p", at="n2", index=1))))
    assert await remove(removing, "uid-p", 2) == [("delete", "p", 0), ("uncount", "p")]


async def test_a_pod_of_others_on_a_dead_node_is_declared_failed_first(state, removing):
    state.on_pod(added(counted(of_others("p", at="n2"))))
    assert await remove(removing, "uid-p", 2) == [
        ("status", "p", "Failed", "DisruptionTarget"),
        ("delete", "p", 0),
    ], "and its end counts: that is for its owner to judge"


async def test_a_pod_of_others_on_a_node_that_answers_is_only_evicted(state, removing):
    state.on_pod(added(counted(of_others("p", at="n1"))))
    assert await remove(removing, "uid-p", 1) == [("eviction", "p")]


async def test_a_pod_without_a_node_is_deleted(state, removing):
    state.on_pod(added(pod("p", at="", index=1, phase="Pending")))
    assert await remove(removing, "uid-p", 1) == [("delete", "p", 0)]


async def test_a_kubelet_that_is_not_ready_is_asked_first_and_passed_over_when_it_is_long_overdue(state, removing):
    state.on_pod(added(pod("p", at="n3", index=1)))
    assert await remove(removing, "uid-p", 1) == [("eviction", "p")]
    state.on_pod(changed(pod("p", at="n3", index=1), leaving(pod("p", at="n3", index=1))))
    assert (await remove(removing, "uid-p", 2))[1] == ("delete", "p", 0)


async def test_what_a_budget_refuses_is_asked_again(state, client, removing):
    state.on_pod(added(pod("p", at="n1", index=0)))
    client.failures = [DisruptionBudgetRefused("Cannot evict pod as it would violate the pod's disruption budget.")]
    assert await remove(removing, "uid-p", 1) == [("eviction", "p")]


async def test_a_pod_that_has_gone_is_forgotten(state, client, removing):
    state.on_pod(added(pod("p", at="n1", index=0)))
    client.failures = [errors.NotFound("gone")]
    removing.remove_pod("uid-p", "why")
    await until(lambda: "uid-p" not in removing)
    state.on_pod(removed(pod("p", at="n1", index=0)))
    removing.remove_pod("uid-q", "never there")
    await asyncio.sleep(0.05)
    assert client.writes == []


async def test_a_budgets_refusal_is_told_from_an_api_server_under_load(client):
    client.failures = [errors.Transient("too many requests, please try again later")]
    with pytest.raises(errors.Transient):
        await eviction.evict_pod(client, pod("p"))
    client.failures = [DisruptionBudgetRefused("This pod has more than one PodDisruptionBudget")]
    with pytest.raises(DisruptionBudgetRefused):
        await eviction.evict_pod(client, pod("p"))
