"""What is wished for a gang, by whom, and for how much of it."""

from __future__ import annotations

import pytest
from tests.support.builders import dialect_manifests, dialect_wishes
from tests.support.builders.dialect_worlds import LEAF, LEVELS, SPINE, World, gang_of, load, pod
from tests.support.builders.racks import racks

from kgwe import errors
from kgwe.kube.dialects import Groups, Levels, find_membership
from kgwe.model.network.domain_labels import GKE, TOPOGRAPH
from kgwe.placement.planning.gang_planner import GangPlan, Hardware, Segment, Strategy

KUEUE = {"kueue.x-k8s.io/pod-group-name": "llama", "kueue.x-k8s.io/pod-group-total-count": "4"}
PODSET = "kueue.x-k8s.io/podset-"
GPU_1 = {"containers": [{"resources": {"limits": {"nvidia.com/gpu": "1"}}}]}

# --- wishes ---------------------------------------------------------------------------------------------


def test_our_own_words_go_before_those_of_others():
    notes = {**gang_of(1, topology_preferred="spine"), "kai.scheduler/topology-preferred-placement": LEAF}

    assert World([pod(annotations=notes)]).gang().request.preferred == "spine"


@pytest.mark.parametrize("word", ["strategy", "gpu-model", "recovery", "gang-role", "rank", "simulated-duration"])
def test_our_own_words_that_are_not_about_gangs_make_none(word: str) -> None:
    assert find_membership(pod(annotations={f"kgwe.nvidia.io/{word}": "1"}), Groups(LEVELS, {})) is None


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
    assert "share a domain and others do not" in world.problem().words

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


def test_a_level_that_only_kueue_knows_is_no_obstacle_once_kueue_has_placed_the_pod():
    notes = {**KUEUE, PODSET + "preferred-topology": "example.com/rack"}
    pinned = {"nodeSelector": {"kubernetes.io/hostname": "a1"}}
    pods = [pod(f"p{number}", annotations=notes, spec=pinned) for number in range(4)]

    assert World(pods).gang().request.preferred == ""


def test_unconstrained_is_into_the_smallest_holes():
    notes = {**KUEUE, PODSET + "unconstrained-topology": "true"}

    assert World([pod(f"p{n}", annotations=notes) for n in range(4)]).gang().request.strategy == Strategy.PACK


def test_a_role_of_unequal_pods_is_not_promised_one_place():
    notes = {"pod-group-name": "llama", "kai.scheduler/subgroup-name": "worker-0"}
    world = load(dialect_wishes.SEGMENTED["kai"], 8)
    world.pods[0] = pod("llama-worker-0", annotations=notes, spec=GPU_1)

    assert "give them roles of their own" in world.problem().words


def test_the_annotations_of_topology_scheduler_may_stand_on_the_job():
    text = dialect_manifests.PLAIN["job"].replace('{kgwe.nvidia.io/gang: "true"}', "{}")
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
    member = find_membership(pod(annotations={"topology.scheduler/preferred-domain": "leaf-1"}), Groups(LEVELS, {}))

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

    first, then = gang.requests_to_try(fleet.tree)

    assert fleet.place(first).domain == "c"
    assert then == gang.request
    full = World([pod(f"p{n}", annotations={**gang_of(5), **notes}) for n in range(5)]).gang()
    answers = [fleet.planner.plan(each) for each in full.requests_to_try(fleet.tree)]
    assert [isinstance(each, GangPlan) for each in answers] == [False, True]


def test_a_domain_that_does_not_exist_is_not_tried():
    fleet = racks({"s1": {"a": [8]}})
    gang = World([pod(annotations={"topology.scheduler/preferred-domain": "leaf-99"})]).gang()

    assert list(gang.requests_to_try(fleet.tree)) == [gang.request]


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
    assert Levels(TOPOGRAPH).find_level(key, "x") == level


def test_the_levels_are_those_of_the_clusters_own_labels():
    assert Levels(GKE).find_level("cloud.google.com/gce-topology-block", "x") == "block"
    with pytest.raises(errors.Permanent, match="no level of this cluster"):
        LEVELS.find_level("topology.kubernetes.io/zone", "x")


def test_a_gang_says_whether_its_nodes_are_alike():
    def hardware(**notes: str) -> Hardware:
        return World([pod(annotations=gang_of(1, **notes))]).gang().request.hardware

    assert hardware() is Hardware.PREFER_SAME
    assert hardware(hardware="Any") is Hardware.ANY
    assert hardware(hardware="Same") is Hardware.SAME
    assert (
        "write one of PreferSame, Same, Any" in World([pod(annotations=gang_of(1, hardware="Mixed"))]).problem().words
    )
