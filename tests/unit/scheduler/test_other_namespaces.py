"""Labels and owner references that name objects of another namespace: nobody checks them, so nobody believes them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.support.builders.claims import claim, mask, resource_slice
from tests.support.builders.objects import ONE, TWO, UID, added, free, job, node, pod, removed, workload

from kgwe.apps.mig import demand
from kgwe.apps.mig.claims import Claims
from kgwe.cluster.registry.announcer import ClusterListener
from kgwe.cluster.state.cluster_state import ClusterState
from kgwe.kube.api import resources


@pytest.fixture
def state() -> ClusterState:
    made = ClusterState()
    for name in ("n1", "n2"):
        made.on_node(added(node(name)))
    made.on_kgwe(added(workload(count=8)))
    return made


def thief(**more: Any) -> Any:
    return pod("thief", namespace="other", **more)


def test_a_pod_of_another_namespace_does_not_take_the_seat_of_a_pod_that_restarts(state: ClusterState) -> None:
    state.on_job(added(job(seats=ONE)))
    state.on_pod(added(pod("p", at="n1")))
    state.on_pod(added(thief(at="n1", index=0)))
    state.on_pod(removed(pod("p", at="n1")))
    assert state.ledger.pod_in(UID, 0) == ""
    assert state.ledger.reserved_seat(UID, 0).gpus == 0b1111  # type: ignore[union-attr]
    assert free(state)["n1"] == 0, "the seat is kept, the pod counts for itself"
    state.on_pod(added(pod("again", at="n1")))
    assert state.ledger.pod_in(UID, 0) == "uid-again"


def test_a_gated_pod_of_another_namespace_gets_no_seat(state: ClusterState) -> None:
    asked: list[str] = []
    nothing: Any = lambda *_: None  # noqa: E731
    state.announcer.subscribe(
        ClusterListener(
            workload_changed=nothing,
            workload_touched=nothing,
            capacity_freed=nothing,
            workload_removed=nothing,
            pod_unseated=lambda _, each: asked.append(each.metadata.name),
        )
    )
    state.on_job(added(job(seats=TWO)))
    state.on_pod(added(thief(at="", index=0, gated=True, phase="Pending")))
    assert asked == []
    assert not state.pods_of(state.runs[UID])
    assert state.seat_of(thief(at="n1", index=0)) is None


def test_a_claim_of_another_namespace_is_not_the_pods_own(state: ClusterState) -> None:
    state.on_slice(added(resource_slice("n1")))
    state.on_job(added(job(seats=ONE)))
    state.on_pod(added(pod("p", at="n1")))
    before = state.ledger.fleet.holding("uid-p")
    forged = claim("forged", (6, 7), of="uid-p")
    forged = msgspec.structs.replace(forged, metadata=msgspec.structs.replace(forged.metadata, namespace="other"))
    state.on_claim(added(forged))
    state.booking.book(state.pods["uid-p"])
    assert state.ledger.fleet.holding("uid-p") == before
    assert mask(state) & 0b11000000 == 0, "what the claim has is counted as its own"


def test_a_pod_of_another_namespace_does_not_end_a_workloads_wait_for_slices() -> None:
    wants = {"gpuRequirements": {"mig": {"profile": "1g.10gb", "count": 1}}}
    meta = {"name": "w", "namespace": "team", "uid": UID}
    waiting = msgspec.convert(
        {"metadata": meta, "spec": wants, "status": {"phase": "Pending"}}, resources.GPU_WORKLOAD.type
    )
    nodes = demand.Nodes((), {})
    found = demand.list_requests([thief(at="n1")], [waiting], nodes, Claims())
    assert [each.name for each in found] == ["workload team/w"]
    assert demand.list_requests([pod(at="n1")], [waiting], nodes, Claims()) == []
