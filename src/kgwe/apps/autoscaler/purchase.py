"""Scale-up of one policy: the plan, within the limits of pools, spot shares and what the cloud refused lately."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from kgwe import errors
from kgwe.placement.fleet.snapshot import Snapshot
from kgwe.placement.planning.planner import divide_ask
from kgwe.placement.pod.fit import Fitter
from kgwe.scaling.lifecycle import EXISTING
from kgwe.scaling.purchase.orders import PurchaseOrder, make_orders
from kgwe.scaling.purchase.planner import LEAF, PurchasePlanner
from kgwe.scaling.purchase.pools import NodePool, PurchasePlan, Unmet
from kgwe.scaling.templates import make_copy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kgwe.apps.autoscaler.census import Census
    from kgwe.apps.autoscaler.demand import Demand
    from kgwe.apps.autoscaler.pool_offers import PolicyOffers, PoolOffer
    from kgwe.kube.api.kgwe.autoscalingpolicy import AutoscalingPolicy
    from kgwe.placement.fleet.node import Node
    from kgwe.placement.live.scratch import ScratchFleet
    from kgwe.placement.planning.ask import Ask
    from kgwe.scaling.launch_memory import LaunchMemory, Offer

#: How often a plan that exceeds a common limit is made again with less.
_ATTEMPTS: Final = 4


@dataclass(frozen=True, slots=True)
class ScaleUp:
    """What to buy for a policy, and why the rest is not bought."""

    orders: tuple[PurchaseOrder, ...] = ()
    unmet: tuple[Unmet, ...] = ()
    seated: frozenset[str] = frozenset()
    """Owners that the plan, or nodes in flight, have a place for."""


class PurchaseRound:
    """Plans one purchase of one policy."""

    def __init__(
        self, policy: AutoscalingPolicy, offers: PolicyOffers, census: Census, memory: LaunchMemory, now_s: float
    ) -> None:
        self._policy = policy
        self._census = census
        self._usable = [
            each for each in offers.offers if memory.find_block(each.offer, now_s, policy.metadata.generation) is None
        ]
        self._all = offers
        self._by_name = {str(each.offer): each for each in self._usable}
        self._room = self._count_room()

    def _count_room(self) -> dict[str, int]:
        """Pool -> nodes that may still be bought, within the pool's and the policy's limits."""
        spec, census = self._policy.spec, self._census
        total = sum(each.stage in EXISTING for each in census.nodes)
        left = max(spec.maxNodes - total, 0)
        return {pool.name: min(max(pool.maxSize - census.count_pool(pool.name), 0), left) for pool in spec.nodePools}

    # --- planning ---------------------------------------------------------------------------------------

    def plan(self, demand: Demand) -> ScaleUp:
        """Return what to buy for what waits. Pools of higher priority come first."""
        asks = tuple(self._divide(ask, demand) for ask in demand.asks)
        floors = self._list_floor_orders()
        if not asks:
            return ScaleUp(orders=floors)
        near = frozenset(ask.owner for ask in asks if _is_near(ask))
        in_flight = self._list_in_flight()
        priorities = sorted({each.pool.priority for each in self._usable}, reverse=True)
        orders, waiting = list(floors), asks
        seated: set[str] = set()
        unmet: tuple[Unmet, ...] = ()
        for least in priorities or [0]:
            offers = [each for each in self._usable if each.pool.priority == least]
            plan, bought = self._plan_within_limits(offers, waiting, in_flight, demand.fleet)
            orders += make_orders(plan, {str(each.offer): each.offer for each in offers}, near)
            for pool, _ in plan.nodes:
                self._room[self._by_name[pool].offer.pool] -= 1
            seated |= plan.seats.keys()
            unmet = plan.unmet
            waiting = tuple(ask for ask in waiting if ask.owner not in plan.seats)
            in_flight = {**in_flight, **bought}
        return ScaleUp(tuple(orders), unmet, frozenset(seated))

    def _plan_within_limits(
        self,
        offers: Sequence[PoolOffer],
        asks: Sequence[Ask],
        in_flight: dict[str, tuple[Node, str]],
        existing: ScratchFleet,
    ) -> tuple[PurchasePlan, dict[str, tuple[Node, str]]]:
        """Plan, and plan again with less while a limit that several offers share is exceeded."""
        levels = tuple(level.name for level in existing.tree.levels) or (LEAF,)
        limits = {str(each.offer): self._room[each.offer.pool] for each in offers}
        plan = PurchasePlan()
        for _ in range(_ATTEMPTS):
            pools = [
                NodePool(str(each.offer), each.template, limits[str(each.offer)], each.pool.nodesPerLeaf)
                for each in offers
            ]
            planner = PurchasePlanner(
                pools,
                [node for node, _ in in_flight.values()],
                {name: group for name, (_, group) in in_flight.items() if group},
                levels,
                existing=existing,
            )
            plan = planner.plan(asks)
            exceeded = self._find_exceeded(plan)
            if not exceeded:
                break
            limits |= exceeded
        else:
            if self._find_exceeded(plan):
                raise errors.InvariantBroken("the plan does not come within the limits of its pools")
        return plan, {node.name: (node, "") for _, node in plan.nodes}

    def _find_exceeded(self, plan: PurchasePlan) -> dict[str, int]:
        """Return smaller limits for offers of pools that would grow too far, or get too much spot."""
        counts = Counter(pool for pool, _ in plan.nodes)
        by_pool: dict[str, list[str]] = {}
        for name in counts:
            by_pool.setdefault(self._by_name[name].offer.pool, []).append(name)
        found: dict[str, int] = {}
        left = self._policy.spec.maxNodes - sum(each.stage in EXISTING for each in self._census.nodes)
        for pool, names in by_pool.items():
            room = min(self._room[pool], max(left, 0))
            found |= _trim(names, counts, room)
            left -= sum(min(counts[name], found.get(name, counts[name])) for name in names)
            found |= self._trim_spot(pool, names, counts)
        return found

    def _trim_spot(self, pool: str, names: Sequence[str], counts: Counter[str]) -> dict[str, int]:
        """Return limits that keep the spot share of a mixed pool."""
        described = self._by_name[names[0]].pool
        if described.capacityType:
            return {}
        target = described.spotPercentage
        share = self._policy.spec.spotInstancePercentage if target is None else target
        total = self._census.count_pool(pool) + sum(counts[name] for name in names)
        # At least one: a pod that runs on spot only must not wait for ever for a share of one node.
        allowed = max(math.floor(share * total), 1 if share > 0 else 0) - self._census.count_capacity(pool, "spot")
        spot = [name for name in names if self._by_name[name].offer.capacity_type == "spot"]
        return _trim(spot, counts, max(allowed, 0))

    # --- what is known ----------------------------------------------------------------------------------

    def _list_in_flight(self) -> dict[str, tuple[Node, str]]:
        """Name -> a node that comes, as it will be, and its placement group."""
        found = {}
        for each in self._census.nodes:
            offer = self._find_offer(each.offer)
            if each.is_in_flight and offer is not None:
                found[each.key] = (make_copy(offer.template, each.key), each.group)
        return found

    def _find_offer(self, offer: Offer) -> PoolOffer | None:
        same = (each for each in self._all.offers if each.offer.pool == offer.pool)
        return self._all.find(offer) or next(same, None)

    def _divide(self, ask: Ask, demand: Demand) -> Ask:
        """Divide the GPUs of an ask over pods, by the nodes that there are and could be."""
        if not ask.divisible:
            return ask
        nodes = [*demand.fleet.snapshot.nodes, *(each.template for each in self._all.offers)]
        return divide_ask(Fitter(Snapshot.from_nodes(nodes)), ask)

    def _list_floor_orders(self) -> tuple[PurchaseOrder, ...]:
        """Return what pools and the policy must have at least, whatever waits."""
        orders = []
        spec, census = self._policy.spec, self._census
        total = sum(each.stage in EXISTING for each in census.nodes)
        for pool in spec.nodePools:
            missing = min(pool.minSize - census.count_pool(pool.name), self._room[pool.name])
            if missing > 0 and (order := self._order_cheapest(missing, pool.name)) is not None:
                orders.append(order)
                total += missing
        if total < spec.minNodes and (order := self._order_cheapest(spec.minNodes - total)) is not None:
            orders.append(order)
        return tuple(orders)

    def _order_cheapest(self, count: int, pool: str = "") -> PurchaseOrder | None:
        offers = [each for each in self._usable if (not pool or each.offer.pool == pool)]
        offers = [each for each in offers if self._room[each.offer.pool] > 0]
        if not offers:
            return None
        best = min(offers, key=lambda each: (-each.pool.priority, each.price_micro, str(each.offer)))
        count = min(count, self._room[best.offer.pool])
        self._room[best.offer.pool] -= count
        return PurchaseOrder(best.offer, count, owners=("minSize",))


def _trim(names: Sequence[str], counts: Counter[str], room: int) -> dict[str, int]:
    """Return limits for these offers whose sum is within the room; empty: it is already."""
    if sum(counts[name] for name in names) <= room:
        return {}
    found = {}
    for name in names:
        found[name] = min(counts[name], room)
        room -= found[name]
    return found


def _is_near(ask: Ask) -> bool:
    return bool(ask.gang.required if ask.gang is not None else ask.nearness.required)


def limit_orders(orders: Sequence[PurchaseOrder], most: int) -> tuple[PurchaseOrder, ...]:
    """Return orders of at most so many nodes in all; a gang is kept whole or left out."""
    kept = []
    for order in orders:
        if order.count <= most:
            kept.append(order)
            most -= order.count
        elif not order.atomic and most > 0:
            kept.append(replace(order, count=most))
            most = 0
    return tuple(kept)
