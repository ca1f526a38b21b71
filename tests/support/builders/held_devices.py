"""GPUNodes that say which GPUs are held, and what the state makes of them."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.builders.objects import added, make, node

from kgwe.cluster.state.cluster_state import ClusterState
from kgwe.kube.api import resources


def gpu_node(*held: dict[str, Any], name: str = "n1") -> Any:
    gpus = [
        {"uuid": f"GPU-{i}", "index": i, "model": "H100", "memoryMiB": 80_000, "health": {"state": "Healthy"}}
        for i in range(8)
    ]
    return make(resources.GPU_NODE.type, {"metadata": {"name": name}, "status": {"gpus": gpus, "held": list(held)}})


@pytest.fixture
def state():
    made = ClusterState()
    made.on_node(added(node("n1")))
    made.on_gpunode(added(gpu_node()))
    return made


def cards_of(state: ClusterState, key: str) -> int:
    holding = state.fleet.holding(key)
    assert holding is not None
    return holding.gpus
