"""Plain GPU pods behind the gate: planned one by one in the queue of all work, and plain again once they are bound."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.builders.objects import added, free, make, node, pod_spec, removed

from kgwe.cluster.gangs import plain_pods
from kgwe.cluster.gangs.leader_actions import LeaderActions
from kgwe.cluster.state.cluster_state import ClusterState
from kgwe.cluster.workload import placement_annotations
from kgwe.kube.api import resources
from kgwe.placement.planning import planner
from kgwe.placement.planning.plan import Plan
from kgwe.placement.queue.workloads import RunningWorkloads

if TYPE_CHECKING:
    from collections.abc import Callable

    from kgwe.placement.planning.ask import Ask

OWNER = "gang:team/Pod/p"


class Bed:
    """A leader's gangs, with what they ask for, seat and free."""

    def __init__(self) -> None:
        self.state = ClusterState()
        for name in ("n1", "n2"):
            self.state.on_node(added(node(name)))
        self.gangs = self.state.gangs
        self.asked: list[Ask] = []
        self.forgotten: list[str] = []
        self.seated: list[tuple[str, int]] = []
        self.freed: list[str] = []
        self.later: list[Callable[[], None]] = []

    def lead(self) -> None:
        self.gangs.start_leading(
            LeaderActions(
                request_plan=self.asked.append,
                withdraw_request=self.forgotten.append,
                assign_seat=lambda _owner, pod, number: self.seated.append((pod.metadata.name, number)),
                remove_gate=lambda pod: self.freed.append(pod.metadata.name),
                call_soon=self.later.append,
            )
        )

    def see(self, *pods: Any) -> None:
        for each in pods:
            self.state.on_pod(added(each))
        while self.later:
            self.later.pop()()

    def plan(self) -> str:
        """Carry out the last ask; returns the node."""
        ask = self.asked[-1]
        found = planner.make_plan(self.state.fleet, ask, choosers={}, rng=random.Random(1))
        assert isinstance(found, Plan)
        nodes = [seat.node for seat in found.seats]
        start = self.state.ledger.commit_plan(ask.owner, found.amounts_by_seat, found.grants, nodes)
        self.gangs.assign_plan(ask.owner, replace(found, start=start))
        return nodes[0]


@pytest.fixture
def bed():
    made = Bed()
    made.lead()
    return made


def pod(name="p", gpus=4, *, at="", gates=(placement_annotations.GATE,), notes=None, priority=0, **more):
    meta = {"name": name, "namespace": "team", "uid": f"uid-{name}", "annotations": notes or {}}
    spec = pod_spec(gpus, at, **more) | {"priority": priority}
    if gates:
        spec["schedulingGates"] = [{"name": gate} for gate in gates]
    return make(resources.POD.type, {"metadata": meta, "spec": spec, "status": {"phase": "Pending"}})


def test_a_gated_gpu_pod_of_no_gang_is_queued_and_gets_a_seat(bed):
    bed.see(pod(priority=7, notes={"kgwe.nvidia.io/strategy": "pack"}))
    (ask,) = bed.asked
    assert (ask.owner, ask.namespace, ask.name, ask.priority, ask.strategy) == (OWNER, "team", "p", 7, "pack")
    assert ask.gang is None
    bed.plan()
    assert bed.seated == [("p", 0)]
    assert bed.gangs.seat("uid-p") == (OWNER, 0)
    assert sum(free(bed.state).values()) == 12
    assert not bed.freed


def test_a_bound_pod_is_plain_again_and_its_gpus_are_never_free(bed):
    bed.see(pod())
    where = bed.plan()
    bed.see(pod(at=where, gates=(), pin=where, notes={placement_annotations.SEAT_ANNOTATION: f"{OWNER}/0"}))
    assert bed.gangs.seat("uid-p") is None
    assert not bed.state.ledger.has_seats(OWNER)
    assert sum(free(bed.state).values()) == 12
    bed.state.on_pod(removed(pod(at=where, gates=())))
    assert sum(free(bed.state).values()) == 16


def test_a_seat_that_was_written_is_found_again_after_a_restart(bed):
    bed.see(pod(gates=(), pin="n1", notes={placement_annotations.SEAT_ANNOTATION: f"{OWNER}/0"}))
    assert bed.state.ledger.reserved_seat(OWNER, 0).node == "n1"
    assert free(bed.state) == {"n1": 4, "n2": 8}
    assert not bed.asked


def test_a_pod_without_gpus_or_with_a_request_that_cannot_be_read_is_left_to_kube_scheduler(bed):
    bed.see(pod("cpu", 0))
    bed.see(pod("odd", 1, notes={"kgwe.nvidia.io/topology-preference": "NearTheWindow"}))
    assert bed.freed == ["cpu", "odd"]
    assert not bed.asked
    assert bed.gangs.why_waiting(pod("odd", 1, gates=())) is None


def test_a_pod_behind_the_gate_of_another_system_waits_for_it_first(bed):
    bed.see(pod(gates=(placement_annotations.GATE, "example.com/quota")))
    assert not bed.asked
    bed.see(pod())
    assert [ask.owner for ask in bed.asked] == [OWNER]


def test_a_pod_that_goes_is_forgotten(bed):
    bed.see(pod())
    bed.plan()
    bed.state.on_pod(removed(pod()))
    assert sum(free(bed.state).values()) == 16
    assert OWNER in bed.forgotten


def test_a_new_leader_frees_pods_that_it_saw_as_a_standby():
    bed = Bed()
    bed.see(pod("cpu", 0), pod())
    bed.lead()
    assert bed.freed == ["cpu"]
    assert [ask.owner for ask in bed.asked] == [OWNER]


def test_what_plain_pods_hold_counts_against_their_namespace():
    plain = plain_pods.PlainPods()
    bound = pod(at="n1", gates=())
    plain.set("uid-p", bound)
    plain.set("uid-p", bound)
    plain.set("cpu", pod("cpu", 0, at="n1", gates=()))
    assert plain.held == {"team": 4000}
    roster = RunningWorkloads(lambda _: ())
    roster.set_unqueued(plain.held)
    assert roster.sum_by_namespace() == {"team": 4000}
    plain.set("uid-p", None)
    plain.set("unknown", None)
    assert plain.held == {}


def test_slices_and_shares_count_as_parts():
    assert plain_pods.milli_of({"nvidia.com/mig-3g.40gb": 2, "cpu": 4}) == 857
    assert plain_pods.milli_of({"nvidia.com/gpu": 2}) == 2000
