"""LeaderWorkerSet: groups, leaders that come first, and subgroups."""

from __future__ import annotations

import pytest
from tests.support.builders.dialect_worlds import LEAF, SPINE, load
from tests.support.builders.racks import cards

from kgwe.kube.dialects import Key, count_missing
from kgwe.placement.planning.gang_planner import Role, Segment

LWS = """
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
metadata: {name: serve, namespace: train, uid: l}
spec:
  replicas: 2
  startupPolicy: LeaderCreated
  leaderWorkerTemplate:
    size: 4
    workerTemplate: {spec: {containers: [{resources: {limits: {nvidia.com/gpu: "8"}}}]}}
---
kind: Pod
count: 1
metadata:
  name: serve-1
  namespace: train
  labels: {leaderworkerset.sigs.k8s.io/name: serve, leaderworkerset.sigs.k8s.io/group-index: "1",
           leaderworkerset.sigs.k8s.io/worker-index: "0"}
  annotations: {leaderworkerset.sigs.k8s.io/size: "4"}
spec: {containers: [{resources: {limits: {nvidia.com/gpu: "1"}}}]}
"""
WORKERS = """
---
kind: Pod
count: 3
metadata:
  name: serve-1-$n
  namespace: train
  labels: {leaderworkerset.sigs.k8s.io/name: serve, leaderworkerset.sigs.k8s.io/group-index: "1",
           leaderworkerset.sigs.k8s.io/worker-index: "$n"}
  annotations: {leaderworkerset.sigs.k8s.io/size: "4"}
"""
NUMBERED = "".join(WORKERS.replace("$n", str(number)).replace("count: 3", "count: 1") for number in (1, 2, 3))


def noted(text: str, *notes: str) -> str:
    said = ", ".join(('leaderworkerset.sigs.k8s.io/size: "4"', *notes))
    return text.replace('leaderworkerset.sigs.k8s.io/size: "4"', said)


def test_every_group_of_a_leader_worker_set_is_a_gang_with_the_leader_first():
    gang = load(LWS + NUMBERED).gang()

    assert gang.key == Key("train", "LeaderWorkerSet.leaderworkerset.x-k8s.io", "serve-1")
    assert gang.request.roles == (Role("leader", cards(1), 1), Role("worker", cards(8), 3))
    assert [pod.metadata.name for pod in gang.order if pod] == ["serve-1", "serve-1-1", "serve-1-2", "serve-1-3"]


def test_a_leader_alone_waits_for_workers_that_come_by_themselves():
    assert count_missing(load(LWS).members) == 3


@pytest.mark.parametrize(
    "text",
    [
        noted(LWS, f"leaderworkerset.sigs.k8s.io/exclusive-topology: {LEAF}"),
        LWS.replace("LeaderCreated", "LeaderReady"),
    ],
)
def test_workers_that_come_after_their_leader_are_planned_with_it(text: str) -> None:
    world = load(text)
    assert count_missing(world.members) == 0

    gang = world.gang()

    assert gang.request.roles == (Role("leader", cards(1), 1), Role("worker", cards(8), 3))
    assert gang.order == (world.pods[0], None, None, None)
    assert [gang.rank_of(member) for member in load(LWS + NUMBERED).memberships] == [None, 1, 2, 3]


def test_an_exclusive_group_is_inside_one_domain():
    gang = load(noted(LWS + NUMBERED, f"leaderworkerset.sigs.k8s.io/exclusive-topology: {SPINE}")).gang()

    assert (gang.request.required, gang.exclusive) == ("spine", "spine")


SUBGROUPS = (
    f"leaderworkerset.sigs.k8s.io/subgroup-exclusive-topology: {LEAF}",
    'leaderworkerset.sigs.k8s.io/subgroup-size: "2"',
)


def test_subgroups_count_the_leader_when_it_is_like_the_workers():
    text = noted(LWS + NUMBERED, *SUBGROUPS).replace('nvidia.com/gpu: "1"', 'nvidia.com/gpu: "8"')

    assert load(text).gang().request.roles == (Role("worker", cards(8), 4, segments=(Segment(2, "leaf"),)),)


def test_subgroups_across_unequal_pods_are_refused():
    assert "multiples" in load(noted(LWS + NUMBERED, *SUBGROUPS)).problem().words


def test_subgroups_without_the_leader_are_the_workers():
    notes = [each.replace('"2"', '"3"') for each in SUBGROUPS]
    text = noted(LWS + NUMBERED, *notes)
    assert "first subgroup is larger" in load(text).problem().words

    excluded = noted(LWS, *notes, "leaderworkerset.sigs.k8s.io/subgroup-policy-type: LeaderExcluded")
    gang = load(excluded + noted(NUMBERED, *notes)).gang()

    assert gang.request.roles == (
        Role("leader", cards(1), 1),
        Role("worker", cards(8), 3, segments=(Segment(3, "leaf"),)),
    )
