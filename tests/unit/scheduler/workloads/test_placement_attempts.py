"""Placements that fail in a row: how many, and what brings new ones."""

from __future__ import annotations

from tests.support.builders.objects import added, changed, make, node, removed

from kgwe.apps.scheduler.workloads.placement_attempts import AttemptLimits
from kgwe.cluster.registry.announcer import ClusterListener
from kgwe.cluster.state.cluster_state import ClusterState
from kgwe.kube.api import resources


def config(**spec):
    return make(resources.SCHEDULER_CONFIG.type, {"metadata": {"name": "default"}, "spec": spec})


def test_without_a_config_there_is_no_limit():
    state = ClusterState()
    assert AttemptLimits(state).exhaust("u", 1000) is None


def test_the_limit_is_the_configs():
    state = ClusterState()
    state.on_config(added(config(maxSchedulingAttempts=2)))
    attempts = AttemptLimits(state)
    assert attempts.exhaust("u", 1) is None
    assert attempts.exhaust("u", 2) == 2


def test_a_change_of_nodes_or_settings_brings_new_attempts():
    state = ClusterState()
    old = config(maxSchedulingAttempts=1)
    state.on_config(added(old))
    attempts = AttemptLimits(state)
    attempts.exhaust("u", 1)
    assert attempts.renew() == []
    state.on_node(added(node("n1")))
    assert attempts.renew() == ["u"]
    assert attempts.renew() == []
    attempts.exhaust("u", 1)
    state.on_config(changed(old, config(maxSchedulingAttempts=5)))
    assert attempts.renew() == ["u"]


def test_a_workload_that_is_gone_is_forgotten():
    state = ClusterState()
    state.on_config(added(config(maxSchedulingAttempts=1)))
    attempts = AttemptLimits(state)
    attempts.exhaust("u", 1)
    attempts.forget("u")
    state.on_node(added(node("n1")))
    state.on_node(removed(node("n1")))
    assert attempts.renew() == []


def test_a_status_of_the_config_is_no_change_of_settings():
    state = ClusterState()
    state.on_config(added(config(maxSchedulingAttempts=1)))
    touched: list[object] = []
    state.announcer.subscribe(
        ClusterListener(
            workload_changed=touched.append,
            workload_touched=touched.append,
            capacity_freed=lambda: touched.append("room"),
            workload_removed=touched.append,
            pod_unseated=lambda *_: None,
        )
    )
    said = make(
        resources.SCHEDULER_CONFIG.type,
        {
            "metadata": {"name": "default", "resourceVersion": "9"},
            "spec": {"maxSchedulingAttempts": 1},
            "status": {"observedGeneration": 1},
        },
    )
    state.on_config(changed(config(maxSchedulingAttempts=1), said))
    assert not touched
    assert state.config is said
