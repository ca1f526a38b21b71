"""The meter of `kgwe bench recommendations`: what pods hold on nodes, at the price of the nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from kgwe.bench.advice.meter import read_allocations
from kgwe.bench.advice.workloads import make_fleet, make_workloads
from kgwe.kube.api import resources
from kgwe.kube.api.kgwe.gpunode import GPUNode, HeldDevices
from kgwe.local.fleet import gpunodes
from kgwe.model.simfleet.inventory import expand_fleet

if TYPE_CHECKING:
    from kgwe.kube.api.core import Node

PRICES = {"hgx-a100": 16.0, "l40s": 8.0}


def machine(pool: str, *held: HeldDevices) -> tuple[Node, GPUNode]:
    """The first node of a pool of the benchmark's fleet, with these holders."""
    fleet, count = make_fleet(make_workloads(14))
    node = next(each for each in expand_fleet(fleet, count) if each.pool.name == pool)
    made = msgspec.convert(gpunodes.node_manifest(node, now="2026-01-01T00:00:00Z"), resources.NODE.type)
    gpu_node = gpunodes.gpu_node(node, "uid")
    return made, msgspec.structs.replace(gpu_node, status=msgspec.structs.replace(gpu_node.status, held=held))


@pytest.mark.parametrize(
    ("pool", "held", "dollars"),
    [
        ("a100", HeldDevices("bench/p", cards="f"), 8.0),
        ("a100-small", HeldDevices("bench/p", slices=("0@3",)), 2.0 / 7),
        ("a100-medium", HeldDevices("bench/p", slices=("0@4",)), 1.0),
        ("l40s-shared", HeldDevices("bench/p", cards="1", replicas=1), 1.0 / 8),
        ("a100", HeldDevices("other/p", cards="f"), 0.0),
    ],
)
def test_a_device_costs_its_part_of_its_node(pool, held, dollars):
    node, gpu_node = machine(pool, held)
    found = read_allocations([node], [gpu_node], "bench", PRICES)
    assert found.dollars_per_hour == pytest.approx(dollars)
    assert found.unpriced == frozenset()


def test_a_pod_on_a_node_without_a_price_is_named():
    node, gpu_node = machine("a100", HeldDevices("bench/p", cards="1"))
    found = read_allocations([node], [gpu_node], "bench", {})
    assert (found.dollars_per_hour, found.unpriced) == (0.0, {"bench/p"})


def test_a_device_that_the_node_does_not_have_is_not_metered():
    node, gpu_node = machine("a100", HeldDevices("bench/p", slices=("0@0",)))
    assert read_allocations([node], [gpu_node], "bench", PRICES).unpriced == {"bench/p"}
