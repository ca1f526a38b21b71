"""Node pools from the file of GPU prices: instance types with their cheapest price, on-demand and spot."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Final

from kgwe import errors
from kgwe.bench.forecast.data import parse_number, read_rows
from kgwe.model.gpu.topology import Slot, Wiring
from kgwe.placement.fleet.node import Node, Shape
from kgwe.scaling.purchase.pools import NodePool

if TYPE_CHECKING:
    from pathlib import Path

_COLUMNS: Final = ("cloud", "instance_type", "accelerator", "accelerator_count", "vcpus", "memory_gib", "price_usd_h")
_MOST_GPUS: Final = 16
_GIB: Final = 1 << 30
#: Nodes of one placement group, where the instance has all GPUs of a machine.
_GROUP: Final = 64
_WHOLE_MACHINE: Final = 8


def read_pools(path: Path, types: int) -> list[NodePool]:
    """Return the pools of so many instance types, in the order of the file: on-demand, and spot where it is sold."""
    found: dict[tuple[str, str], dict[str, str]] = {}
    for row in read_rows(path, (*_COLUMNS, "spot_price_usd_h")):
        key = (row["cloud"], row["instance_type"])
        price, gpus = parse_number(row["price_usd_h"]), parse_number(row["accelerator_count"])
        has_host = parse_number(row["vcpus"]) > 0 and parse_number(row["memory_gib"]) > 0
        if not (row["instance_type"] and has_host and price > 0 and 1 <= gpus <= _MOST_GPUS and gpus == int(gpus)):
            continue
        if key not in found or price < parse_number(found[key]["price_usd_h"]):
            found[key] = row
    if not found:
        raise errors.Permanent(f"{path} has no instance type with GPUs, CPUs, memory and a price")
    pools = []
    for (cloud, kind), row in list(found.items())[:types]:
        pools.append(_make_pool(f"{cloud}-{kind}", row, parse_number(row["price_usd_h"]), is_spot=False))
        spot = parse_number(row["spot_price_usd_h"])
        if spot > 0:
            pools.append(_make_pool(f"{cloud}-{kind}-spot", row, spot, is_spot=True))
    return pools


@functools.cache
def make_shape(gpus: int, model: str) -> Shape:
    """Return GPUs of a model, without links between them."""
    return Shape(Wiring(tuple(Slot(f"gpu-{number}", 0) for number in range(gpus))), model)


def _make_pool(name: str, row: dict[str, str], dollars: float, *, is_spot: bool) -> NodePool:
    gpus = int(parse_number(row["accelerator_count"]))
    template = Node(
        name=name,
        shape=make_shape(gpus, row["accelerator"]),
        cpu_milli=int(parse_number(row["vcpus"]) * 1000),
        memory_bytes=int(parse_number(row["memory_gib"]) * _GIB),
        labels={"node.kubernetes.io/instance-type": row["instance_type"]},
        price_micro_per_hour=round(dollars * 1_000_000),
        spot=is_spot,
    )
    return NodePool(name, template, leaf_nodes=_GROUP if gpus >= _WHOLE_MACHINE and not is_spot else 0)
