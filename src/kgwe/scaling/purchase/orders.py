"""From a purchase plan to orders: what is asked of the cloud in one call. A gang is one order, all or nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kgwe.scaling.launch_memory import Offer
    from kgwe.scaling.purchase.pools import PurchasePlan


@dataclass(frozen=True, slots=True)
class PurchaseOrder:
    """Equal nodes that are bought in one call."""

    offer: Offer
    count: int
    atomic: bool = False
    is_near: bool = False
    """All of them in one leaf or placement group."""
    owners: tuple[str, ...] = ()


def make_orders(plan: PurchasePlan, offers: Mapping[str, Offer], near: frozenset[str]) -> tuple[PurchaseOrder, ...]:
    """Return the orders of a plan, gangs first. `near`: owners of gangs that must be in one domain.

    `offers`: name of the pool in the plan -> what it offers.
    """
    pool_of = {node.name: pool for pool, node in plan.nodes}
    orders, taken = [], set()
    users: dict[str, list[str]] = {}
    for owner, seats in plan.seats.items():
        for name in dict.fromkeys(seat.node for seat in seats if seat.node in pool_of):
            users.setdefault(name, []).append(owner)
    for owner, seats in plan.seats.items():
        names = [name for name in dict.fromkeys(seat.node for seat in seats) if name in pool_of and name not in taken]
        if len(seats) < 2 or not names:  # noqa: PLR2004 - a gang has several pods
            continue
        pools = {pool_of[name] for name in names}
        for pool in sorted(pools):
            mine = [name for name in names if pool_of[name] == pool]
            orders.append(PurchaseOrder(offers[pool], len(mine), atomic=True, is_near=owner in near, owners=(owner,)))
            taken.update(mine)
    rest: dict[str, list[str]] = {}
    for pool, node in plan.nodes:
        if node.name not in taken:
            rest.setdefault(pool, []).append(node.name)
    for pool, names in rest.items():
        owners = tuple(dict.fromkeys(owner for name in names for owner in users.get(name, ())))
        orders.append(PurchaseOrder(offers[pool], len(names), owners=owners))
    return tuple(orders)
