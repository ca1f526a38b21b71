"""Devices of pods from GPUNodes: whole GPUs, shares and slices."""

from __future__ import annotations

import msgspec
from tests.support.fakes.metered_fleet import NODES

from kgwe.apps.holdings import list_holdings
from kgwe.kube.api.kgwe import gpunode
from kgwe.local.fleet import gpunodes
from kgwe.metrics.holdings import Holding
from kgwe.model.usage.window import PodKey


def holding(pool: str, *held: gpunode.HeldDevices) -> list[Holding]:
    node = gpunodes.gpu_node(NODES[pool], "uid")
    return list(list_holdings([msgspec.structs.replace(node, status=msgspec.structs.replace(node.status, held=held))]))


def test_whole_gpus_and_shares_are_held_by_their_pods():
    name, gpus = NODES["h100"].name, NODES["h100"].gpus
    found = holding(
        "h100",
        gpunode.HeldDevices("team/a", cards="5"),
        gpunode.HeldDevices("team/b", cards="2", replicas=1),
        gpunode.HeldDevices("team/c", cards="2", replicas=1),
    )
    assert found == [
        Holding(name, gpus[0].uuid, "", PodKey("team", "a")),
        Holding(name, gpus[2].uuid, "", PodKey("team", "a")),
        Holding(name, gpus[1].uuid, "", PodKey("team", "b")),
        Holding(name, gpus[1].uuid, "", PodKey("team", "c")),
    ]


def test_a_slice_is_named_by_its_instance_as_in_the_metrics():
    node = gpunodes.gpu_node(NODES["a100-mig"], "uid")
    gpu = node.status.gpus[0]
    one = gpu.mig.instances[1]
    found = holding("a100-mig", gpunode.HeldDevices("team/a", slices=(f"0@{one.start}",)))
    assert found == [Holding(node.metadata.name, gpu.uuid, str(one.instanceID), PodKey("team", "a"))]


def test_devices_that_the_node_does_not_have_are_left_out():
    assert holding("h100", gpunode.HeldDevices("team/a", cards="f00", slices=("0@1", "77@0"))) == []
    assert holding("h100", gpunode.HeldDevices("team/a", cards="no mask", slices=("nonsense",))) == []
