"""What is planned for work that a failure hit, and what is reserved, stored and asked for meanwhile."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from tests.support.builders.objects import (
    TWO,
    UID,
    added,
    changed,
    free,
    job,
    make,
    node,
    pod,
    pod_spec,
    removed,
    workload,
)
from tests.support.fakes.recording_client import RecordingClient
from tests.support.patience import until

from kgwe import errors
from kgwe.apps.scheduler.disruption.evictor import Evictor
from kgwe.apps.scheduler.disruption.recovery import RecoveryController
from kgwe.apps.scheduler.metrics import Metrics
from kgwe.apps.scheduler.planning.planner import Planner
from kgwe.apps.scheduler.planning_errors import PlanningErrors
from kgwe.apps.scheduler.settings import Settings
from kgwe.apps.scheduler.workloads import workload_status as phases
from kgwe.cluster.registry.announcer import ClusterListener
from kgwe.cluster.state.cluster_state import ClusterState
from kgwe.cluster.workload import metadata_keys, placement_annotations, plan_details
from kgwe.cluster.workload.owner import Replacement
from kgwe.cluster.workload.workload import Details
from kgwe.kube.api import resources
from kgwe.kube.api.core import Condition
from kgwe.placement.planning.plan import Plan


class Events(list[tuple[str, str]]):
    def record(self, event):
        self.append((event.reason, event.note))


def down(name):
    made = node(name)
    status = msgspec.structs.replace(made.status, conditions=(Condition("Ready", "Unknown"),))
    return msgspec.structs.replace(made, status=status)


def with_policy(policy):
    made = workload(count=8)
    return msgspec.structs.replace(made, spec=msgspec.structs.replace(made.spec, recoveryPolicy=policy))


@pytest.fixture
def state():
    made = ClusterState()
    for name in ("n1", "n2", "n3"):
        made.on_node(added(node(name)))
    made.on_kgwe(added(workload(count=8)))
    made.on_job(added(job(seats=TWO)))
    for index, seat in enumerate(TWO):
        made.on_pod(added(pod(f"p{index}", at=seat.node, index=index)))
    return made


@pytest.fixture
async def bed(state):
    means: Any = SimpleNamespace(
        client=RecordingClient(stored=job(seats=TWO)),
        state=state,
        gangs=state.gangs,
        events=Events(),
        metrics=Metrics(),
        settings=Settings(recovery_gather_seconds=0.0),
    )

    means.faults = PlanningErrors(means.metrics)

    def decided(lost, decision):
        if isinstance(decision, Plan):
            recovery.handle_found_place(lost)

    planner = Planner(state, {}, random.Random(1), means.metrics, faults=means.faults, on_decided=decided)
    # Not started: what would be taken away is only noted.
    evictions = Evictor(means)
    troubled: list[str] = []
    lost_nodes: list[set[str]] = []
    recovery = RecoveryController(
        means, planner, evictions, seat=lambda *_: None, on_trouble=troubled.append, on_lost=lost_nodes.append
    )
    state.announcer.subscribe(ClusterListener(health_changed=recovery.handle_node_health))
    state.announcer.subscribe(ClusterListener(capacity_freed=planner.plan_soon))
    yield SimpleNamespace(
        client=means.client,
        state=state,
        planner=planner,
        recovery=recovery,
        evictions=evictions,
        events=means.events,
        troubled=troubled,
        lost=lost_nodes,
    )
    await recovery.stop()
    planner.close()


def stored_annotations(bed):
    """The annotations of every patch."""
    return [body["metadata"]["annotations"] for _, body in bed.client.patches]


def lose(state, name):
    state.on_node(changed(node(name), down(name)))


async def test_the_new_plan_is_reserved_at_once_and_stored_before_the_old_pod_is_taken_away(bed):
    lose(bed.state, "n2")
    await until(lambda: stored_annotations(bed))
    (stored,) = stored_annotations(bed)
    seats = placement_annotations.decode(stored[placement_annotations.PLAN_ANNOTATION])
    assert [seat.node for seat in seats] == ["n1", seats[1].node]
    assert seats[1].node in ("n1", "n3")
    assert stored[metadata_keys.NOTE_ANNOTATION].startswith("Node n2 is lost. Recovery: pod 1 moves to ")
    await until(lambda: "uid-p1" in bed.evictions)
    assert "uid-p0" not in bed.evictions
    assert bed.state.runs[UID].seats == seats


def with_truth(state, sick, cards):
    """p0 was planned on the upper four cards of n1, and its kubelet gave it `cards`."""
    gpus = [
        {
            "uuid": f"GPU-{card}",
            "index": card,
            "model": "H100",
            "memoryMiB": 80_000,
            "health": {"state": "Unhealthy" if card == sick else "Healthy"},
        }
        for card in range(8)
    ]
    held = [{"pod": "team/p0", "uid": "uid-p0", "cards": cards}]
    body = {"metadata": {"name": "n1"}, "status": {"gpus": gpus, "held": held}}
    old = pod("p0", at="n1", index=0)
    state.on_pod(changed(old, pod("p0", at="n1", index=0, notes={placement_annotations.CARDS_ANNOTATION: "f0"})))
    state.on_gpunode(added(make(resources.GPU_NODE.type, body)))


async def test_a_card_that_fails_hits_the_pod_that_really_has_it(bed):
    with_truth(bed.state, sick=1, cards="f")
    await until(lambda: stored_annotations(bed))
    assert stored_annotations(bed)[0][metadata_keys.NOTE_ANNOTATION].startswith("GPU 1 on n1 failed")
    await until(lambda: "uid-p0" in bed.evictions)


async def test_work_with_a_dead_card_and_nowhere_to_go_is_in_trouble_until_the_card_is_back(bed):
    for name, gpus in (("n1", 4), ("n2", 4), ("n3", 8)):
        meta = {"name": f"h-{name}", "namespace": "others", "uid": f"uid-h-{name}"}
        body = {"metadata": meta, "spec": pod_spec(gpus, name), "status": {"phase": "Running"}}
        bed.state.on_pod(added(make(resources.POD.type, body)))
    heard, losses = bed.troubled, bed.lost
    with_truth(bed.state, sick=1, cards="f")
    await until(lambda: bed.recovery.trouble_of(UID))
    reason, words = bed.recovery.trouble_of(UID)
    assert reason == "NoCapacity"
    assert words.startswith("GPU 1 on n1 failed. 1 pod must move, but no free GPUs")
    assert heard == [UID]
    assert losses == [{"n1"}], "counted once"
    with_truth(bed.state, sick=-1, cards="f")
    await until(lambda: bed.recovery.trouble_of(UID) is None)
    assert heard == [UID, UID]


async def test_a_card_of_its_plan_that_it_never_got_does_not(bed):
    with_truth(bed.state, sick=5, cards="f")
    await asyncio.sleep(0.1)
    assert (stored_annotations(bed), bed.events) == ([], [])


async def test_a_plan_that_cannot_be_stored_is_taken_back_and_made_again(bed):
    bed.client.failures = [errors.Transient("away")]
    lose(bed.state, "n2")
    await until(lambda: not bed.client.failures)
    assert bed.state.runs[UID].seats == TWO
    assert "uid-p1" not in bed.evictions
    await until(lambda: stored_annotations(bed))
    assert bed.state.runs[UID].seats != TWO


async def test_policy_none_is_left_alone(bed):
    bed.state.on_kgwe(changed(workload(count=8), with_policy("None")))
    lose(bed.state, "n2")
    await until(lambda: bed.events)
    assert bed.events == [("LeftAlone", "Node n2 is lost. recoveryPolicy is None, so nothing is moved")]
    assert stored_annotations(bed) == []


async def test_restart_gang_starts_a_new_round(bed):
    bed.state.on_kgwe(changed(workload(count=8), with_policy("RestartGang")))
    lose(bed.state, "n2")
    await until(lambda: stored_annotations(bed))
    assert stored_annotations(bed)[0][metadata_keys.ROUND_ANNOTATION] == "1"
    new = job(seats=bed.state.runs[UID].seats)
    notes = new.metadata.annotations | stored_annotations(bed)[0]
    new = msgspec.structs.replace(new, metadata=msgspec.structs.replace(new.metadata, annotations=notes))
    bed.state.on_job(changed(job(seats=TWO), new))
    bed.recovery.handle_change(UID)
    assert "uid-p0" in bed.evictions, "the healthy one starts again too"


async def test_without_room_nothing_moves_and_what_was_lost_is_asked_for_before_all_others(bed):
    full = [pod(f"full{name}", "", at=name, gpus=gpus) for name, gpus in (("n1", 4), ("n3", 8))]
    for each in full:
        bed.state.on_pod(added(each))
    lose(bed.state, "n2")
    lost = Replacement(UID).text
    await until(lambda: bed.planner.waiting_ask(lost))
    asked = bed.planner.waiting_ask(lost)
    assert (asked.first_claim, asked.pods) == (True, 1)
    assert [member.node for member in asked.partial.members] == ["n1", ""]
    assert stored_annotations(bed) == []
    assert bed.events[0][0] == "Recovering"

    bed.state.on_pod(removed(full[1]))
    await until(lambda: stored_annotations(bed))
    assert bed.planner.waiting_ask(lost) is None
    assert bed.state.runs[UID].seats[1].node == "n3"


async def test_a_node_that_comes_back_ends_the_waiting(bed):
    for name, gpus in (("n1", 4), ("n3", 8)):
        bed.state.on_pod(added(pod(f"full{name}", "", at=name, gpus=gpus)))
    lose(bed.state, "n2")
    await until(lambda: bed.planner.waiting_ask(Replacement(UID).text))
    bed.state.on_node(changed(down("n2"), node("n2")))
    await until(lambda: bed.planner.waiting_ask(Replacement(UID).text) is None)
    assert stored_annotations(bed) == []
    assert free(bed.state) == {"n1": 0, "n2": 4, "n3": 0}


OLD = Details(91, (("alignment", 30.0),), 450.0, "leaf/a", "2 pods on 2 nodes in leaf a; ring 450.0 GB/s")


def in_leaf(leaf, name):
    made = node(name)
    labels = {"fabric.topograph.run/tier-0": leaf, "fabric.topograph.run/tier-1": "s"}
    return msgspec.structs.replace(made, metadata=msgspec.structs.replace(made.metadata, labels=labels))


def with_old_details():
    made = job(seats=TWO)
    notes = made.metadata.annotations | {metadata_keys.DETAILS_ANNOTATION: plan_details.encode_details(OLD)}
    return msgspec.structs.replace(made, metadata=msgspec.structs.replace(made.metadata, annotations=notes))


async def test_a_plan_that_recovery_changed_is_stored_with_its_own_domain_and_bandwidth_and_without_the_old_score(bed):
    for leaf, name in (("a", "n1"), ("a", "n2"), ("b", "n3")):
        bed.state.on_node(changed(node(name), in_leaf(leaf, name)))
    bed.state.on_job(changed(job(seats=TWO), with_old_details()))
    assert bed.state.runs[UID].details == OLD
    bed.state.on_pod(added(pod("full", "", at="n1", gpus=4)))
    lose(bed.state, "n2")
    await until(lambda: stored_annotations(bed))
    (stored,) = stored_annotations(bed)
    assert [seat.node for seat in placement_annotations.decode(stored[placement_annotations.PLAN_ANNOTATION])] == [
        "n1",
        "n3",
    ]
    new = plan_details.decode_details(stored)
    assert new is not None
    assert (new.domain, new.score, new.parts) == ("spine/s", None, ())
    assert new.gb_per_s != OLD.gb_per_s
    assert new.reasons.startswith("2 pods on 2 nodes in spine s; ring ")
    assert "changed by recovery: Node n2 is lost. Recovery: pod 1 moves to n3" in new.reasons
    run = bed.state.runs[UID]
    assert run.details == new, "the status that is written meanwhile says it too"
    placed = phases.Placement(run, bed.state.find_workload(UID), bed.state.reader.cards)
    assert placed.placed.details == new


async def test_what_is_not_known_of_a_changed_plan_is_left_out():
    found = plan_details.moved_details(None, "node n2 is lost")
    assert (found.domain, found.gb_per_s, found.score) == ("", None, None)
    assert found.reasons == "domain and bandwidth are not known\nchanged by recovery: node n2 is lost"


async def test_all_is_told_and_counted_when_it_runs_again(bed):
    lose(bed.state, "n2")
    await until(lambda: "uid-p1" in bed.evictions)
    place = bed.state.runs[UID].seats[1].node
    bed.state.on_pod(removed(pod("p1", at="n2", index=1)))
    bed.recovery.handle_change(UID)
    assert bed.recovery.trouble_of(UID) is not None
    bed.state.on_pod(added(pod("again", at=place, index=1)))
    bed.recovery.handle_change(UID)
    assert bed.recovery.trouble_of(UID) is None
    assert [reason for reason, _ in bed.events] == ["Recovering", "Recovered"]
