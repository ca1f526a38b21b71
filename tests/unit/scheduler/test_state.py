"""What counts for whom: only what the API's own ownership says."""

import msgspec
import pytest

from kgwe.apps.scheduler import jobs
from kgwe.apps.scheduler.state import ClusterState
from kgwe.kube import resources
from kgwe.kube.informer import Change
from kgwe.model import amounts

UID = "11111111-aaaa-bbbb-cccc-000000000000"
NAME = f"w-job-{UID[:8]}"


def make(kind, body):
    return msgspec.convert(body, kind)


def node(name="n1", gpus="8", **more):
    offers = {amounts.GPU: gpus, "pods": "110", "cpu": "64"} | more
    ready = [{"type": "Ready", "status": "True"}]
    body = {"metadata": {"name": name}, "status": {"allocatable": offers, "conditions": ready}}
    return make(resources.NODE.type, body)


def workload(uid=UID, namespace="team", **status):
    meta = {"name": "w", "namespace": namespace, "uid": uid, "generation": 1, "resourceVersion": "1"}
    spec = {"gpuRequirements": {"count": 4}}
    return make(resources.GPU_WORKLOAD.type, {"metadata": meta, "spec": spec, "status": status})


def pod_spec(gpus, at=""):
    container = {"name": "c", "resources": {"requests": {amounts.GPU: str(gpus)}}}
    return {"nodeName": at, "containers": [container]}


def job(uid="job-1", *, owner=UID, namespace="team", name=NAME, at="n1", gpus=4, **status):
    owners = (
        [{"apiVersion": "v1", "kind": "GPUWorkload", "name": "w", "uid": owner, "controller": True}] if owner else []
    )
    meta = {
        "name": name,
        "namespace": namespace,
        "uid": uid,
        "labels": {jobs.UID_LABEL: UID},
        "annotations": {jobs.NODE_ANNOTATION: at},
        "ownerReferences": owners,
    }
    spec = {"template": {"spec": pod_spec(gpus)}}
    return make(resources.JOB.type, {"metadata": meta, "spec": spec, "status": status})


def pod(name="p", job_uid="job-1", *, at="n1", gpus=4, namespace="team", phase="Running"):
    owners = [{"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": job_uid, "controller": True}]
    meta = {"name": name, "namespace": namespace, "labels": {jobs.UID_LABEL: UID}, "ownerReferences": owners}
    return make(resources.POD.type, {"metadata": meta, "spec": pod_spec(gpus, at), "status": {"phase": phase}})


def added(obj):
    return Change(obj.metadata.key, None, obj)


def removed(obj):
    return Change(obj.metadata.key, obj, None)


@pytest.fixture
def state():
    made = ClusterState()
    made.on_node(added(node()))
    return made


def free(state):
    state.ledger.check()
    return state.ledger.free("n1", amounts.GPU)


def test_a_job_of_ours_reserves_until_its_pod_is_bound_and_again_when_it_is_evicted(state):
    state.on_kgwe(added(workload()))
    state.on_job(added(job()))
    assert free(state) == 4
    state.on_pod(added(pod()))
    assert free(state) == 4
    state.on_pod(removed(pod()))
    assert free(state) == 4
    state.on_job(removed(job()))
    assert free(state) == 8


@pytest.mark.parametrize("order", ["job first", "workload first", "pod first"])
def test_the_order_in_which_watches_deliver_does_not_matter(state, order):
    steps = {
        "workload": lambda: state.on_kgwe(added(workload())),
        "job": lambda: state.on_job(added(job())),
        "pod": lambda: state.on_pod(added(pod())),
    }
    first = order.split(maxsplit=1)[0]
    for step in (first, *(each for each in steps if each != first)):
        steps[step]()
    assert free(state) == 4
    assert state.jobs[UID].metadata.uid == "job-1"
    assert list(state.pods_of(state.jobs[UID])) == ["team/p"]


@pytest.mark.parametrize(
    "forged",
    [
        pytest.param(job(owner=""), id="labelled, but owned by nobody"),
        pytest.param(job(owner="somebody-else"), id="owned by another"),
        pytest.param(job(namespace="other"), id="in another namespace"),
        pytest.param(job(name="other"), id="under another name"),
    ],
)
def test_a_label_does_not_make_a_job_ours(state, forged):
    state.on_kgwe(added(workload()))
    state.on_job(added(forged))
    assert state.jobs == {}
    assert free(state) == 8
    state.on_job(added(job()))
    state.on_job(removed(forged)) if forged.metadata.key != job().metadata.key else None
    assert state.jobs[UID].metadata.uid == "job-1"


def test_a_labelled_pod_of_somebody_else_counts_for_itself(state):
    state.on_kgwe(added(workload()))
    state.on_job(added(job()))
    state.on_pod(added(pod("stranger", job_uid="not-ours", namespace="other", gpus=2)))
    assert free(state) == 2
    assert state.pods_of(state.jobs[UID]) == {}


def test_a_pod_of_the_job_before_does_not_stand_in_for_the_new_one(state):
    state.on_kgwe(added(workload()))
    state.on_job(added(job("job-1")))
    state.on_pod(added(pod("old", "job-1")))
    state.on_job(removed(job("job-1")))
    assert free(state) == 4, "it still runs down"
    state.on_job(added(job("job-2")))
    assert free(state) == 0, "and the new Job's pods are still to come"
    state.on_pod(removed(pod("old", "job-1")))
    assert free(state) == 4


def test_a_finished_job_holds_nothing(state):
    state.on_kgwe(added(workload()))
    state.on_job(added(job()))
    done = job(conditions=[{"type": "Complete", "status": "True"}])
    state.on_job(Change(done.metadata.key, job(), done))
    assert free(state) == 8


def test_a_node_with_odd_resources_is_still_a_node(state):
    state.on_node(added(node("odd", **{"kubernetes.io/batch-cpu": "500m", "example.com/x": "1"})))
    assert state.ledger.free("odd", amounts.GPU) == 8


def test_an_unreadable_node_is_left_out_and_nothing_else_breaks(state):
    state.on_node(added(node("broken", gpus="half")))
    assert state.ledger.node("broken") is None
    assert free(state) == 8


def test_room_is_announced_when_something_ends(state):
    heard = []
    state.on_kgwe(added(workload()))
    state.on_job(added(job()))
    state.tell(on_work=lambda _: None, on_room=lambda: heard.append("room"), on_gone=heard.append)
    state.on_job(removed(job()))
    assert heard == ["room"]
    state.on_kgwe(removed(workload()))
    assert heard == ["room", UID]
