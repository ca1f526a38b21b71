"""How a run stands: running, or what keeps its pods from their places."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from tests.support.builders.objects import (
    TWO,
    UID,
    added,
    deployment,
    job,
    leaving,
    node,
    pod,
    removed,
    replica,
    workload,
)

from kgwe.cluster.state import run_state
from kgwe.cluster.state.cluster_state import ClusterState
from kgwe.cluster.workload.runs import read_job
from kgwe.cluster.workload.workload import Status
from kgwe.kube.api.core import Condition, PodResourceClaim, PodStatus

REFUSED = Condition("PodScheduled", "False", "Unschedulable", "0/2 nodes are available")


@pytest.fixture
def state():
    made = ClusterState()
    for name in ("n1", "n2"):
        made.on_node(added(node(name)))
    made.on_kgwe(added(workload(count=8)))
    return made


def the_workload(state, **status):
    made = state.find_workload(UID)
    return replace(made, status=Status(**status)) if status else made


def judge(state, **status):
    run = state.runs[UID]
    return run_state.find_unplaced(state, the_workload(state, **status), run, state.pods_of(run))


def is_running(state, **status):
    run = state.runs[UID]
    return run_state.is_running(the_workload(state, **status), run, state.pods_of(run))


def waiting(name, index, *conditions, gated=False):
    made = pod(name, at="", index=index, gated=gated, phase="Pending")
    return msgspec.structs.replace(made, status=PodStatus(phase="Pending", conditions=conditions))


STARTED = {"phase": "Running", "start_time": "t", "job_name": f"w-job-{UID[:8]}"}


class TestRunning:
    def test_a_gang_runs_when_all_its_pods_do_and_then_as_long_as_one_does(self, state):
        state.on_job(added(job(seats=TWO)))
        state.on_pod(added(pod("p0", at="n1", index=0)))
        assert not is_running(state)
        state.on_pod(added(pod("p1", at="n2", index=1)))
        assert is_running(state)
        state.on_pod(added(waiting("p1", 1)))
        assert not is_running(state)
        assert is_running(state, **STARTED)

    def test_pods_that_have_succeeded_count(self, state):
        state.on_job(added(job(seats=TWO, completedIndexes="0")))
        state.on_pod(added(pod("p1", at="n2", index=1)))
        assert is_running(state)

    def test_inference_runs_with_its_first_pod(self, state):
        state.on_deployment(added(deployment()))
        assert not is_running(state)
        state.on_pod(added(replica("a", at="n1", seat=f"{UID}/0")))
        assert is_running(state)


class TestUnplaced:
    def test_a_pod_that_kube_scheduler_refuses_names_its_node(self, state):
        state.on_job(added(job(seats=TWO)))
        state.on_pod(added(pod("p0", at="n1", index=0)))
        state.on_pod(added(waiting("p1", 1, REFUSED)))
        found = judge(state)
        assert found.reason == run_state.NODE_REFUSED
        assert found.message == "kube-scheduler rejected node n2: 0/2 nodes are available"
        assert found.avoid == {"n2"}
        assert found.is_nodes_fault

    def test_once_it_ran_a_lost_pod_is_for_others_to_mend(self, state):
        state.on_job(added(job(seats=TWO)))
        state.on_pod(added(pod("p0", at="n1", index=0)))
        state.on_pod(added(waiting("p1", 1, REFUSED)))
        assert judge(state, **STARTED) is None

    def test_but_not_when_nothing_of_it_is_left(self, state):
        state.on_job(added(job(seats=TWO)))
        state.on_pod(added(waiting("p0", 0, REFUSED)))
        assert judge(state, **STARTED).reason == run_state.NODE_REFUSED

    def test_pods_behind_the_gate_wait_for_us_and_others_for_a_scheduler(self, state):
        state.on_job(added(job(seats=TWO)))
        state.on_pod(added(waiting("p0", 0, gated=True)))
        assert "gated" in judge(state).message
        state.on_pod(added(waiting("p0", 0)))
        assert "kube-scheduler" in judge(state).message
        assert judge(state).reason == run_state.NOT_SCHEDULED

    def test_pods_that_are_not_there_are_missed_unless_the_job_has_made_them(self, state):
        state.on_job(added(job(seats=TWO)))
        assert judge(state).reason == run_state.PODS_NOT_CREATED
        assert "kubectl describe job" in judge(state).message
        state.on_job(added(job(seats=TWO, active=2)))
        assert judge(state) is None

    def test_a_dying_pod_does_not_count_as_one_that_waits(self, state):
        state.on_job(added(job(seats=TWO, active=2)))
        state.on_pod(added(leaving(waiting("p0", 0, REFUSED))))
        assert judge(state) is None

    @pytest.mark.parametrize("change", ["gone", "cordoned", "fewer"])
    def test_a_seat_whose_node_cannot_take_its_pod_any_more_is_lost(self, state, change):
        state.on_job(added(job(seats=TWO, active=2)))
        assert judge(state) is None
        if change == "gone":
            state.on_node(removed(node("n2")))
        elif change == "cordoned":
            cordoned = msgspec.structs.replace(
                node("n2"), spec=msgspec.structs.replace(node("n2").spec, unschedulable=True)
            )
            state.on_node(added(cordoned))
        else:
            state.on_node(added(node("n2", gpus="2")))
        found = judge(state)
        assert found.reason == run_state.PLACE_LOST
        assert "n2" in found.message
        assert found.avoid == frozenset(), "the next plan sees for itself"

    def test_what_has_its_pod_or_is_done_is_not_lost(self, state):
        state.on_job(added(job(seats=TWO, active=1, completedIndexes="1")))
        state.on_pod(added(pod("p0", at="n1", index=0)))
        for name in ("n1", "n2"):
            state.on_node(removed(node(name)))
        assert judge(state) is None

    def test_a_plan_that_is_gone_is_a_place_that_is_lost(self, state):
        state.on_job(added(job(seats=(), pods=2)))
        assert judge(state).reason == run_state.PLACE_LOST


def test_a_job_that_asks_for_nothing_is_a_run_too():
    assert read_job(job(gpus=0)).wanted["pods"] == 1


def test_seats_given_up_by_scaling_are_not_lost_and_are_reported(state):
    state.on_deployment(added(deployment(replicas=1)))
    state.on_pod(added(replica("p", at="", gated=True, phase="Pending")))
    assert judge(state).reason == run_state.NOT_SCHEDULED
    assert run_state.describe_scale(state.runs[UID], 0) == ("ScaledDown", "Deployment is scaled to 1 of 2 pods")
    state.on_deployment(added(deployment()))
    assert run_state.describe_scale(state.runs[UID], 0) is None
    assert run_state.describe_scale(state.runs[UID], 1) == (
        "NoRoomToScale",
        "scaled up, but no room yet for 1 of 2 pods",
    )


def offered(_resource: str) -> bool:
    return True


def test_a_resource_that_no_node_offers_is_no_fault_of_the_node(state):
    others = "7 node(s) didn't match Pod's node affinity/selector"
    message = f"0/8 nodes are available: 1 Insufficient example.com/nic, {others}. preemption: not helpful."
    found = run_state.describe_refusal(message, "n1", "team", state.reader.offers)
    assert found.message == (
        "no node offers example.com/nic, which the pod requests."
        " Remove the request, or install the device plugin that offers it"
    )
    assert (found.reason, found.avoid, found.is_nodes_fault) == (run_state.NOT_SCHEDULED, frozenset(), False)
    state.on_node(added(node("with-nic", **{"example.com/nic": "4"})))
    there = run_state.describe_refusal(message, "n1", "team", state.reader.offers)
    assert "rejected node n1: insufficient example.com/nic. Request less" in there.message


def test_a_missing_claim_is_no_fault_of_the_node():
    found = run_state.describe_refusal(
        '0/8 nodes are available: persistentvolumeclaim "dataset" not found. not found', "n1", "team", offered
    )
    assert found.message == (
        "PersistentVolumeClaim dataset does not exist in namespace team. Create it, or change the volumes of the pod"
    )
    assert (found.reason, found.avoid, found.is_nodes_fault) == (run_state.NOT_SCHEDULED, frozenset(), False)


def test_a_refusal_has_no_remarks_on_preemption():
    found = run_state.describe_refusal(
        "0/2 nodes are available: 2 Too many pods. preemption: none.", "n1", "team", offered
    )
    assert found.message == "kube-scheduler rejected node n1: Too many pods"
    assert found.avoid == {"n1"}


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        (
            "1 node(s) didn't match pod affinity rules",
            "didn't match pod affinity rules. Change podAffinity, or start the pods that it names",
        ),
        (
            "1 Insufficient example.com/nic",
            (
                "insufficient example.com/nic. Request less example.com/nic, or select nodes that offer enough of it"
                " (nodeSelector)"
            ),
        ),
        ("1 Insufficient cpu", "Insufficient cpu"),
    ],
)
def test_a_refusal_leaves_out_the_nodes_that_were_not_planned(own, expected):
    others = "63 node(s) didn't match Pod's node affinity/selector"
    for causes in (f"{own}, {others}", f"{others}, {own}"):
        found = run_state.describe_refusal(
            f"0/64 nodes are available: {causes}. preemption: no.", "n1", "team", offered
        )
        assert found.message == f"kube-scheduler rejected node n1: {expected}"
    alone = run_state.describe_refusal(f"0/64 nodes are available: {others}.", "n1", "team", offered)
    assert alone.message == f"kube-scheduler rejected node n1: 0/64 nodes are available: {others}"


def test_a_scheduler_that_does_not_exist_is_named(state):
    state.on_job(added(job(seats=TWO)))
    silent = waiting("p0", 0)
    other = msgspec.structs.replace(silent, spec=msgspec.structs.replace(silent.spec, schedulerName="volcano"))
    state.on_pod(added(other))
    found = judge(state)
    assert found.message == (
        "no scheduler named volcano has picked up its pod. Remove schedulerName from the pod template, or start that"
        " scheduler"
    )
    assert found.is_certain


def test_the_second_scheduler_of_the_chart_gets_time_to_pick_up_pods(state):
    state.scheduler_name = "kgwe-scheduler"
    state.on_job(added(job(seats=TWO)))
    silent = waiting("p0", 0)
    spec = msgspec.structs.replace(silent.spec, schedulerName="kgwe-scheduler")
    state.on_pod(added(msgspec.structs.replace(silent, spec=spec)))
    found = judge(state)
    assert found.message == (
        "scheduler kgwe-scheduler has not picked up its pod; check that scheduler kgwe-scheduler runs"
    )
    assert not found.is_certain


def test_a_claim_template_without_a_claim_is_named(state):
    state.on_job(added(job(seats=TWO)))
    silent = waiting("p0", 0)
    claims = (PodResourceClaim("gpu", resourceClaimTemplateName="two-gpus"),)
    state.on_pod(
        added(msgspec.structs.replace(silent, spec=msgspec.structs.replace(silent.spec, resourceClaims=claims)))
    )
    assert "no ResourceClaim was created from ResourceClaimTemplate two-gpus" in judge(state).message


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (
            "exceeded quota: team-gpus, requested: requests.nvidia.com/gpu=1, used: 8, limited: 8",
            ". Raise ResourceQuota team-gpus, ask for less, or wait until other workloads end",
        ),
        (
            'error looking up service account team/trainer: serviceaccount "trainer" not found',
            ". Create ServiceAccount trainer, or change serviceAccountName of the pod template",
        ),
        ("violates PodSecurity", ""),
    ],
)
def test_pods_that_the_api_server_refuses_are_explained_with_what_to_change(error, advice):
    found = run_state.describe_creation_error(read_job(job(seats=TWO)), error)
    assert found.message == f"Job created 0 of 2 pods: {error}{advice}"
    assert found.is_certain
