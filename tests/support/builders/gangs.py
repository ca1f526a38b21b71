"""A scheduler's view of two nodes, its gangs, and what these ask for."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.builders.objects import added, make, node, owned_by, pod_spec

from kgwe.cluster.gangs.leader_actions import LeaderActions
from kgwe.cluster.state.cluster_state import ClusterState
from kgwe.cluster.workload import placement_annotations
from kgwe.kube.api import resources


class Heard:
    """What the gangs ask for."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.seated: list[tuple[str, int]] = []
        self.later: list[Any] = []
        self.after: list[Any] = []

    def settle(self) -> None:
        while self.later:
            self.later.pop(0)()

    def run_timers(self) -> None:
        due, self.after = self.after, []
        for call in due:
            call()


@pytest.fixture
def state():
    made = ClusterState()
    for name in ("n1", "n2"):
        made.on_node(added(node(name)))
    return made


@pytest.fixture
def gangs(state):
    return state.gangs


@pytest.fixture
def heard(gangs):
    heard = Heard()
    gangs.start_leading(
        LeaderActions(
            request_plan=heard.asked.append,
            withdraw_request=lambda _owner: None,
            assign_seat=lambda _owner, pod, number: heard.seated.append((pod.metadata.name, number)),
            remove_gate=lambda _pod: None,
            call_soon=heard.later.append,
            call_later=lambda _delay_s, call: heard.after.append(call),
        )
    )
    return heard


def member(name, *, at="", says="", controller="job-1", gone=False, conditions=(), phase="Running"):
    notes = {"kgwe.nvidia.io/gang": "g", "kgwe.nvidia.io/gang-size": "2"}
    if says:
        notes |= {placement_annotations.SEAT_ANNOTATION: says, placement_annotations.CARDS_ANNOTATION: "ff"}
    meta = {
        "name": name,
        "namespace": "team",
        "uid": f"uid-{name}",
        "annotations": notes,
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "deletionTimestamp": "2026-01-01T01:00:00Z" if gone else None,
        "ownerReferences": owned_by(controller, "Job", "g"),
    }
    status = {"phase": phase, "conditions": list(conditions)}
    return make(resources.POD.type, {"metadata": meta, "spec": pod_spec(8, at, pin=at), "status": status})
