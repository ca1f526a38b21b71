"""Node pools, and the plan of what to buy from them."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from kgwe import errors

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kgwe.placement.fleet.node import Node
    from kgwe.placement.fleet.snapshot import Grant


@dataclass(frozen=True, slots=True)
class NodePool:
    """Equal nodes that can be bought: one instance type, zone and capacity type.

    The template is a node as it will be after configuration: with its MIG layout, its shares, labels and taints. Its
    price is what one more node costs; a reservation that is paid already costs nothing.
    """

    name: str
    template: Node
    limit: int = 1_000_000
    """How many more nodes may be bought."""
    leaf_nodes: int = 0
    """How many nodes are promised in one leaf or placement group; 0: none."""

    def __post_init__(self) -> None:
        if self.limit < 0 or self.leaf_nodes < 0 or self.template.price_micro_per_hour is None:
            raise errors.Permanent(f"pool {self.name} needs a price, and limits that are not negative")

    @property
    def price(self) -> int:
        """Micro-dollars per node and hour."""
        return self.template.price_micro_per_hour or 0

    def make_node(self, number: int) -> Node:
        """Return a node of the pool that does not exist yet."""
        return replace(self.template, name=f"{self.name}-new-{number}")


class UnmetReason(enum.StrEnum):
    """Why nothing is bought for an ask."""

    NO_POOL = "NoPoolFits"
    """No pool has a node on which one of its pods fits."""
    LIMIT = "PoolLimitReached"
    """Pools have such nodes, but not as many as it needs."""
    TOPOLOGY = "TopologyNotPromised"
    """No pool promises so many nodes in one domain of the required level."""
    BUDGET = "BudgetReached"
    """It would cost more per hour than is left."""
    WAITS_FOR_SPOT = "WaitsForSpot"
    """Spot nodes are away, and waiting for them is the better choice."""


@dataclass(frozen=True, slots=True)
class Unmet:
    owner: str
    reason: UnmetReason
    message: str


@dataclass(frozen=True, slots=True)
class PromisedSeat:
    """The node of one pod, and the devices that the engine gave it there."""

    node: str
    grant: Grant


@dataclass(frozen=True, slots=True)
class PurchasePlan:
    """What to buy, which pods it is for, and what stays without a place."""

    nodes: tuple[tuple[str, Node], ...] = ()
    """Pool and node, in the order of purchase."""
    seats: Mapping[str, tuple[PromisedSeat, ...]] = field(default_factory=dict)
    """Owner of an ask -> a seat per pod. Seats may be on nodes that are in flight."""
    unmet: tuple[Unmet, ...] = ()

    @property
    def price(self) -> int:
        """Micro-dollars per hour of all nodes bought."""
        return sum(node.price_micro_per_hour or 0 for _, node in self.nodes)

    def count_by_pool(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for pool, _ in self.nodes:
            found[pool] = found.get(pool, 0) + 1
        return found
