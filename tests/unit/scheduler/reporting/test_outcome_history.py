"""How work ended, by network domain: counted, decayed, stored, and seen by placement."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.support.builders.objects import added, changed, make, node, removed

from kgwe.apps.scheduler.fleet_metrics import FleetGauges
from kgwe.apps.scheduler.metrics import Metrics
from kgwe.apps.scheduler.reporting.outcome_history import OutcomeHistory
from kgwe.apps.scheduler.reporting.status_reports import count_domains
from kgwe.cluster.state.cluster_state import ClusterState
from kgwe.kube.api import resources
from kgwe.model.network.outcomes import HALF_LIFE_S
from kgwe.placement.fleet.node import Gpus, Request
from kgwe.placement.gang.request import GangRequest

LEAF = "fabric.topograph.run/tier-0"


def labelled(name: str, leaf: str) -> Any:
    made = node(name)
    return msgspec.structs.replace(made, metadata=msgspec.structs.replace(made.metadata, labels={LEAF: leaf}))


def domain(name: str, *nodes: str, **status: Any) -> Any:
    spec = {"type": "Leaf", "nodes": list(nodes)}
    meta = {"name": name, "generation": 1}
    return make(resources.TOPOLOGY_DOMAIN.type, {"metadata": meta, "spec": spec, "status": status})


@pytest.fixture
def state() -> ClusterState:
    made = ClusterState()
    for name, leaf in (("a0", "a"), ("a1", "a"), ("b0", "b"), ("b1", "b")):
        made.on_node(added(labelled(name, leaf)))
    return made


def place(state: ClusterState) -> str:
    found: Any = state.fleet.gangs.plan(GangRequest.uniform(Request(Gpus(count=8)), 2))
    return str(found.domain)


def test_a_gang_goes_where_nothing_was_lost_among_places_that_are_equally_good(state):
    assert place(state) == "a"
    history = OutcomeHistory(state, clock=lambda: 1000.0)
    history.record_lost(["a0"])
    history.apply_scores()
    assert state.fleet.node("a1").history == 0.8, "all nodes of the domain have its past"
    assert place(state) == "b"
    history.record_lost(["b0", "b1"])
    history.record_lost(["b0"])
    history.apply_scores()
    assert place(state) == "a", "the one with fewer losses"


def test_completions_make_up_for_a_loss(state):
    history = OutcomeHistory(state, clock=lambda: 1000.0)
    history.record_lost(["a0"])
    for _ in range(100):
        history.record_completed(["a0", "a1"])
    history.apply_scores()
    assert state.fleet.node("a0").history == 1.0
    assert place(state) == "a"


def test_the_past_fades_and_is_forgotten(state):
    now = 0.0
    history = OutcomeHistory(state, clock=lambda: now)
    history.record_lost(["a0"])
    history.apply_scores()
    now = 10 * HALF_LIFE_S
    history.apply_scores()
    assert history.outcomes_of("a") is None
    assert state.fleet.node("a0").history == 1.0


def test_the_loss_of_a_node_that_is_gone_counts_for_the_domain_it_was_in(state):
    history = OutcomeHistory(state, clock=lambda: 0.0)
    history.apply_scores()
    state.on_node(removed(labelled("a0", "a")))
    history.record_lost(["a0"])
    past = history.outcomes_of("a")
    assert past is not None
    assert past.lost == 1.0


def test_the_fleet_is_put_together_again_only_when_a_score_changed(state):
    history = OutcomeHistory(state, clock=lambda: 0.0)
    history.record_lost(["a0"])
    history.apply_scores()
    before = state.fleet.generation
    history.apply_scores()
    assert state.fleet.generation == before


def test_what_the_objects_say_survives_a_restart(state):
    outcomes = {"completed": 2.0, "lost": 3.0, "asOf": "2026-01-01T00:00:00Z"}
    state.on_domain(added(domain("rack", "a0", "a1", outcomes=outcomes)))
    history = OutcomeHistory(state, clock=lambda: 1767225600.0)
    history.restore_counts()
    history.apply_scores()
    past = history.outcomes_of("rack")
    assert past is not None
    assert (past.completed, past.lost) == (2.0, 3.0)
    assert state.fleet.node("a0").history == 0.65
    assert state.fleet.node("b0").history == 1.0


def test_nodes_and_gpus_are_counted_by_domain(state):
    state.on_domain(added(domain("rack", "a0", "a1")))
    assert count_domains(state)["rack"] == (2, 16, 16)


def test_the_topology_score_of_every_node_is_exported(state):
    metrics = Metrics()
    FleetGauges(state).register(metrics)
    assert metrics.registry.get_sample_value("kgwe_topology_score", {"node": "a0"}) == 50.0
    state.on_node(changed(labelled("a0", "a"), node("a0", gpus="1")))
    assert metrics.registry.get_sample_value("kgwe_topology_score", {"node": "a0"}) == 100.0
    state.on_node(removed(node("a0")))
    assert metrics.registry.get_sample_value("kgwe_topology_score", {"node": "a0"}) is None
