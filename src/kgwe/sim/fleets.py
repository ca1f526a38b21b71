"""Simulated fleets as placement sees them: the nodes of a fleet model, the network above them, and work to fill them.

A fleet model (`kgwe.model.fleet`) says what machines there are; `nodes` turns its inventory into placement nodes,
`network` into the tree of domains. Nodes of one machine share one shape, whatever pool they are in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kgwe.model import bandwidth, domain_labels, domains, inventory, quantity
from kgwe.placement.node import Node, Shape

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kgwe.model.fleet import Machine
    from kgwe.model.inventory import FleetNode


def nodes(listed: Iterable[FleetNode], prices: Mapping[str, int] | None = None) -> list[Node]:
    """Placement nodes of an inventory; `prices`: pool -> micro-dollars per node and hour, not known when left out."""
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
        cut={card.index: tuple(each.placement for each in card.instances) for card in node.cards if card.is_cut},
        price_micro_per_hour=price,
        spot=node.pool.capacity_type == "spot",
    )


def network(listed: Sequence[FleetNode], labels: domain_labels.Labels = domain_labels.TOPOGRAPH) -> domains.Tree:
    """The tree of domains that the nodes' labels tell."""
    speeds = {
        machine.name: bandwidth.network_gb_per_s(machine.wiring, range(len(machine.wiring.slots)))
        for machine in {node.machine.name: node.machine for node in listed}.values()
    }
    places = [labels.place(node.name, inventory.labels(node), speeds[node.machine.name]) for node in listed]
    return domains.build(places, labels.names)
