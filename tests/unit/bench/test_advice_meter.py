"""The meter of `kgwe bench recommendations`: what pods hold on nodes, at the price of the nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from kgwe.bench.advice.meter import Held, price_holdings, read_holdings
from kgwe.bench.advice.workloads import make_fleet, make_workloads
from kgwe.kube.api import resources
from kgwe.local.fleet import gpunodes
from kgwe.model.simfleet.inventory import expand_fleet

if TYPE_CHECKING:
    from kgwe.kube.api.core import Node
    from kgwe.kube.api.kgwe.gpunode import GPUNode

PRICES = {"hgx-a100": 16.0, "l40s": 8.0}


def machine(pool: str) -> tuple[Node, GPUNode]:
    """The first node of a pool of the benchmark's fleet."""
    fleet, count = make_fleet(make_workloads(14))
    node = next(each for each in expand_fleet(fleet, count) if each.pool.name == pool)
    made = msgspec.convert(gpunodes.node_manifest(node, now="2026-01-01T00:00:00Z"), resources.NODE.type)
    return made, gpunodes.gpu_node(node, "uid")


@pytest.mark.parametrize(
    ("pool", "gpus", "slot", "dollars"),
    [
        ("a100", 4, None, 8.0),
        ("a100-small", 1, 3, 2.0 / 7),
        ("a100-medium", 1, 1, 1.0),
        ("l40s-shared", 1, None, 0.125),
    ],
)
def test_a_device_costs_its_part_of_its_node(pool, gpus, slot, dollars):
    node, gpu_node = machine(pool)
    held = [
        Held(
            "bench/p", gpu_node.metadata.name, gpu.uuid, "" if slot is None else str(gpu.mig.instances[slot].instanceID)
        )
        for gpu in gpu_node.status.gpus[:gpus]
    ]
    found = price_holdings([node], [gpu_node], held, PRICES)
    assert found.dollars_per_hour == pytest.approx(dollars)
    assert (found.pods, found.unpriced) == (frozenset({"bench/p"}), frozenset[str]())


def test_a_pod_on_a_node_without_a_price_is_named():
    node, gpu_node = machine("a100")
    held = [Held("bench/p", gpu_node.metadata.name, gpu_node.status.gpus[0].uuid)]
    found = price_holdings([node], [gpu_node], held, {})
    assert (found.dollars_per_hour, found.unpriced) == (0.0, frozenset({"bench/p"}))


def test_a_slice_that_the_gpu_does_not_have_is_not_metered():
    node, gpu_node = machine("a100")
    held = [Held("bench/p", gpu_node.metadata.name, gpu_node.status.gpus[0].uuid, "9")]
    assert price_holdings([node], [gpu_node], held, PRICES).unpriced == {"bench/p"}


def test_holdings_are_those_that_the_metrics_name():
    row = 'DCGM_FI_DEV_FB_USED{UUID="%s",Hostname="n1",GPU_I_ID="%s",namespace="%s",pod="%s"} 5'
    lines = [row % ("GPU-1", "", "bench", "a"), row % ("GPU-2", "7", "bench", "a"), row % ("GPU-3", "", "other", "b")]
    text = "\n".join([*lines, 'DCGM_FI_DEV_FB_USED{UUID="GPU-4",Hostname="n1"} 0', ""])
    assert read_holdings(text, "bench") == {Held("bench/a", "n1", "GPU-1"), Held("bench/a", "n1", "GPU-2", "7")}
