"""What counts for whom: only what the API's own ownership says."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest
from tests.support.builders.objects import (
    NAME,
    ONE,
    TWO,
    UID,
    added,
    changed,
    deployment,
    free,
    job,
    leaving,
    make,
    node,
    pod,
    removed,
    replica,
    workload,
)

from kgwe.cluster.registry.announcer import ClusterListener
from kgwe.cluster.state.cluster_state import ClusterState
from kgwe.cluster.workload import metadata_keys, placement_annotations
from kgwe.kube.api import resources
from kgwe.model.units import amounts
from kgwe.placement.planning.plan import Seat


@pytest.fixture
def state():
    made = ClusterState()
    made.on_node(added(node("n1")))
    made.on_node(added(node("n2")))
    return made


def listen(state):
    heard: list[Any] = []
    state.announcer.subscribe(
        ClusterListener(
            workload_changed=lambda _: None,
            workload_touched=lambda _: None,
            capacity_freed=lambda: heard.append("room"),
            workload_removed=heard.append,
            pod_unseated=lambda owner, pod: heard.append((owner, pod.metadata.name)),
        )
    )
    return heard


def held_by(state, key):
    """Node and cards of a holder."""
    holding = state.ledger.fleet.holding(key)
    return holding and (holding.node, holding.gpus)


class TestOnePod:
    def test_a_job_of_ours_reserves_until_its_pod_is_bound_and_again_when_it_is_evicted(self, state):
        state.on_kgwe(added(workload()))
        state.on_job(added(job()))
        assert free(state) == {"n1": 4, "n2": 8}
        assert held_by(state, f"{UID}/0") == ("n1", 0b1111)
        state.on_pod(added(pod()))
        assert free(state) == {"n1": 4, "n2": 8}
        assert held_by(state, "uid-p") == ("n1", 0b1111)
        state.on_pod(removed(pod()))
        assert held_by(state, f"{UID}/0") == ("n1", 0b1111)
        state.on_job(removed(job()))
        assert free(state) == {"n1": 8, "n2": 8}

    @pytest.mark.parametrize("order", list(itertools.permutations(["workload", "job", "pod"])))
    def test_the_order_in_which_watches_deliver_does_not_matter(self, state, order):
        steps = {
            "workload": lambda: state.on_kgwe(added(workload())),
            "job": lambda: state.on_job(added(job())),
            "pod": lambda: state.on_pod(added(pod())),
        }
        for step in order:
            steps[step]()
        assert free(state) == {"n1": 4, "n2": 8}
        assert held_by(state, "uid-p") == ("n1", 0b1111)
        assert list(state.pods_of(state.runs[UID])) == ["uid-p"]

    def test_a_pod_of_the_job_before_does_not_stand_in_for_the_new_one(self, state):
        state.on_kgwe(added(workload()))
        state.on_job(added(job("job-1")))
        state.on_pod(added(pod("old", "job-1")))
        state.on_job(removed(job("job-1")))
        assert free(state)["n1"] == 4, "it still runs down"
        state.on_job(added(job("job-2", seats=(Seat("n1", 0b11110000),))))
        assert free(state)["n1"] == 0, "and the new Job's pods are still to come"
        state.on_pod(removed(pod("old", "job-1")))
        assert free(state)["n1"] == 4

    def test_a_finished_job_holds_nothing(self, state):
        state.on_kgwe(added(workload()))
        state.on_job(added(job()))
        done = job(conditions=[{"type": "Complete", "status": "True"}])
        state.on_job(changed(job(), done))
        assert free(state)["n1"] == 8

    def test_a_suspended_job_holds_nothing_until_it_goes_on(self, state):
        state.on_kgwe(added(workload()))
        state.on_job(added(job(suspend=True)))
        assert free(state)["n1"] == 8
        state.on_job(changed(job(suspend=True), job()))
        assert free(state)["n1"] == 4


def release(found: Any) -> Any:
    """The pod after its controller released it: without an owner."""
    meta = msgspec.structs.replace(found.metadata, ownerReferences=())
    return msgspec.structs.replace(found, metadata=meta)


class TestReleasedByItsController:
    def test_a_released_pod_that_is_deleted_holds_nothing_after_the_end_of_the_workload(self, state):
        state.on_kgwe(added(workload()))
        state.on_job(added(job()))
        state.on_pod(added(pod()))
        state.on_pod(changed(pod(), release(pod())))
        assert list(state.pods_of(state.runs[UID])) == []
        state.on_pod(removed(release(pod())))
        state.on_job(removed(job()))
        state.on_kgwe(removed(workload()))
        assert free(state) == {"n1": 8, "n2": 8}

    def test_a_released_pod_that_ended_holds_nothing_after_the_end_of_the_workload(self, state):
        state.on_kgwe(added(workload()))
        state.on_job(added(job()))
        state.on_pod(added(pod()))
        released = release(pod())
        state.on_pod(changed(pod(), released))
        ended = msgspec.structs.replace(released, status=msgspec.structs.replace(released.status, phase="Succeeded"))
        state.on_pod(changed(released, ended))
        state.on_job(removed(job()))
        assert free(state) == {"n1": 8, "n2": 8}

    def test_a_released_pod_keeps_its_gpus_and_its_seat_waits_for_the_next_pod(self, state):
        state.on_kgwe(added(workload()))
        state.on_job(added(job()))
        state.on_pod(added(pod()))
        state.on_pod(changed(pod(), release(pod())))
        assert free(state) == {"n1": 0, "n2": 8}
        state.on_pod(removed(release(pod())))
        state.on_pod(added(pod("next")))
        assert free(state) == {"n1": 4, "n2": 8}
        assert held_by(state, "uid-next") == ("n1", 0b1111)

    def test_the_next_pod_is_announced_when_the_seat_is_free(self, state):
        state.on_kgwe(added(workload()))
        state.on_job(added(job()))
        state.on_pod(added(pod()))
        state.on_pod(added(pod("next", at="", gated=True)))
        heard = listen(state)
        state.on_pod(changed(pod(), release(pod())))
        assert (UID, "next") in heard


class TestForgery:
    @pytest.mark.parametrize(
        "forged",
        [
            pytest.param(job("forged", owner=""), id="labelled, but owned by nobody"),
            pytest.param(job("forged", owner="somebody-else"), id="owned by another"),
            pytest.param(job("forged", namespace="other"), id="in another namespace"),
            pytest.param(job("forged", name="other"), id="under another name"),
        ],
    )
    def test_a_label_does_not_make_a_job_ours(self, state, forged):
        state.on_kgwe(added(workload()))
        state.on_job(added(forged))
        assert state.runs == {}
        assert free(state)["n1"] == 8
        state.on_job(removed(forged))
        state.on_job(added(job()))
        assert state.runs[UID].meta.uid == "job-1"

    def test_of_two_runs_that_both_could_be_it_the_first_counts(self, state):
        state.on_kgwe(added(workload()))
        state.on_job(added(job()))
        meta = msgspec.structs.replace(
            deployment(seats=(Seat("n2", 1),)).metadata, creationTimestamp="2026-02-02T00:00:00Z"
        )
        state.on_deployment(added(msgspec.structs.replace(deployment(), metadata=meta)))
        assert state.runs[UID].meta.uid == "job-1"
        assert free(state) == {"n1": 4, "n2": 8}
        state.on_job(removed(job()))
        assert state.runs[UID].meta.uid == "dep-1", "and when it is gone the other"

    def test_a_run_on_its_way_out_makes_room_for_its_successor(self, state):
        state.on_kgwe(added(workload()))
        state.on_job(added(leaving(job())))
        state.on_deployment(added(deployment(seats=(Seat("n2", 1),))))
        assert state.runs[UID].meta.uid == "dep-1"

    def test_a_labelled_pod_of_somebody_else_counts_for_itself(self, state):
        state.on_kgwe(added(workload()))
        state.on_job(added(job()))
        state.on_pod(added(pod("stranger", job_uid="not-ours", namespace="other", gpus=2)))
        assert free(state)["n1"] == 2
        assert state.pods_of(state.runs[UID]) == {}

    @pytest.mark.parametrize(
        "stranger",
        [
            pytest.param(
                pod("x", "not-ours", at="n2", notes={placement_annotations.SEAT_ANNOTATION: f"{UID}/0"}),
                id="by annotation",
            ),
            pytest.param(replica("x", at="n2", namespace="other", seat=f"{UID}/0"), id="labels, from elsewhere"),
            pytest.param(replica("x", at="n2", set_name="mine-1", seat=f"{UID}/0"), id="of another ReplicaSet"),
            pytest.param(replica("x", at="n2", run="", seat=f"{UID}/0"), id="without the run's label"),
        ],
    )
    def test_nobody_else_takes_a_workloads_seat(self, state, stranger):
        state.on_kgwe(added(workload(count=8)))
        state.on_deployment(added(deployment()))
        state.on_pod(added(stranger))
        assert free(state) == {"n1": 4, "n2": 0}, "its seats are as they were, and the stranger counts too"

    def test_a_label_that_is_edited_away_takes_the_run_with_it(self, state):
        state.on_kgwe(added(workload()))
        state.on_job(added(job()))
        meta = msgspec.structs.replace(job().metadata, labels={})
        bare = msgspec.structs.replace(job(), metadata=meta)
        state.on_job(changed(job(), bare))
        assert state.runs == {}
        assert free(state)["n1"] == 8
        state.on_job(removed(bare))
        assert state.run_registry._claimants == {}

    def test_a_label_that_is_edited_to_name_another_leaves_nothing_behind(self, state):
        state.on_kgwe(added(workload()))
        state.on_job(added(job()))
        meta = msgspec.structs.replace(job().metadata, labels={metadata_keys.UID_LABEL: "other"})
        state.on_job(changed(job(), msgspec.structs.replace(job(), metadata=meta)))
        assert state.runs == {}
        assert free(state)["n1"] == 8

    def test_no_plan_holds_more_than_the_workload_asks_for(self, state):
        state.on_kgwe(added(workload(count=4)))
        state.on_job(added(job(seats=tuple(Seat("n2") for _ in range(60)), gpus=4)))
        assert free(state) == {"n1": 8, "n2": 8}
        assert state.runs[UID].seats == ()

    def test_a_single_pod_is_where_its_template_pins_it_whatever_the_annotation_says(self, state):
        moved = job()
        moved.metadata.annotations[placement_annotations.PLAN_ANNOTATION] = "n2=f"
        state.on_kgwe(added(workload()))
        state.on_job(added(moved))
        assert free(state) == {"n1": 4, "n2": 8}

    def test_a_gangs_plan_that_is_lost_is_taken_from_the_status(self, state):
        placements = [{"node": "n1", "pods": 1}, {"node": "n2", "pods": 1}]
        bare = job(seats=(), pods=2)
        state.on_kgwe(added(workload(count=8, placements=placements, phase="Running")))
        state.on_job(added(bare))
        assert [seat.node for seat in state.runs[UID].seats] == ["n1", "n2"]
        assert free(state) == {"n1": 4, "n2": 4}


class TestGangs:
    def events(self):
        return [
            added(workload(count=8)),
            added(job(seats=TWO)),
            added(pod("p0", at="n1", index=0)),
            added(pod("p1", at="n2", index=1)),
        ]

    def tell(self, state, change):
        kinds = {"GPUWorkload": state.on_kgwe, "Job": state.on_job, "Pod": state.on_pod}
        kinds[type(change.new or change.old).__name__](change)

    @pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
    def test_the_order_in_which_watches_deliver_does_not_matter(self, state, order):
        events = self.events()
        for number in order:
            self.tell(state, events[number])
        assert held_by(state, "uid-p0") == ("n1", 0b11110000)
        assert held_by(state, "uid-p1") == ("n2", 0b1111)
        assert free(state) == {"n1": 4, "n2": 4}
        for number in order:
            change = events[number]
            self.tell(state, removed(change.new))
        assert free(state) == {"n1": 8, "n2": 8}
        assert not any(state.ledger.owners())

    def test_seats_of_pods_that_have_succeeded_are_free(self, state):
        for event in self.events()[:2]:
            self.tell(state, event)
        state.on_job(changed(job(seats=TWO), job(seats=TWO, completedIndexes="0")))
        assert free(state) == {"n1": 8, "n2": 4}

    def test_pods_behind_the_gate_are_announced_whichever_comes_first(self, state):
        heard = listen(state)
        waiting = pod("p0", at="", index=0, gated=True, phase="Pending")
        state.on_pod(added(waiting))
        assert heard == []
        state.on_kgwe(added(workload(count=8)))
        state.on_job(added(job(seats=TWO)))
        assert (UID, "p0") in heard
        heard.clear()
        state.on_pod(changed(waiting, leaving(waiting)))
        assert heard == [], "nobody is seated on his way out"

    def test_a_plan_that_changes_moves_the_seats_that_are_free_and_tells_who_waits(self, state):
        heard = listen(state)
        for event in self.events()[:3]:
            self.tell(state, event)
        state.on_pod(added(pod("p1", at="", index=1, gated=True, phase="Pending")))
        heard.clear()
        again = (TWO[0], Seat("n1", 0b1111))
        state.on_job(changed(job(seats=TWO), job(seats=again)))
        assert free(state) == {"n1": 0, "n2": 8}
        assert held_by(state, "uid-p0") == ("n1", 0b11110000)
        assert (UID, "p1") in heard


class TestDeployments:
    @pytest.fixture
    def state(self, state):
        state.on_kgwe(added(workload(count=8)))
        state.on_deployment(added(deployment()))
        return state

    def test_pods_have_the_seats_they_were_given(self, state):
        state.on_pod(added(replica("a", at="n2", seat=f"{UID}/1")))
        assert held_by(state, "uid-a") == ("n2", 0b1111)
        assert held_by(state, f"{UID}/0") == ("n1", 0b11110000)
        assert free(state) == {"n1": 4, "n2": 4}
        assert state.run_registry.taken_seats(UID) == {1}

    def test_a_pod_without_a_seat_counts_for_itself(self, state):
        state.on_pod(added(replica("a", at="n1")))
        assert free(state) == {"n1": 0, "n2": 4}

    def test_the_seat_of_a_dying_pod_is_offered_to_the_next(self, state):
        heard = listen(state)
        old = replica("old", at="n1", seat=f"{UID}/0")
        state.on_pod(added(old))
        state.on_pod(added(replica("new", at="", gated=True, phase="Pending")))
        heard.clear()
        state.on_pod(changed(old, leaving(old)))
        assert heard == [(UID, "new")]
        assert 0 not in state.run_registry.taken_seats(UID)
        assert free(state) == {"n1": 4, "n2": 4}, "counted once, as the dying pod"

    def test_one_bound_to_the_seat_of_a_dying_pod_has_it_when_that_is_gone(self, state):
        old, new = replica("old", at="n1", seat=f"{UID}/0"), replica("new", at="n1", seat=f"{UID}/0")
        state.on_pod(added(leaving(old)))
        state.on_pod(added(new))
        assert free(state)["n1"] == 0, "both are there"
        state.on_pod(removed(leaving(old)))
        assert free(state)["n1"] == 4
        assert state.ledger.pod_in(UID, 0) == "uid-new"

    def test_pods_of_the_deployment_before_hold_none_of_its_seats(self, state):
        state.on_pod(added(replica("old", run="dep-0", at="n1", seat=f"{UID}/0")))
        assert free(state)["n1"] == 0
        assert state.pods_of(state.runs[UID]) == {}


class TestAPodOnItsNode:
    def test_its_status_says_nothing_about_what_it_holds_but_is_known(self, state):
        first, then = pod("p", "not-ours", phase="Pending"), pod("p", "not-ours")
        state.on_pod(added(first))
        state.on_pod(changed(first, then))
        assert free(state)["n1"] == 4
        assert state.pods["uid-p"] is then

    def test_one_that_is_resized_holds_what_it_asks_for_now(self, state):
        state.on_pod(added(pod("p", "not-ours")))
        state.on_pod(changed(pod("p", "not-ours"), pod("p", "not-ours", gpus=2)))
        assert free(state)["n1"] == 6

    def test_one_that_is_given_other_cards_has_them(self, state):
        was, now = (
            pod("p", "not-ours", notes={placement_annotations.CARDS_ANNOTATION: cards}) for cards in ("f", "f0")
        )
        state.on_pod(added(was))
        state.on_pod(changed(was, now))
        assert held_by(state, "uid-p") == ("n1", 0b11110000)

    def test_one_that_is_adopted_takes_the_seat_it_was_made_for(self, state):
        state.on_kgwe(added(workload()))
        state.on_job(added(job()))
        stranger = pod("p", "not-ours")
        state.on_pod(added(stranger))
        assert free(state)["n1"] == 0
        state.on_pod(changed(stranger, pod("p")))
        assert free(state)["n1"] == 4
        assert state.ledger.pod_in(UID, 0) == "uid-p"


class TestNodes:
    def test_a_node_with_odd_resources_is_still_a_node(self, state):
        state.on_node(added(node("odd", **{"kubernetes.io/batch-cpu": "500m", "example.com/x": "1"})))
        assert free(state)["odd"] == 8

    def test_an_unreadable_node_is_left_out_and_nothing_else_breaks(self, state):
        state.on_node(added(node("broken", gpus="half")))
        assert free(state) == {"n1": 8, "n2": 8}

    def test_amounts_beyond_all_counting_are_counted(self, state):
        for number in range(3):
            huge = pod(f"h{number}", "not-ours")
            huge.spec.containers[0].resources.requests["cpu"] = str(2**60)
            state.on_pod(added(huge))
        assert state.fleet.snapshot.cpu_milli[0] < 0
        assert (state.fleet.recount().cpu_milli == state.fleet.snapshot.cpu_milli).all()


class TestWhatARunTells:
    @pytest.fixture
    def heard(self, state):
        heard: list[Any] = []
        state.on_kgwe(added(workload()))
        state.on_job(added(job()))
        state.announcer.subscribe(ClusterListener(workload_touched=heard.append))
        return heard

    def test_pods_it_made_speak_for_themselves(self, state, heard):
        state.on_job(changed(job(), job(active=1, ready=1, startTime="2026-01-01T00:00:00Z")))
        assert heard == []
        assert state.runs[UID].made == 1

    def test_what_nobody_reads_is_not_read(self, state, heard):
        known = state.runs[UID]
        state.on_job(changed(job(), job(ready=1)))
        assert state.runs[UID] is known
        assert heard == []

    def test_pods_it_lost_are_news(self, state, heard):
        state.on_job(changed(job(), job(active=1)))
        state.on_job(changed(job(active=1), job(failed=1)))
        assert len(heard) == 1

    @pytest.mark.parametrize(
        "now",
        [
            job(suspend=True),
            job(conditions=[{"type": "Complete", "status": "True"}]),
            job(conditions=[{"type": "FailureTarget", "status": "True"}]),
            job(completedIndexes="0"),
            job(seats=(Seat("n1", 0b1),)),
            job(owner="another"),
            leaving(job()),
        ],
    )
    def test_all_else_is_news(self, state, heard, now):
        state.on_job(changed(job(), now))
        assert len(heard) == 1


def test_the_clusters_settings_concern_every_workload(state):
    heard: list[Any] = []
    state.on_kgwe(added(workload()))
    state.announcer.subscribe(ClusterListener(workload_touched=heard.append))
    config = make(resources.SCHEDULER_CONFIG.type, {"metadata": {"name": "default"}, "spec": {"deviceMode": "DRA"}})
    state.on_config(added(config))
    assert len(heard) == 1
    assert state.find_workload(UID).claims


def test_room_is_announced_when_something_ends(state):
    state.on_kgwe(added(workload()))
    state.on_job(added(job()))
    heard = listen(state)
    state.on_job(removed(job()))
    assert heard == ["room"]
    state.on_kgwe(removed(workload()))
    assert heard == ["room", UID]


def test_what_runs_for_a_workload_that_is_gone_is_remembered_until_it_is_gone_too(state):
    state.on_kgwe(added(workload()))
    state.on_job(added(job()))
    state.on_pod(added(pod()))
    state.on_kgwe(removed(workload()))
    assert [run.meta.uid for run in state.orphans.values()] == ["job-1"]
    assert free(state)["n1"] == 4, "its pod counts until it ends"
    state.on_job(removed(job()))
    assert state.orphans == {}


def test_annotations_with_numbers_nobody_could_count_do_no_harm(state):
    wild = "9" * 5000
    bad = job(seats=TWO, completedIndexes=f"0-{wild},{wild}")
    bad.metadata.annotations[metadata_keys.GENERATION_ANNOTATION] = wild
    state.on_kgwe(added(workload(count=8)))
    state.on_job(added(bad))
    strange = pod(
        "p0",
        index=0,
        notes={placement_annotations.CARDS_ANNOTATION: "f" * 5000, placement_annotations.SEAT_ANNOTATION: f"x/{wild}"},
    )
    strange.metadata.annotations[placement_annotations.INDEX_ANNOTATION] = wild
    state.on_pod(added(strange))
    assert amounts.GPU in state.runs[UID].wanted
    assert state.runs[UID].meta.name == NAME
    assert ONE[0].node in free(state)


THREE = (Seat("n1", 0b1111), Seat("n1", 0b11110000), Seat("n2", 0b1111))


class TestScaling:
    """Users may scale the Job or Deployment of a workload."""

    def served(self, state, replicas=3):
        state.on_kgwe(added(workload(count=12)))
        state.on_deployment(added(deployment(seats=THREE, replicas=replicas)))

    def seat(self, state, number, *, gone=False):
        made = replica(f"p{number}", at=THREE[number].node, seat=f"{UID}/{number}")
        state.on_pod(removed(made) if gone else added(made))
        return made

    def scale(self, state, before, after):
        state.on_deployment(changed(deployment(seats=THREE, replicas=before), deployment(seats=THREE, replicas=after)))

    def test_a_deployment_that_is_scaled_down_gives_up_the_seats_of_the_pods_that_went(self, state):
        self.served(state)
        pods = [self.seat(state, number) for number in range(3)]
        self.scale(state, 3, 1)
        assert free(state) == {"n1": 0, "n2": 4}, "its pods still run"
        for each in pods[:2]:
            state.on_pod(changed(each, leaving(each)))
        assert state.run_registry.settle_seats(UID) == 0
        assert free(state) == {"n1": 0, "n2": 4}, "until they are gone"
        for number in range(2):
            self.seat(state, number, gone=True)
        state.run_registry.settle_seats(UID)
        assert free(state) == {"n1": 8, "n2": 4}
        assert state.run_registry.held_seats(state.runs[UID]) == THREE[2:]

    def test_it_gets_its_seats_back_when_it_is_scaled_up_while_they_are_free(self, state):
        self.served(state, 1)
        self.seat(state, 2)
        state.run_registry.settle_seats(UID)
        assert free(state) == {"n1": 8, "n2": 4}
        self.scale(state, 1, 3)
        assert state.run_registry.settle_seats(UID) == 0
        assert free(state) == {"n1": 0, "n2": 4}

    def test_it_waits_for_seats_that_others_have_by_now(self, state):
        self.served(state, 1)
        self.seat(state, 2)
        state.run_registry.settle_seats(UID)
        other = make(
            resources.POD.type,
            {"metadata": {"name": "x", "uid": "x", "namespace": "a"}, "spec": pod("x", gpus=8, at="n1").spec},
        )
        state.on_pod(added(other))
        assert free(state) == {"n1": 0, "n2": 4}
        self.scale(state, 1, 3)
        assert state.run_registry.settle_seats(UID) == 2
        assert list(state.ledger.reserved_seats(UID)) == [2]
        heard = listen(state)
        state.on_pod(added(replica("p3", at="", gated=True, phase="Pending")))
        state.on_pod(removed(other))
        heard.clear()
        assert state.run_registry.settle_seats(UID) == 0
        assert (UID, "p3") in heard, "its pod is seated now"
        assert free(state) == {"n1": 0, "n2": 4}

    def test_a_job_keeps_as_many_seats_as_it_may_run_pods(self, state):
        state.on_kgwe(added(workload(count=12)))
        state.on_job(added(job(seats=THREE)))
        state.on_job(changed(job(seats=THREE), job(seats=THREE, parallelism=1)))
        assert list(state.ledger.reserved_seats(UID)) == [0]
        state.on_pod(added(pod("p1", index=1, at="n1")))
        state.run_registry.settle_seats(UID)
        assert list(state.ledger.reserved_seats(UID)) == [1], "the seat of its pod"
        done = job(seats=THREE, parallelism=1, completedIndexes="1")
        state.on_pod(removed(pod("p1", index=1, at="n1")))
        state.on_job(changed(job(seats=THREE, parallelism=1), done))
        assert list(state.ledger.reserved_seats(UID)) == [0], "the next index it makes a pod for"

    def test_a_job_with_parallelism_0_holds_nothing(self, state):
        state.on_kgwe(added(workload(count=12)))
        state.on_job(added(job(seats=THREE, parallelism=0)))
        assert free(state) == {"n1": 8, "n2": 8}

    def test_pods_that_a_user_made_keep_no_seats_beyond_what_the_job_is_scaled_to(self, state):
        state.on_kgwe(added(workload(count=12)))
        state.on_job(added(job(seats=THREE, parallelism=1)))
        state.on_pod(added(pod("p0", index=0, at="n1")))
        state.on_pod(added(pod("waits", index=1, at="", phase="Pending")))
        state.on_pod(added(pod("small", index=2, at="n2", gpus=0)))
        state.run_registry.settle_seats(UID)
        assert free(state) == {"n1": 4, "n2": 8}

    @pytest.mark.parametrize("pods_first", [True, False])
    def test_a_restart_reserves_no_seats_that_others_have_by_now(self, state, *, pods_first):
        """It was scaled up without room, and the scheduler restarts: no other seats are reserved than before."""
        other = make(
            resources.POD.type,
            {"metadata": {"name": "x", "uid": "x", "namespace": "a"}, "spec": pod("x", gpus=8, at="n1").spec},
        )
        if pods_first:
            state.on_pod(added(other))
        self.served(state)
        self.seat(state, 2)
        if not pods_first:
            state.on_pod(added(other))
        state.run_registry.drop_unfit_seats()  # as every term does when it begins
        assert list(state.ledger.reserved_seats(UID)) == [2]
        assert state.run_registry.settle_seats(UID) == 2
        state.on_pod(removed(other))
        assert state.run_registry.settle_seats(UID) == 0
        assert free(state) == {"n1": 0, "n2": 4}

    def test_a_restart_keeps_the_seats_on_a_node_that_pods_are_being_moved_away_from(self, state):
        """Recovery stored a plan in which two pods change places; neither has moved yet."""
        state.on_kgwe(added(workload(count=16)))
        state.on_job(added(job(seats=(Seat("n1", 0xFF), Seat("n2", 0xFF)), gpus=8)))
        state.on_pod(added(pod("p1", index=1, at="n1", gpus=8)))
        state.run_registry.drop_unfit_seats()
        assert list(state.ledger.reserved_seats(UID)) == [0, 1]
