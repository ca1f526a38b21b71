"""Gangs by who made the pods: who belongs together, and nobody waits for pods that wait for him."""

from __future__ import annotations

import msgspec
import pytest
from tests.support.builders import dialect_manifests
from tests.support.builders.dialect_worlds import LEAF, World, load, request_of
from tests.support.builders.racks import cards, racks

from kgwe.kube.dialects import Gang, Size, count_missing, find_membership, gang_request
from kgwe.placement.planning.gang_planner import Role, Segment

FLEET = racks({"s1": {"a": [8] * 4, "b": [8] * 4}, "s2": {"c": [8] * 4, "d": [8] * 4}})

# --- Job ------------------------------------------------------------------------------------------------


def test_an_ordinary_job_is_no_gang():
    world = load(dialect_manifests.PLAIN["job"].replace('{kgwe.nvidia.io/gang: "true"}', "{}"))

    assert world.members == []


def test_a_job_may_opt_out():
    world = load(dialect_manifests.PLAIN["job"].replace('"true"', '"false"'))

    assert world.members == []


@pytest.mark.parametrize(
    "note",
    [
        'kgwe.nvidia.io/gang: "true"',
        "kgwe.nvidia.io/topology-preferred: leaf",
        'topology.scheduler/gpu-count: "64"',
        f"kai.scheduler/topology-preferred-placement: {LEAF}",
    ],
)
def test_a_job_opts_in_by_an_annotation_of_its_own_too(note: str) -> None:
    text = dialect_manifests.PLAIN["job"].replace('{kgwe.nvidia.io/gang: "true"}', "{}")
    world = load(text.replace("uid: j1}\nspec", f"uid: j1, annotations: {{{note}}}}}\nspec"))

    assert {(member.key.name, member.size) for member in world.memberships} == {("llama", Size(8, 8))}


def test_a_job_of_the_same_name_that_came_later_is_not_the_owner():
    text = dialect_manifests.PLAIN["job"].replace('{kgwe.nvidia.io/gang: "true"}', "{}")
    world = load(text.replace("uid: j1}\nspec", 'uid: j2, annotations: {kgwe.nvidia.io/gang: "true"}}\nspec'))

    assert world.members == []


def test_a_job_counts_the_pods_that_run_at_once():
    world = load(dialect_manifests.PLAIN["job"].replace("completions: 8", "completions: 2"), 2)

    assert world.memberships[0].size == Size(2, 2)


def test_a_named_gang_takes_its_size_from_the_job():
    world = load(dialect_manifests.PLAIN["job"].replace('gang: "true"', "gang: hero"))

    assert world.gang().request.name == "train/hero"
    assert world.gang().request.replicas == 8


def test_the_last_pod_of_a_job_does_not_wait_for_those_that_are_done():
    """They may be out of sight: whoever watches pods leaves out those that have ended."""
    text = dialect_manifests.PLAIN["job"].replace("completions: 8}", "completions: 8}\nstatus: {succeeded: 7}")

    assert count_missing(load(text, 1).members) == 0
    assert load(text, 1).gang().request.replicas == 1


def test_a_group_knows_from_the_job_what_is_done():
    job = (
        dialect_manifests.PLAIN["job"]
        .replace("completions: 8}", "completions: 8}\nstatus: {succeeded: 7}")
        .split("---")[0]
    )
    owner = "ownerReferences: [{apiVersion: batch/v1, kind: Job, name: llama, uid: j1, controller: true}]"
    text = (
        job
        + "---"
        + dialect_manifests.PLAIN["coscheduling"].replace(
            "namespace: train, labels", f"namespace: train, {owner}, labels"
        )
    )

    assert count_missing(load(text, 1).members) == 0
    assert count_missing(load(text.replace("succeeded: 7", "succeeded: 5"), 1).members) == 2


def test_a_job_set_counts_what_its_jobs_have_done():
    children = "".join(
        f"""
apiVersion: batch/v1
kind: Job
metadata: {{name: llama-workers-{number}, namespace: train, uid: c{number}}}
status: {{succeeded: {done}}}
---"""
        for number, done in ((0, 4), (1, 2))
    )
    world = load(children + dialect_manifests.PLAIN["jobset"].replace("count: 4", "count: 2"))
    world.pods = world.pods[2:]

    assert count_missing(world.members) == 0
    assert world.gang().request.replicas == 2


def test_a_training_job_counts_what_its_workers_have_done():
    text = dialect_manifests.PLAIN["kubeflow"].replace(
        "Worker: {replicas: 7}}", "Worker: {replicas: 7}}\nstatus: {replicaStatuses: {Worker: {succeeded: 5}}}"
    )

    assert count_missing(load(text.replace("count: 7", "count: 2")).members) == 0


# --- JobSet ---------------------------------------------------------------------------------------------

ORDERED = """
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata: {name: js, namespace: train, uid: js}
spec:
  POLICY
  replicatedJobs:
  - {name: prepare, template: {spec: {parallelism: 1}}}
  - {name: workers, replicas: 2, template: {spec: {parallelism: 2}}, DEPENDS}
---
kind: Pod
count: COUNT
metadata:
  name: js-ROLE-0-$i
  namespace: train
  labels: {jobset.sigs.k8s.io/jobset-name: js, jobset.sigs.k8s.io/replicatedjob-name: ROLE,
           jobset.sigs.k8s.io/job-index: "0", batch.kubernetes.io/job-completion-index: "$i"}
"""


def ordered(role: str, count: int, *, policy: str = "", depends: str = "") -> World:
    text = ORDERED.replace("POLICY", policy).replace(", DEPENDS", depends)
    return load(text.replace("COUNT", str(count)).replace("ROLE", role))


def test_the_parts_of_a_job_set_are_one_gang():
    world = ordered("prepare", 1)

    assert world.memberships[0].key.name == "js"
    assert world.memberships[0].roles == (("prepare", 1), ("workers", 4))
    assert count_missing(world.members) == 4


@pytest.mark.parametrize(
    "later",
    [
        {"policy": "startupPolicy: {startupPolicyOrder: InOrder}"},
        {"depends": ", dependsOn: [{name: prepare, status: Complete}]"},
    ],
)
def test_parts_that_are_created_later_are_gangs_of_their_own(later: dict[str, str]) -> None:
    first, second = ordered("prepare", 1, **later), ordered("workers", 4, **later)

    assert count_missing(first.members) == 0
    assert first.gang().request.replicas == 1
    assert second.memberships[0].key.name == "js/workers"
    assert second.gang().request.replicas == 4


EXCLUSIVE = f"""
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata: {{name: js, namespace: train, uid: js}}
spec:
  replicatedJobs:
  - {{name: workers, replicas: 2, template: {{spec: {{parallelism: 4, completions: 4}}}}}}
---
kind: Pod
count: 2
metadata:
  name: js-workers-$i-0
  namespace: train
  labels: {{jobset.sigs.k8s.io/jobset-name: js, jobset.sigs.k8s.io/replicatedjob-name: workers,
           jobset.sigs.k8s.io/job-index: "$i", batch.kubernetes.io/job-completion-index: "0"}}
  annotations: {{alpha.jobset.sigs.k8s.io/exclusive-topology: {LEAF}}}
"""


def test_the_first_pods_of_exclusive_jobs_are_planned_with_those_that_follow():
    """JobSet admits the others of a Job only once its first pod has a node."""
    world = load(EXCLUSIVE)
    assert count_missing(world.members) == 0

    gang = world.gang()

    assert gang.exclusive == "leaf"
    assert gang.request.roles == (Role("worker", cards(8), 8, segments=(Segment(4, "leaf"),)),)
    assert gang.order == (world.pods[0], None, None, None, world.pods[1], None, None, None)
    seats = list(gang.assign_pods(FLEET.place(gang.request)))
    assert [pod.metadata.name for pod, _ in seats] == ["js-workers-0-0", "js-workers-1-0"]
    assert [seat.rank for _, seat in seats] == [0, 4]


def test_pods_that_follow_find_the_rank_that_was_planned_for_them():
    gang = load(EXCLUSIVE).gang()
    followers = load(
        EXCLUSIVE.replace("count: 2", "count: 4").replace('completion-index: "0"', 'completion-index: "$i"')
        .replace('job-index: "$i"', 'job-index: "1"').replace("-$i-0", "-1-$i")
    )  # fmt: skip

    assert [gang.rank_of(member) for member in followers.memberships] == [None, 5, 6, 7]


def test_pods_that_follow_are_held_by_their_selector():
    leader = load(EXCLUSIVE).pods[0]
    bound = msgspec.structs.replace(leader, spec=msgspec.structs.replace(leader.spec, nodeName="a1"))
    followers = load(
        EXCLUSIVE.replace("count: 2", "count: 4").replace('index: "0"', 'index: "$i"').replace("-$i-0", "-0-$i")
        + f"spec: {{nodeSelector: {{{LEAF}: a}}}}\n"
    ).pods[1:]
    world = World([bound, *followers], load(EXCLUSIVE.replace("replicas: 2", "replicas: 1")).groups)

    gang = world.gang()

    assert gang.bound == (bound,)
    assert gang.order == tuple(followers)
    assert gang.request.roles[0].segments == ()


# --- Kubeflow -------------------------------------------------------------------------------------------

MPI = """
apiVersion: kubeflow.org/v2beta1
kind: MPIJob
metadata: {name: mpi, namespace: train, uid: m}
spec: {launcherCreationPolicy: AtStartup, mpiReplicaSpecs: {Launcher: {replicas: 1}, Worker: {replicas: 4}}}
---
kind: Pod
count: 4
metadata:
  name: mpi-worker-$i
  namespace: train
  labels: {training.kubeflow.org/job-name: mpi, training.kubeflow.org/job-role: worker,
           training.kubeflow.org/replica-index: "$i"}
---
kind: Pod
count: 1
metadata:
  name: mpi-launcher-x7
  namespace: train
  labels: {training.kubeflow.org/job-name: mpi, training.kubeflow.org/job-role: launcher}
spec: {containers: [{resources: {requests: {cpu: "1"}}}]}
"""


def test_launcher_and_workers_are_one_gang():
    gang = load(MPI).gang()

    assert [(role.name, role.replicas) for role in gang.request.roles] == [("launcher", 1), ("worker", 4)]
    assert gang.order[0] is not None
    assert gang.order[0].metadata.name == "mpi-launcher-x7"


def test_a_launcher_that_waits_for_its_workers_is_not_waited_for():
    world = load(MPI.replace("AtStartup", "WaitForWorkersReady"))
    workers, launcher = World(world.pods[:4], world.groups), World(world.pods[4:], world.groups)

    assert count_missing(workers.members) == 0
    assert workers.gang().request.replicas == 4
    assert launcher.gang().request.replicas == 1
    assert launcher.gang().key != workers.gang().key


@pytest.mark.parametrize(
    "policy", ["elasticPolicy: {minReplicas: 5}", "runPolicy: {schedulingPolicy: {minAvailable: 5}}"]
)
def test_an_elastic_training_job_starts_with_fewer_workers(policy: str) -> None:
    text = dialect_manifests.PLAIN["kubeflow"].replace("spec:\n", f"spec:\n  {policy}\n")
    world = load(text.replace("count: 7", "count: 4"))

    assert count_missing(world.members) == 0
    assert [(role.required_replicas, role.replicas) for role in world.gang().request.roles] == [(5, 5)]
    full = load(text).gang()
    assert [(role.required_replicas, role.replicas) for role in full.request.roles] == [(5, 8)]


def test_a_pod_of_nobody_belongs_to_nothing():
    pod = load(dialect_manifests.PLAIN["coscheduling"]).pods[0]
    bare = msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, labels={"app": "web"}))

    assert find_membership(bare, load(MPI).groups) is None


def test_a_request_may_come_from_a_pod_that_nobody_can_read():
    world = load(dialect_manifests.PLAIN["coscheduling"])
    spoiled = msgspec.convert(
        {"metadata": {"name": "llama-0", "namespace": "train", "labels": {"scheduling.x-k8s.io/pod-group": "llama"}},
         "spec": {"containers": [{"resources": {"requests": {"cpu": "lots"}}}]}},
        type(world.pods[0]),
    )  # fmt: skip
    world.pods[0] = spoiled

    answer = gang_request(world.members, request_of)

    assert not isinstance(answer, Gang)
    assert "lots" in answer.words
