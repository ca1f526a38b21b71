"""What an administrator's settings do to asks and scores."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kgwe.cluster.workload import scheduler_policy as policy
from kgwe.cluster.workload.workload import from_kgwe
from kgwe.kube.api.kgwe.gpu_requirements import GPURequirements
from kgwe.kube.api.kgwe.gpuworkload import GPUWorkload, GPUWorkloadSpec
from kgwe.kube.api.kgwe.schedulerconfig import NodeWeights, SchedulerConfig, SchedulerConfigSpec, TopologyConstraints
from kgwe.kube.api.meta import ObjectMeta
from kgwe.model.units import quantity
from kgwe.placement.fleet.node import Gpus, Request
from kgwe.placement.gang.request import GangRequest
from kgwe.placement.planning.ask import Ask, TopologyRequest

ONE = Request(Gpus(count=1))


def config(**spec: Any) -> SchedulerConfig:
    return SchedulerConfig(metadata=ObjectMeta(name="default"), spec=SchedulerConfigSpec(**spec))


def test_without_settings_the_seed_weights_hold_and_nothing_is_limited():
    ask = Ask("w", ONE, pods=4)

    weights = policy.node_weights(None)

    assert (weights.topology, weights.resource, weights.balance) == (40, 35, 25)
    assert policy.limit_ask(ask, None) is ask
    assert policy.check_allowed(ask, None) is None


def test_without_topology_the_other_weights_share_what_it_had():
    weights = policy.node_weights(config(enableTopologyAwareness=False, nodeWeights=NodeWeights(40, 45, 15)))

    assert (weights.topology, weights.resource, weights.balance) == (0, 75, 25)


def test_limits_per_leaf_tighten_and_never_loosen():
    limits = config(topologyConstraints=TopologyConstraints(maxNodesPerLeaf=4, maxGPUsPerLeaf=32))
    own = Ask("w", ONE, pods=8, nearness=TopologyRequest(max_nodes_per_leaf=2))
    gang = Ask("g", ONE, gang=GangRequest.uniform(ONE, 8, max_nodes_per_leaf=9))

    assert policy.limit_ask(own, limits).nearness == TopologyRequest(max_nodes_per_leaf=2, max_gpus_per_leaf=32)
    limited = policy.limit_ask(gang, limits).gang
    assert limited is not None
    assert (limited.max_nodes_per_leaf, limited.max_gpus_per_leaf) == (4, 32)


def test_slices_are_refused_with_the_next_step_when_they_are_switched_off():
    ask = Ask("w", Request(Gpus(profile="1g.10gb", slices=1)))

    refusal = policy.check_allowed(ask, config(enableMIGSupport=False))

    assert refusal is not None
    assert "enableMIGSupport" in refusal.message
    assert not refusal.possible


@pytest.mark.parametrize(("text", "seconds"), [("30s", 30), ("1h30m", 5400), ("250ms", 0.25), ("2m5s", 125)])
def test_durations(text: str, seconds: float):
    assert quantity.parse_duration(text) == seconds
    assert policy.plan_timeout_s(config(schedulingTimeout=text), 7.0) == seconds


@pytest.mark.parametrize("text", ["", "30", "s", "1.5h", "-3s", "3 s"])
def test_what_is_no_duration_is_refused(text: str):
    with pytest.raises(quantity.BadQuantity):
        quantity.parse_duration(text)


def test_a_missing_class_is_named_without_control_characters():
    made = GPUWorkload(metadata=ObjectMeta("w", "default"), spec=GPUWorkloadSpec(GPURequirements(count=1)))
    workload = replace(from_kgwe(made), priority_class="\x1b[2J\nfake\u202e")

    assert r"PriorityClass \u001b[2J\u000afake\u202e does not exist" in policy.missing_class(workload, {"high": 1})
