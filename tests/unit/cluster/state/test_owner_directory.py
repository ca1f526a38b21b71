"""What the directory answers for workloads, gangs and pods."""

from __future__ import annotations

import pytest
from tests.support.builders.gangs import member
from tests.support.builders.objects import UID, added, job, make, node, pod, pod_spec, removed, workload

from kgwe.cluster.state.cluster_state import ClusterState
from kgwe.cluster.workload.owner import ExternalGangOwner, PodOwner, Replacement, WorkloadOwner
from kgwe.kube.api import resources
from kgwe.kube.dialects import Key

GANG = ExternalGangOwner(Key("team", "kgwe.nvidia.io", "g"))


@pytest.fixture
def state():
    made = ClusterState()
    made.on_node(added(node("n1")))
    made.on_kgwe(added(workload()))
    made.on_job(added(job()))
    made.on_pod(added(pod()))
    made.on_pod(added(member("a", controller="job-of-others")))
    made.on_pod(added(member("b", controller="job-of-others")))
    meta = {"name": "lone", "namespace": "team", "uid": "uid-lone"}
    made.on_pod(added(make(resources.POD.type, {"metadata": meta, "spec": pod_spec(1, "n1")})))
    return made


def test_owners_are_told_apart(state):
    assert state.owners.resolve(UID) == WorkloadOwner(UID)
    assert state.owners.resolve(GANG.text) == GANG
    assert state.owners.resolve("uid-lone") == PodOwner("uid-lone")
    assert state.owners.resolve(Replacement(UID).text) == WorkloadOwner(UID)


def test_each_has_its_pods(state):
    found = {text: {each.metadata.name for each in state.owners.pods(text)} for text in (UID, GANG.text, "uid-lone")}
    assert found == {UID: {"p"}, GANG.text: {"a", "b"}, "uid-lone": {"lone"}}


def test_each_has_a_title_and_a_namespace(state):
    about = state.find_workload(UID).meta
    assert state.owners.title(UID) == f"workload {about.key}"
    assert state.owners.title(GANG.text) == "gang team/g"
    assert state.owners.title("uid-lone") == "pod team/lone"
    assert [state.owners.namespace(each) for each in (UID, GANG.text, "uid-lone")] == [about.namespace, "team", "team"]


def test_events_go_to_the_workload_or_to_a_pod(state):
    target = state.owners.event_target(UID)
    assert (target.resource, target.meta.uid) == (resources.GPU_WORKLOAD, UID)
    assert state.owners.event_target(GANG.text).meta.name in {"a", "b"}
    assert state.owners.event_target("uid-lone").resource is resources.POD


def test_events_of_a_deleted_workload_go_to_its_pod(state):
    state.on_kgwe(removed(workload()))
    target = state.owners.event_target(UID)
    assert target is None or target.resource is resources.POD


def test_what_is_not_known_is_shown_as_it_is(state):
    assert state.owners.pods("gone") == []
    assert state.owners.title("gone") == "gone"
    assert state.owners.namespace("gone") == ""
    assert state.owners.event_target("gone") is None
