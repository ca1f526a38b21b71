"""What cannot be followed is refused in words, and the gang waits: nothing crashes and nothing is loosened."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.builders import dialect_manifests, dialect_wishes
from tests.support.builders.dialect_worlds import LEAF, LEVELS, World, load, pod, request_of
from tests.support.examples import examples

from kgwe.kube.dialects import Gang, Groups, Problem, Size, count_missing, find_membership, gang_request

OWN = "kgwe.nvidia.io/"
GANG = {OWN + "gang": "llama", OWN + "gang-size": "2"}
KUEUE = {"kueue.x-k8s.io/pod-group-name": "llama", "kueue.x-k8s.io/pod-group-total-count": "2"}
PODSET = "kueue.x-k8s.io/podset-"
KAI = "kai.scheduler/"
SEED = "topology.scheduler/"


def problem_of(**fields: Any) -> Problem:
    member = find_membership(pod(**fields), Groups(LEVELS, {}))
    assert member is not None
    assert member.problem is not None, member
    return member.problem


# --- size -----------------------------------------------------------------------------------------------


def test_a_group_that_is_not_there_yet_is_waited_for():
    world = load(dialect_manifests.PLAIN["coscheduling"].split("---")[1])

    problem = world.problem()

    assert problem.waits
    assert problem.words == "PodGroup train/llama of scheduling.x-k8s.io does not exist"
    assert count_missing(world.members) >= 1


def test_a_kind_that_is_not_served_is_said_to_be_missing():
    world = load(dialect_manifests.PLAIN["volcano"].split("---")[1], served=False)

    assert "this cluster does not serve that kind" in world.problem().words


def test_a_group_object_that_makes_no_sense_is_refused():
    world = load(dialect_manifests.PLAIN["kai"].replace("minMember: 8", "minMember: many"))

    assert not world.problem().waits
    assert "cannot be read" in world.problem().words


@pytest.mark.parametrize(
    ("annotations", "words"),
    [
        ({OWN + "gang": "llama"}, "add kgwe.nvidia.io/gang-size"),
        ({OWN + "gang": "true"}, "write the name of the gang"),
        ({**GANG, OWN + "gang-size": "0"}, "at least 1"),
        ({**GANG, OWN + "gang-size": "-2"}, "whole number"),
        ({**GANG, OWN + "gang-size": "1e3"}, "whole number"),
        ({**GANG, OWN + "gang-size": "٤"}, "whole number"),
        ({**GANG, OWN + "gang-size": "9" * 400}, "whole number"),
        ({**GANG, OWN + "gang-min-size": "3"}, "swap them"),
        ({**GANG, OWN + "rank": "first"}, "whole number"),
        ({**KUEUE, "kueue.x-k8s.io/pod-group-total-count": "two"}, "pod-group-total-count is 'two'"),
        ({"kueue.x-k8s.io/pod-group-name": "llama"}, "pod-group-total-count is ''"),
    ],
)
def test_a_size_that_is_no_number_is_refused(annotations: dict[str, str], words: str) -> None:
    assert words in problem_of(annotations=annotations).words


def test_a_label_and_an_annotation_that_differ_are_refused():
    problem = problem_of(labels={OWN + "gang": "a"}, annotations={OWN + "gang": "b"})

    assert problem.words == "kgwe.nvidia.io/gang is 'a' as a label and 'b' as an annotation: remove one of them"


def test_labels_count_as_annotations_do():
    member = find_membership(pod(labels=GANG), Groups(LEVELS, {}))

    assert member is not None
    assert (member.key.name, member.size) == ("llama", Size(2, 2))


def test_pods_that_name_different_sizes_are_refused():
    pods = [pod(f"p{size}", annotations={**GANG, OWN + "gang-size": size}) for size in ("1", "2")]

    assert "do not agree on its size" in World(pods).problem().words


def test_more_pods_than_the_gang_has_wait_for_some_to_go():
    pods = [pod(f"p{number}", annotations=GANG) for number in range(3)]

    problem = World(pods).problem()

    assert problem.waits
    assert problem.words.startswith("3 pods belong to gang train/llama, whose size is 2")


# --- where ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "annotations",
    [
        {**GANG, OWN + "topology-required": "rack"},
        {**GANG, OWN + "topology-preferred": "example.com/rack"},
        {**GANG, OWN + "segment": "2@rack"},
        {**KUEUE, PODSET + "required-topology": "example.com/rack"},
        {**KUEUE, PODSET + "preferred-topology": "example.com/rack"},
        {**KUEUE, PODSET + "slice-required-topology": "example.com/rack", PODSET + "slice-size": "2"},
        {**GANG, KAI + "topology-required-placement": "example.com/rack"},
        {**GANG, KAI + "segment-topology-required-placement": "rack", KAI + "segment-size": "2"},
    ],
)
def test_a_level_that_does_not_exist_is_refused_with_those_that_do(annotations: dict[str, str]) -> None:
    problem = problem_of(annotations=annotations)

    assert not problem.waits
    assert "leaf (fabric.topograph.run/tier-0), spine (fabric.topograph.run/tier-1)" in problem.words
    assert "SchedulerConfig" in problem.words


@pytest.mark.parametrize(
    ("annotations", "words"),
    [
        ({**GANG, OWN + "segment": "2"}, "such as 4@nvlink"),
        ({**GANG, OWN + "segment": "two@leaf"}, "whole number"),
        ({**GANG, OWN + "segment": "0@leaf"}, "at least 1"),
        ({**KUEUE, PODSET + "slice-size": "2"}, "slice-size stands alone"),
        ({**KUEUE, PODSET + "slice-required-topology": LEAF}, "slice-required-topology stands alone"),
        ({**KUEUE, PODSET + "slice-required-topology-constraints": "4"}, "JSON list"),
        (
            {**KUEUE, PODSET + "slice-required-topology-constraints": '[{"a":' + "[" * 5000 + "]" * 5000 + "}]"},
            "JSON list",
        ),
        ({**KUEUE, PODSET + "unconstrained-topology": "maybe"}, '"true" or "false"'),
        ({**GANG, KAI + "segment-topology-required-placement": LEAF}, "segment-size"),
        ({**GANG, SEED + "network-bandwidth": "fast"}, "100Gb"),
        ({**GANG, SEED + "network-bandwidth": "100"}, "100Gb"),
        ({**GANG, SEED + "placement-strategy": "chaos"}, "consolidated, distributed, balanced"),
        ({**GANG, SEED + "latency-sensitive": "very"}, '"true" or "false"'),
        ({**GANG, SEED + "gpu-count": "all"}, "whole number"),
    ],
)
def test_a_wish_that_makes_no_sense_is_refused(annotations: dict[str, str], words: str) -> None:
    assert words in problem_of(annotations=annotations).words


def test_dialects_that_contradict_each_other_are_refused():
    problem = problem_of(
        labels={"kueue.x-k8s.io/pod-group-name": "llama"},
        annotations={
            **KUEUE,
            PODSET + "preferred-topology": LEAF,
            KAI + "topology-preferred-placement": "fabric.topograph.run/tier-1",
        },
    )

    assert problem.words.startswith(
        "Kueue's annotations and KAI's annotations want different things (preferred: leaf and spine)"
    )


def test_pods_that_require_different_levels_are_refused():
    pods = [pod(f"p{level}", annotations={**GANG, OWN + "topology-required": level}) for level in ("leaf", "spine")]

    assert World(pods).problem().words == ("pods of gang train/llama do not agree on its required level: leaf, spine")


def test_segments_that_do_not_divide_the_gang_are_refused():
    pods = [pod(f"p{number}", annotations={**GANG, OWN + "segment": "4@leaf"}) for number in range(2)]

    assert "make the numbers multiples of each other" in World(pods).problem().words


# --- groups ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dialect", "old", "new", "words"),
    [
        ("volcano", "highestTierAllowed: 2", "highestTierAllowed: 7", "of this cluster are 0 node, 1 leaf, 2 spine"),
        ("volcano", "highestTierAllowed: 2", "highestTierAllowed: -1", "the tiers of this cluster"),
        ("volcano", "hard, highestTierAllowed: 2", "hard", "names no tier"),
        ("volcano", "{mode: hard, highestTierAllowed: 2}", "{highestTierName: pod}", "names 'pod'"),
        ("volcano", "mode: hard, highestTierAllowed: 2", "mode: firm", "write hard or soft"),
        ("volcano", "subGroupSize: 4", "subGroupSize: 3", "subgroup 0 of role worker has 4 equal pods, not 3"),
        ("volcano", "subGroupSize: 4", "subGroupSize: -4", "whole number"),
        ("kai", "minSubGroup: 2", "minSubGroup: 1", "KGWE starts all of them or none"),
        ("kai", "name: worker-1,", "name: other,", "is of subgroup 'worker-1'"),
        ("kai", "parent: worker,", "parent: nobody,", "a parent is one of them"),
        ("kai", "name: worker-1, parent: worker,", "name: worker-1, parent: worker-1,", "that hold pods"),
        ("jobset with Kueue's annotation", "{name: workers,", "{name: others,", "has no replicatedJob 'workers'"),
    ],
)  # fmt: skip
def test_a_group_that_cannot_be_followed_is_refused(dialect: str, old: str, new: str, words: str) -> None:
    text = dialect_wishes.SEGMENTED[dialect]
    assert old in text

    assert words in load(text.replace(old, new)).problem().words


def test_groups_of_groups_are_refused():
    text = dialect_manifests.PLAIN["kubernetes"].replace(
        "{schedulingPolicy", "{parentCompositePodGroupName: all, schedulingPolicy"
    )

    assert "does not read groups of groups" in load(text).problem().words


def test_a_constraint_of_some_subgroups_is_refused():
    text = """
apiVersion: scheduling.run.ai/v2alpha2
kind: PodGroup
metadata: {name: llama, namespace: train}
spec:
  subGroups:
  - {name: both, topologyConstraint: {requiredTopologyLevel: spine}}
  - {name: a, parent: both, minMember: 1}
  - {name: b, parent: both, minMember: 1}
  - {name: c, minMember: 1}
---
kind: Pod
count: 1
metadata: {name: p, namespace: train, annotations: {pod-group-name: llama}, labels: {kai.scheduler/subgroup-name: a}}
"""
    assert "subgroup both wants its 2 subgroups in one spine" in load(text).problem().words


# --- whatever is written --------------------------------------------------------------------------------

KEYS = sorted(
    {
        *GANG,
        *KUEUE,
        OWN + "gang-min-size",
        OWN + "gang-role",
        OWN + "rank",
        OWN + "topology-required",
        OWN + "topology-preferred",
        OWN + "segment",
        PODSET + "required-topology",
        PODSET + "slice-required-topology",
        PODSET + "slice-size",
        PODSET + "slice-required-topology-constraints",
        PODSET + "unconstrained-topology",
        KAI + "topology-required-placement",
        KAI + "segment-size",
        KAI + "segment-topology-required-placement",
        KAI + "subgroup-name",
        SEED + "network-bandwidth",
        SEED + "placement-strategy",
        SEED + "latency-sensitive",
        "scheduling.x-k8s.io/pod-group",
        "scheduling.k8s.io/group-name",
        "pod-group-name",
        "jobset.sigs.k8s.io/jobset-name",
        "jobset.sigs.k8s.io/replicatedjob-name",
        "jobset.sigs.k8s.io/job-index",
        "alpha.jobset.sigs.k8s.io/exclusive-topology",
        "leaderworkerset.sigs.k8s.io/name",
        "leaderworkerset.sigs.k8s.io/group-index",
        "leaderworkerset.sigs.k8s.io/worker-index",
        "leaderworkerset.sigs.k8s.io/size",
        "leaderworkerset.sigs.k8s.io/subgroup-size",
        "leaderworkerset.sigs.k8s.io/subgroup-exclusive-topology",
        "training.kubeflow.org/job-name",
        "batch.kubernetes.io/job-completion-index",
    }
)
WORDS = st.sampled_from(["llama", "workers", "1", "2", "4", "0", "-1", "true", "leaf", LEAF, "2@leaf", "@", "worker-0"])
SAID = st.dictionaries(st.sampled_from(KEYS), WORDS | st.text(max_size=6), max_size=6)
EVERYTHING = load("\n---\n".join(text.split("---")[0] for text in dialect_wishes.SEGMENTED.values())).groups


@examples(80)
@given(st.lists(st.tuples(SAID, SAID), min_size=1, max_size=3))
def test_whatever_is_written_nothing_crashes(said: list[tuple[dict[str, str], dict[str, str]]]) -> None:
    pods = [pod(f"p-{number}", labels=labels, annotations=notes) for number, (labels, notes) in enumerate(said)]
    found = [(each, find_membership(each, EVERYTHING)) for each in pods]
    by_key: dict[Any, list[Any]] = {}
    for each, member in found:
        if member is not None:
            by_key.setdefault(member.key, []).append((each, member))
    for members in by_key.values():
        answer = gang_request(members, request_of)
        if isinstance(answer, Gang):
            assert count_missing(members) == 0
            assert len(answer.order) == answer.request.replicas


@examples(40)
@given(st.sampled_from(["topology-required", "segment"]), st.text(min_size=1, max_size=8))
def test_a_demand_is_held_or_refused_never_dropped(word: str, text: str) -> None:
    pods = [pod(f"p{number}", annotations={**GANG, OWN + word: text}) for number in range(2)]

    answer = gang_request(World(pods).members, request_of)

    assert isinstance(answer, Problem) or answer.request.required or answer.request.roles[0].segments
