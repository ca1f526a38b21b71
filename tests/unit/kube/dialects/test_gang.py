"""From members to a request: who counts, in which order, how few will do, and what is wished for all."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.racks import cards, racks
from tests.unit.kube.dialects import manifests
from tests.unit.kube.dialects.bed import LEAF, LEVELS, SPINE, World, load, pod, request_of

from kgwe import errors
from kgwe.kube.api import core
from kgwe.kube.dialects import Groups, Levels, gang_request, membership, missing
from kgwe.kube.dialects.membership import PLAN_GATE
from kgwe.model.domain_labels import GKE, TOPOGRAPH
from kgwe.placement.gang import GangPlan, Role, Segment, Strategy

OWN = "kgwe.nvidia.io/"
KUEUE = {"kueue.x-k8s.io/pod-group-name": "llama", "kueue.x-k8s.io/pod-group-total-count": "4"}
PODSET = "kueue.x-k8s.io/podset-"
GPU_1 = {"containers": [{"resources": {"limits": {"nvidia.com/gpu": "1"}}}]}


def gang_of(size: int, **said: str) -> dict[str, str]:
    named = {OWN + word.replace("_", "-"): text for word, text in said.items()}
    return {OWN + "gang": "llama", OWN + "gang-size": str(size), **named}


def changed(pod: core.Pod, **fields: Any) -> core.Pod:
    """The pod with parts of its metadata, spec or status replaced."""
    parts = {name: msgspec.structs.replace(getattr(pod, name), **change) for name, change in fields.items()}
    return msgspec.structs.replace(pod, **parts)


# --- who is there ---------------------------------------------------------------------------------------


def test_a_gang_lacks_the_pods_that_have_not_come():
    world = load(manifests.PLAIN["coscheduling"], 5)

    assert missing(world.members) == 3
    assert world.problem().words == "gang train/llama waits for 3 more of 8 pods"
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
    world = load(manifests.PLAIN["coscheduling"])
    world.pods[3] = changed(world.pods[3], **change)

    assert missing(world.members) == lacking


def owned(uid: str) -> dict[str, Any]:
    owner = core.OwnerReference("batch/v1", "Job", f"job-{uid}", uid, controller=True)
    return {"ownerReferences": (owner,)}


def test_pods_that_succeeded_in_an_earlier_run_are_not_there():
    world = load(manifests.PLAIN["coscheduling"])
    world.pods[:7] = [changed(each, status={"phase": "Succeeded"}, metadata=owned("first")) for each in world.pods[:7]]
    world.pods[7] = changed(world.pods[7], metadata=owned("second"))
    assert missing(world.members) == 7

    world.pods[7] = changed(world.pods[7], metadata=owned("first"))
    assert missing(world.members) == 0


def test_a_job_that_goes_on_in_waves_is_not_counted_by_those_that_are_done():
    world = load(manifests.PLAIN["job"].replace("parallelism: 8", "parallelism: 2"))
    world.pods[:6] = [changed(each, status={"phase": "Succeeded"}) for each in world.pods[:6]]

    assert world.gang().order == tuple(world.pods[6:])


def test_a_surplus_of_one_role_does_not_make_up_for_another():
    text = manifests.PLAIN["volcano"].replace("{worker: 8}", "{ps: 2, worker: 4}")
    world = load(text)

    assert missing(world.members) == 2


def test_a_gang_of_which_nobody_is_there_lacks_somebody():
    world = load(manifests.PLAIN["kgwe"], 1)
    world.pods[0] = changed(world.pods[0], status={"phase": "Failed"})

    assert missing(world.members) == 8
    assert world.problem().waits


def test_members_of_two_gangs_are_a_mistake_of_the_caller():
    pods = [pod(name, annotations={OWN + "gang": name, OWN + "gang-size": "1"}) for name in ("a", "b")]

    with pytest.raises(errors.InvariantBroken):
        gang_request(World(pods).members, request_of)


def test_pods_that_run_are_not_asked_for_again():
    world = load(manifests.PLAIN["coscheduling"].replace("minMember: 8", "minMember: 6"))
    world.pods[:7] = [changed(each, spec={"nodeName": "a1"}) for each in world.pods[:7]]

    gang = world.gang()

    assert gang.bound == tuple(world.pods[:7])
    assert gang.request.roles == (Role("worker", cards(8), 1),)


def test_nothing_is_asked_for_when_all_of_it_runs():
    world = load(manifests.PLAIN["kgwe"])
    world.pods = [changed(each, spec={"nodeName": "a1"}) for each in world.pods]

    assert world.problem().words == "all pods of gang train/llama have their nodes"


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

    assert [(role.least, role.replicas) for role in World(pods).gang().request.roles] == [(1, 1), (3, 5)]


def test_the_fewest_pods_are_whole_segments():
    notes = gang_of(8, gang_min_size="5", segment="2@node")
    gang = World([pod(f"p{number}", annotations=notes) for number in range(8)]).gang()

    assert [(role.least, role.replicas) for role in gang.request.roles] == [(6, 8)]


def test_an_elastic_gang_leaves_its_last_pods_without_a_seat():
    small = racks({"s1": {"a": [8] * 3, "b": [8] * 2}})
    notes = gang_of(6, gang_min_size="2")
    pods = [pod("a-0", annotations=notes, spec=GPU_1)] + [pod(f"b-{number}", annotations=notes) for number in range(5)]
    gang = World(pods).gang()

    plan = small.place(gang.request)

    assert [each.metadata.name for each, _ in gang.seated(plan)] == ["a-0", "b-0", "b-1", "b-2", "b-3"]


def test_segments_of_other_sizes_stay_roles():
    text = manifests.SEGMENTED["kai"].replace(
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

    text = manifests.PLAIN["kubernetes"].replace("{schedulingPolicy", "{priority: 70, schedulingPolicy")
    assert load(text).gang().request.priority == 70


# --- Kubernetes -----------------------------------------------------------------------------------------


def test_pods_of_a_basic_group_are_no_gang():
    assert load(manifests.PLAIN["kubernetes"].replace("{gang: {minCount: 8}}", "{basic: {}}")).members == []


def test_a_basic_group_in_one_place_may_start_with_one_pod():
    gang = load(manifests.REQUIRED["kubernetes"].replace("{gang: {minCount: 8}}", "{basic: {}}"), 3).gang()

    assert (gang.request.required, gang.request.roles[0].least) == ("leaf", 1)


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
    assert load(manifests.PLAIN["coscheduling"]).memberships[0].timeout_s == 60


# --- wishes ---------------------------------------------------------------------------------------------


def test_our_own_words_go_before_those_of_others():
    notes = {**gang_of(1, topology_preferred="spine"), "kai.scheduler/topology-preferred-placement": LEAF}

    assert World([pod(annotations=notes)]).gang().request.preferred == "spine"


def test_our_own_segments_do_not_loosen_what_a_role_requires():
    notes = {**gang_of(4, segment="2@node"), PODSET + "required-topology": LEAF}
    request = World([pod(f"p{number}", annotations=notes) for number in range(4)]).gang().request

    assert (request.required, request.roles[0].segments) == ("leaf", (Segment(2, "node"),))


def test_segments_nest():
    notes = gang_of(8, segment="2@node, 4@leaf")
    request = World([pod(f"p{number}", annotations=notes) for number in range(8)]).gang().request

    assert request.roles[0].segments == (Segment(2, "node"), Segment(4, "leaf"))


def two_sets(**notes: str) -> World:
    """Two pods of each kind; the notes are about those of the first, those of `both` about all."""
    both = {PODSET + word.replace("_", "-"): text for word, text in notes.items() if word == "group_name"}
    first = {PODSET + word.replace("_", "-"): text for word, text in notes.items()}
    pods = [pod(f"a-{number}", annotations={**KUEUE, **first}) for number in range(2)]
    return World(pods + [pod(f"b-{number}", annotations={**KUEUE, **both}, spec=GPU_1) for number in range(2)])


def test_what_kueue_requires_of_one_pod_set_binds_no_other():
    request = two_sets(required_topology=LEAF).gang().request

    assert request.required == ""
    assert [role.segments for role in request.roles] == [(Segment(2, "leaf"),), ()]


def test_pod_sets_of_a_group_share_the_domain():
    world = two_sets(required_topology=LEAF, group_name="all")
    assert "want to share a domain and others do not" in world.problem().words

    for each in world.pods[2:]:
        each.metadata.annotations[PODSET + "required-topology"] = LEAF
    request = world.gang().request

    assert request.required == "leaf"
    assert [role.segments for role in request.roles] == [(), ()]


def test_pods_that_kueue_has_placed_are_held_by_their_selectors():
    notes = {**KUEUE, PODSET + "required-topology": SPINE, PODSET + "slice-required-topology": LEAF}
    notes[PODSET + "slice-size"] = "2"
    selectors = [{SPINE: "s1", LEAF: leaf} for leaf in ("a", "a", "b", "b")]
    pods = [pod(f"p{number}", annotations=notes, spec={"nodeSelector": each}) for number, each in enumerate(selectors)]

    request = World(pods).gang().request

    assert request.required == ""
    assert all(role.segments == () for role in request.roles)


def test_unconstrained_is_into_the_smallest_holes():
    notes = {**KUEUE, PODSET + "unconstrained-topology": "true"}

    assert World([pod(f"p{n}", annotations=notes) for n in range(4)]).gang().request.strategy == Strategy.PACK


def test_a_role_of_unequal_pods_is_not_promised_one_place():
    notes = {"pod-group-name": "llama", "kai.scheduler/subgroup-name": "worker-0"}
    world = load(manifests.SEGMENTED["kai"], 8)
    world.pods[0] = pod("llama-worker-0", annotations=notes, spec=GPU_1)

    assert "give them roles of their own" in world.problem().words


def test_the_annotations_of_topology_scheduler_may_stand_on_the_job():
    text = manifests.PLAIN["job"].replace('{kgwe.nvidia.io/gang: "true"}', "{}")
    notes = """annotations:
    topology.scheduler/gpu-count: "64"
    topology.scheduler/preferred-domain: d
    topology.scheduler/network-bandwidth: 200Gb
    topology.scheduler/latency-sensitive: "true"
    topology.scheduler/placement-strategy: Consolidated
spec: {parallelism"""
    text = text.replace("metadata: {name: llama, namespace: train, uid: j1}\nspec: {parallelism",
                        f"metadata:\n  name: llama\n  namespace: train\n  uid: j1\n  {notes}")  # fmt: skip
    gang = load(text).gang()

    assert gang.request.min_network_gb_per_s == 25.0
    assert gang.request.strategy == Strategy.CONSOLIDATED
    assert gang.request.preferred == "leaf"
    assert gang.preferred_domain == "d"


def test_topology_scheduler_balances_when_nothing_else_is_said():
    member = membership(pod(annotations={"topology.scheduler/preferred-domain": "leaf-1"}), Groups(LEVELS, {}))

    assert member is not None
    assert member.wish.strategy == Strategy.BALANCED
    assert (member.key.kind, member.dialect) == ("Pod", "pod")


@pytest.mark.parametrize(
    ("text", "rate"), [("100Gb", 12.5), ("100 Gbps", 12.5), ("12.5GB/s", 12.5), ("800Gbit/s", 100.0), ("1Tb", 125.0)]
)
def test_bandwidth_counts_bits_unless_it_says_bytes(text: str, rate: float) -> None:
    notes = {"topology.scheduler/network-bandwidth": text}

    assert World([pod(annotations=notes)]).gang().request.min_network_gb_per_s == pytest.approx(rate)


def test_a_preferred_domain_is_tried_first_and_left_when_it_is_full():
    fleet = racks({"s1": {"a": [8] * 4, "b": [8] * 4}, "s2": {"c": [8] * 4, "d": [8] * 2}})
    notes = {"topology.scheduler/preferred-domain": "c"}
    gang = World([pod(f"p{n}", annotations={**gang_of(3), **notes}) for n in range(3)]).gang()

    first, then = gang.attempts(fleet.tree)

    assert fleet.place(first).domain == "c"
    assert then == gang.request
    full = World([pod(f"p{n}", annotations={**gang_of(5), **notes}) for n in range(5)]).gang()
    answers = [fleet.planner.plan(each) for each in full.attempts(fleet.tree)]
    assert [isinstance(each, GangPlan) for each in answers] == [False, True]


def test_a_domain_that_does_not_exist_is_not_tried():
    fleet = racks({"s1": {"a": [8]}})
    gang = World([pod(annotations={"topology.scheduler/preferred-domain": "leaf-99"})]).gang()

    assert list(gang.attempts(fleet.tree)) == [gang.request]


# --- levels ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "level"),
    [
        (LEAF, "leaf"),
        ("leaf", "leaf"),
        ("kubernetes.io/hostname", "node"),
        ("nvidia.com/gpu.clique", "nvlink"),
        ("accelerator.topograph.run/domain", "nvlink"),
        ("network.topology.nvidia.com/block", "leaf"),
        ("cloud.google.com/gce-topology-block", "spine"),
        ("oci.oraclecloud.com/rdma.hpc_island_id", "core"),
        ("topology.kubernetes.io/zone", "zone"),
    ],
)
def test_a_label_names_the_level_it_is_read_for_or_the_one_of_that_name(key: str, level: str) -> None:
    assert Levels(TOPOGRAPH).of(key, "x") == level


def test_the_levels_are_those_of_the_clusters_own_labels():
    assert Levels(GKE).of("cloud.google.com/gce-topology-block", "x") == "block"
    with pytest.raises(errors.Permanent, match="no level of this cluster"):
        LEVELS.of("topology.kubernetes.io/zone", "x")
