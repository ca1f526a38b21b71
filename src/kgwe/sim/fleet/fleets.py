"""Simulated fleets for placement: the nodes of a fleet model, their network, and pods that fill them.

A fleet model (`kgwe.model.simfleet.model_file`) describes machines; `build_nodes` converts its inventory to placement
nodes, `build_network` to the tree of domains. Nodes of one machine type share one shape, in any pool.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from kgwe.model.gpu import bandwidth
from kgwe.model.network import domain_labels, domains
from kgwe.model.simfleet import inventory
from kgwe.model.units import quantity
from kgwe.placement.fleet.node import GPU_MILLI, Gpus, Node, Preference, Request, Shape
from kgwe.placement.pod.fit import Fitter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from kgwe.model.simfleet.inventory import FleetNode
    from kgwe.model.simfleet.model_file import Machine
    from kgwe.placement.fleet.snapshot import Snapshot


def build_nodes(listed: Iterable[FleetNode], prices: Mapping[str, int] | None = None) -> list[Node]:
    """Return the placement nodes of an inventory; `prices` is pool -> micro-dollars per node and hour."""
    shapes: dict[str, Shape] = {}
    known = prices or {}
    return [
        _node(each, shapes.setdefault(each.machine.name, shape_of(each.machine)), known.get(each.pool.name))
        for each in listed
    ]


def shape_of(machine: Machine) -> Shape:
    model = machine.model
    return Shape(machine.wiring, model.label, model.memory_mib, str(model.architecture), model.geometry)


def _node(node: FleetNode, shape: Shape, price: int | None) -> Node:
    amounts = node.allocatable()
    return Node(
        name=node.name,
        shape=shape,
        cpu_milli=quantity.parse_milli(amounts["cpu"]),
        memory_bytes=quantity.parse_bytes(amounts["memory"]),
        pods=int(amounts["pods"]),
        labels=inventory.labels(node),
        cut={card.index: tuple(each.placement for each in card.instances) for card in node.gpus if card.is_cut},
        price_micro_per_hour=price,
        spot=node.pool.capacity_type == "spot",
    )


def build_network(listed: Sequence[FleetNode], labels: domain_labels.Labels = domain_labels.TOPOGRAPH) -> domains.Tree:
    """Return the tree of domains from the nodes' labels."""
    speeds = {
        machine.name: bandwidth.network_gb_per_s(machine.wiring, range(len(machine.wiring.slots)))
        for machine in {node.machine.name: node.machine for node in listed}.values()
    }
    places = [labels.place(node.name, inventory.labels(node), speeds[node.machine.name]) for node in listed]
    return domains.build_tree(places, labels.names)


# --- work ------------------------------------------------------------------------------------------------

_GIB: Final = 2**30
_TRIES_PER_NODE: Final = 50

#: requests of a mixed fleet with their weights: mostly one GPU, some shares and slices, few whole nodes
MIX: Final[tuple[tuple[int, Request], ...]] = (
    (18, Request(Gpus(count=1), 4_000, 32 * _GIB)),
    (10, Request(Gpus(count=1), 8_000, 64 * _GIB)),
    (5, Request(Gpus(count=1), 8_000, 64 * _GIB, model="A100")),
    (5, Request(Gpus(count=1), 12_000, 96 * _GIB, min_memory_gb=40)),
    (4, Request(Gpus(count=1), 2_000, 16 * _GIB, architecture="Ada")),
    (8, Request(Gpus(count=2), 16_000, 128 * _GIB)),
    (5, Request(Gpus(count=2), 16_000, 128 * _GIB, Preference.NVLINK_REQUIRED)),
    (3, Request(Gpus(count=2), 8_000, 64 * _GIB, Preference.SAME_PCIE_SWITCH)),
    (3, Request(Gpus(count=2), 12_000, 96 * _GIB, Preference.SAME_NUMA)),
    (6, Request(Gpus(count=4), 32_000, 256 * _GIB, Preference.NVLINK_OPTIMAL)),
    (3, Request(Gpus(count=4), 24_000, 192 * _GIB, Preference.SAME_NUMA)),
    (3, Request(Gpus(count=4), 32_000, 256 * _GIB, min_bandwidth_gbps=600)),
    (4, Request(Gpus(count=8), 64_000, 512 * _GIB, Preference.NVLINK_REQUIRED)),
    (1, Request(Gpus(count=8), 64_000, 512 * _GIB, min_bandwidth_gbps=900, model="H100")),
    (8, Request(Gpus(milli=250, share_mib=8_000), 2_000, 16 * _GIB)),
    (6, Request(Gpus(milli=500, share_mib=20_000), 4_000, 32 * _GIB)),
    (3, Request(Gpus(milli=700), 4_000, 32 * _GIB)),
    (3, Request(Gpus(profile="1g.10gb", slices=1), 2_000, 16 * _GIB)),
    (2, Request(Gpus(profile="3g.40gb", slices=1), 6_000, 48 * _GIB)),
)


def half_full(snapshot: Snapshot, seed: int) -> list[Callable[[], None]]:
    """Fill half of the fleet."""
    return fill_fleet(snapshot, 0.5, np.random.default_rng(seed))


def draw_requests(count: int, rng: np.random.Generator) -> list[Request]:
    """Return pods of the mix, drawn by their weights."""
    weights = np.array([weight for weight, _ in MIX], np.float64)
    return [MIX[i][1] for i in rng.choice(len(MIX), size=count, p=weights / weights.sum()).tolist()]


def fill_fleet(snapshot: Snapshot, share: float, rng: np.random.Generator) -> list[Callable[[], None]]:
    """Book pods of the mix on random nodes until that share of all GPU milli is in use; return functions that undo
    it.

    Random nodes leave all kinds of remainders, as years of arrivals and departures do. It stops when many pods in a
    row find no room.
    """
    fitter = Fitter(snapshot)
    undos: list[Callable[[], None]] = []
    left = int(snapshot.milli.sum(dtype=np.int64))
    until = left * (1 - share)
    for _ in range(_TRIES_PER_NODE * len(snapshot)):
        if left <= until:
            break
        (request,) = draw_requests(1, rng)
        grant = fitter.find_grant(request, int(rng.integers(len(snapshot))))
        if grant is not None:
            undos.append(snapshot.commit(grant))
            left -= request.gpus.count * GPU_MILLI + request.gpus.milli
    return undos
