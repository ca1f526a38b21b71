"""From members to a request: who counts, in which order, how few will do, and what is wished for all."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.support.builders import dialect_manifests, dialect_wishes
from tests.support.builders.dialect_worlds import World, gang_of, load, pod, request_of
from tests.support.builders.racks import cards, racks

from kgwe import errors
from kgwe.kube.api import core
from kgwe.kube.dialects import Gang, count_missing, gang_request
from kgwe.kube.dialects.membership import PLAN_GATE
from kgwe.placement.planning.gang_planner import Role, Segment

OWN = "kgwe.nvidia.io/"
KUEUE = {"kueue.x-k8s.io/pod-group-name": "llama", "kueue.x-k8s.io/pod-group-total-count": "4"}
PODSET = "kueue.x-k8s.io/podset-"
GPU_1 = {"containers": [{"resources": {"limits": {"nvidia.com/gpu": "1"}}}]}


def changed(pod: core.Pod, **fields: Any) -> core.Pod:
    """The pod with parts of its metadata, spec or status replaced."""
    parts = {name: msgspec.structs.replace(getattr(pod, name), **change) for name, change in fields.items()}
    return msgspec.structs.replace(pod, **parts)


# --- who is there ---------------------------------------------------------------------------------------


def test_a_gang_lacks_the_pods_that_have_not_come():
    world = load(dialect_manifests.PLAIN["coscheduling"], 5)

    assert count_missing(world.members) == 3
    assert world.problem().words == "gang train/llama incomplete: waiting for 3 more of 8 pods"
    assert world.problem().waits


@pytest.mark.parametrize(
    ("change", "lacking"),
    [
        ({"status": {"phase": "Failed"}}, 1),
        ({"metadata": {"deletionTimestamp": "2026-11-15T23:00:00Z"}}, 1),
        ({"spec": {"schedulingGates": (core.SchedulingGate("kueue.x-k8s.io/admission"),)}}, 1),
        ({"status": {"phase": "Succeeded"}}, 0),
        ({"spec": {"schedulingGates": (core.SchedulingGate(PLAN_GATE),)}}, 0),
        ({"spec": {"nodeName": "a1"}}, 0),
    ],
)
def test_pods_that_are_gone_or_held_back_are_not_there(change: dict[str, Any], lacking: int) -> None:
    world = load(dialect_manifests.PLAIN["coscheduling"])
    world.pods[3] = changed(world.pods[3], **change)

    assert count_missing(world.members) == lacking


def owned(uid: str) -> dict[str, Any]:
    owner = core.OwnerReference("batch/v1", "Job", f"job-{uid}", uid, controller=True)
    return {"ownerReferences": (owner,)}


def test_pods_that_succeeded_in_an_earlier_run_are_not_there():
    world = load(dialect_manifests.PLAIN["coscheduling"])
    world.pods[:7] = [changed(each, status={"phase": "Succeeded"}, metadata=owned("first")) for each in world.pods[:7]]
    world.pods[7] = changed(world.pods[7], metadata=owned("second"))
    assert count_missing(world.members) == 7

    world.pods[7] = changed(world.pods[7], metadata=owned("first"))
    assert count_missing(world.members) == 0


def test_a_job_that_goes_on_in_waves_is_not_counted_by_those_that_are_done():
    world = load(dialect_manifests.PLAIN["job"].replace("parallelism: 8", "parallelism: 2"))
    world.pods[:6] = [changed(each, status={"phase": "Succeeded"}) for each in world.pods[:6]]

    assert world.gang().order == tuple(world.pods[6:])


def test_a_surplus_of_one_role_does_not_make_up_for_another():
    text = dialect_manifests.PLAIN["volcano"].replace("{worker: 8}", "{ps: 2, worker: 4}")
    world = load(text)

    assert count_missing(world.members) == 2


def test_a_gang_of_which_nobody_is_there_lacks_somebody():
    world = load(dialect_manifests.PLAIN["kgwe"], 1)
    world.pods[0] = changed(world.pods[0], status={"phase": "Failed"})

    assert count_missing(world.members) == 8
    assert world.problem().waits


def test_members_of_two_gangs_are_a_mistake_of_the_caller():
    pods = [pod(name, annotations={OWN + "gang": name, OWN + "gang-size": "1"}) for name in ("a", "b")]

    with pytest.raises(errors.InvariantBroken):
        gang_request(World(pods).members, request_of)


def test_pods_that_run_are_not_asked_for_again():
    world = load(dialect_manifests.PLAIN["coscheduling"].replace("minMember: 8", "minMember: 6"))
    world.pods[:7] = [changed(each, spec={"nodeName": "a1"}) for each in world.pods[:7]]

    gang = world.gang()

    assert gang.bound == tuple(world.pods[:7])
    assert gang.request.roles == (Role("worker", cards(8), 1),)


def test_what_was_read_long_ago_from_pods_that_run_does_not_count():
    before, now = (load(dialect_manifests.PLAIN["kgwe"].replace('"8"', size)) for size in ('"8"', '"2"'))
    running = changed(before.pods[0], spec={"nodeName": "a1"})
    spoiled = changed(before.pods[1], metadata={"deletionTimestamp": "2026-11-15T23:00:00Z", "annotations": {}})
    members = [(running, before.memberships[0]), (spoiled, before.memberships[1]), *now.members[2:3]]

    gang = gang_request(members, request_of)

    assert isinstance(gang, Gang), gang
    assert gang.bound == (running,)
    assert gang.request.replicas == 1


def test_nothing_is_asked_for_when_all_of_it_runs():
    world = load(dialect_manifests.PLAIN["kgwe"])
    world.pods = [changed(each, spec={"nodeName": "a1"}) for each in world.pods]

    assert world.problem().words == "all pods of gang train/llama are bound"


# --- order and roles ------------------------------------------------------------------------------------


def test_pods_without_numbers_go_by_their_names():
    names = ["w-10", "w-9", "w-1", "w-2"]
    gang = World([pod(name, annotations=gang_of(4)) for name in names]).gang()

    assert [each.metadata.name for each in gang.order if each] == ["w-1", "w-2", "w-9", "w-10"]


def test_a_rank_goes_before_a_name():
    pods = [pod(name, annotations=gang_of(3, rank=rank)) for name, rank in (("a", "2"), ("b", "0"), ("c", "1"))]

    assert [each.metadata.name for each in World(pods).gang().order if each] == ["b", "c", "a"]


def test_the_index_label_that_kueue_is_told_of_counts():
    notes = {**KUEUE, "kueue.x-k8s.io/pod-group-pod-index-label": "rank"}
    pods = [pod(f"p{number}", annotations=notes, labels={"rank": str(3 - number)}) for number in range(4)]

    assert [each.metadata.name for each in World(pods).gang().order if each] == ["p3", "p2", "p1", "p0"]


def test_pods_that_ask_for_different_things_are_different_roles():
    pods = [pod("launcher", annotations=gang_of(3), spec=GPU_1)]
    pods += [pod(f"worker-{number}", annotations=gang_of(3)) for number in range(2)]

    assert World(pods).gang().request.roles == (Role("worker", cards(1), 1), Role("worker-2", cards(8), 2))


def test_roles_keep_their_names_when_there_are_several():
    pods = [pod("a", annotations=gang_of(2, gang_role="driver"), spec=GPU_1)]
    pods += [pod("b", annotations=gang_of(2, gang_role="executor"))]

    assert [role.name for role in World(pods).gang().request.roles] == ["driver", "executor"]


def test_the_largest_role_gives_way_when_fewer_will_do():
    notes = gang_of(6, gang_min_size="4")
    pods = [pod("a-0", annotations=notes, spec=GPU_1)] + [pod(f"b-{number}", annotations=notes) for number in range(5)]

    assert [(role.required_replicas, role.replicas) for role in World(pods).gang().request.roles] == [(1, 1), (3, 5)]


TASKS = dialect_manifests.PLAIN["volcano"].replace(
    "minMember: 8, minTaskMember: {worker: 8}", "minTaskMember: {a: 1, b: 2}"
)


def test_equal_roles_stay_apart_when_the_first_may_do_with_fewer():
    """As one role of six, four pods of `a` could take the places of `b`."""
    pod_of = TASKS.split("---")[1]
    both = [
        pod_of.replace("worker", role).replace("Pod", f"Pod\ncount: {count}") for role, count in (("a", 4), ("b", 2))
    ]
    text = "---".join([TASKS.split("---")[0], *both])

    assert [(role.name, role.required_replicas, role.replicas) for role in load(text).gang().request.roles] == [
        ("a", 1, 4),
        ("b", 2, 2),
    ]


def test_what_runs_of_a_role_counts_towards_its_fewest():
    world = load(
        dialect_manifests.PLAIN["volcano"].replace(
            "minMember: 8, minTaskMember: {worker: 8}", "minTaskMember: {worker: 4}"
        )
    )
    world.pods[:4] = [changed(each, spec={"nodeName": "a1"}) for each in world.pods[:4]]

    assert [(role.required_replicas, role.replicas) for role in world.gang().request.roles] == [(1, 4)]


def test_volcano_may_count_in_subgroups():
    world = load(dialect_wishes.SEGMENTED["volcano"].replace("minMember: 8", "minMember: 1"), 4)

    assert count_missing(world.members) == 4


@pytest.mark.parametrize("dialect", ["coscheduling", "volcano", "kai"])
def test_a_group_that_needs_nobody_may_start_with_one(dialect: str) -> None:
    text = dialect_manifests.PLAIN[dialect].replace("minMember: 8", "minMember: 0").replace("{worker: 8}", "{}")

    assert load(text).gang().request.roles[0].required_replicas == 1


def test_the_fewest_pods_are_whole_segments():
    notes = gang_of(8, gang_min_size="5", segment="2@node")
    gang = World([pod(f"p{number}", annotations=notes) for number in range(8)]).gang()

    assert [(role.required_replicas, role.replicas) for role in gang.request.roles] == [(6, 8)]


def test_an_elastic_gang_leaves_its_last_pods_without_a_seat():
    small = racks({"s1": {"a": [8] * 3, "b": [8] * 2}})
    notes = gang_of(6, gang_min_size="2")
    pods = [pod("a-0", annotations=notes, spec=GPU_1)] + [pod(f"b-{number}", annotations=notes) for number in range(5)]
    gang = World(pods).gang()

    plan = small.place(gang.request)

    assert [each.metadata.name for each, _ in gang.assign_pods(plan)] == ["a-0", "b-0", "b-1", "b-2", "b-3"]


def test_segments_of_other_sizes_stay_roles():
    text = dialect_wishes.SEGMENTED["kai"].replace(
        "name: worker-1, parent: worker, minMember: 4", "name: worker-1, minMember: 2"
    )
    world = load(text.replace("minSubGroup: 2", "minSubGroup: 1"), 6)

    assert world.gang().request.roles == (
        Role("worker-0", cards(8), 4, segments=(Segment(4, "leaf"),)),
        Role("worker-1", cards(8), 2, segments=(Segment(2, "leaf"),)),
    )


def test_priority_is_the_groups_else_the_lowest_of_the_pods():
    pods = [pod(f"p{priority}", annotations=gang_of(2), spec={"priority": priority}) for priority in (5, 9)]
    assert World(pods).gang().request.priority == 5

    text = dialect_manifests.PLAIN["kubernetes"].replace("{schedulingPolicy", "{priority: 70, schedulingPolicy")
    assert load(text).gang().request.priority == 70


# --- Kubernetes -----------------------------------------------------------------------------------------


def test_pods_of_a_basic_group_are_no_gang():
    assert load(dialect_manifests.PLAIN["kubernetes"].replace("{gang: {minCount: 8}}", "{basic: {}}")).members == []


def test_a_basic_group_in_one_place_may_start_with_one_pod():
    gang = load(dialect_wishes.REQUIRED["kubernetes"].replace("{gang: {minCount: 8}}", "{basic: {}}"), 3).gang()

    assert (gang.request.required, gang.request.roles[0].required_replicas) == ("leaf", 1)


def test_a_workload_of_kubernetes_1_35_says_it_for_each_replica():
    world = load("""
apiVersion: scheduling.k8s.io/v1alpha1
kind: Workload
metadata: {name: llama, namespace: train}
spec:
  podGroups:
  - {name: workers, policy: {gang: {minCount: 2}}}
  - {name: drivers, policy: {basic: {}}}
---
kind: Pod
count: 2
metadata: {name: p-$i, namespace: train}
spec: {workloadRef: {name: llama, podGroup: workers, podGroupReplicaKey: "7"}}
---
kind: Pod
count: 1
metadata: {name: driver, namespace: train}
spec: {workloadRef: {name: llama, podGroup: drivers}}
""")

    assert len(world.members) == 2
    assert world.gang().key.name == "llama/workers/7"
    assert world.gang().request.replicas == 2


def test_coscheduling_tells_how_long_its_pods_may_hold_room():
    assert load(dialect_manifests.PLAIN["coscheduling"]).memberships[0].timeout_s == 60
