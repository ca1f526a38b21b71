"""Scale-up of one policy: the plan, within the limits of pools, spot shares and what the cloud refused lately."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from kgwe.placement.fleet.snapshot import Snapshot
from kgwe.placement.planning.planner import divide_ask
from kgwe.placement.pod.fit import Fitter
from kgwe.scaling.lifecycle import EXISTING
from kgwe.scaling.purchase.orders import PurchaseOrder, make_orders
from kgwe.scaling.purchase.planner import LEAF, PurchasePlanner
from kgwe.scaling.purchase.pools import NodePool, PurchasePlan, Unmet, UnmetReason
from kgwe.scaling.spot.deadline import Choice
from kgwe.scaling.templates import make_copy

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kgwe.apps.autoscaler.census import Census
    from kgwe.apps.autoscaler.demand import Demand
    from kgwe.apps.autoscaler.pool_offers import PolicyOffers, PoolOffer
    from kgwe.apps.autoscaler.spot.advisor import SpotAdvisor
    from kgwe.kube.api.kgwe.autoscalingpolicy import AutoscalingPolicy
    from kgwe.placement.fleet.node import Node
    from kgwe.placement.live.scratch import ScratchFleet
    from kgwe.placement.planning.ask import Ask
    from kgwe.scaling.launch_memory import LaunchMemory, Offer
    from kgwe.scaling.spot.choice import Verdict


@dataclass(frozen=True, slots=True)
class ScaleUp:
    """What to buy for a policy, and why the rest is not bought."""

    orders: tuple[PurchaseOrder, ...] = ()
    unmet: tuple[Unmet, ...] = ()
    seated: frozenset[str] = frozenset()
    """Owners that the plan, or nodes in flight, have a place for."""
    verdicts: Mapping[str, Verdict] = field(default_factory=dict)
    """Owner -> spot, wait or on-demand, and why."""

    @property
    def settled(self) -> frozenset[str]:
        """Owners for which no other policy buys: they have a place, or wait for spot."""
        return self.seated | {owner for owner, each in self.verdicts.items() if each.choice is Choice.WAIT}


class PurchaseRound:
    """Plans one purchase of one policy."""

    def __init__(
        self,
        policy: AutoscalingPolicy,
        offers: PolicyOffers,
        census: Census,
        memory: LaunchMemory,
        now_s: float,
        *,
        advisor: SpotAdvisor,
    ) -> None:
        self._policy = policy
        self._advisor = advisor
        self._census = census
        self._usable = [
            each for each in offers.offers if memory.find_block(each.offer, now_s, policy.metadata.generation) is None
        ]
        self._all = offers
        self._by_name = {str(each.offer): each for each in self._usable}
        self._left = max(policy.spec.maxNodes - sum(each.stage in EXISTING for each in census.nodes), 0)
        self._room = self._count_room()

    def _count_room(self) -> dict[str, int]:
        """Pool -> nodes that may still be bought, within the pool's and the policy's limits."""
        spec, census = self._policy.spec, self._census
        return {
            pool.name: min(max(pool.maxSize - census.count_pool(pool.name), 0), self._left) for pool in spec.nodePools
        }

    # --- planning ---------------------------------------------------------------------------------------

    def plan(self, demand: Demand) -> ScaleUp:
        """Return what to buy for what waits. Pools of higher priority come first."""
        asks = tuple(self._divide(ask, demand) for ask in demand.asks)
        floors = self._list_floor_orders()
        if not asks:
            return ScaleUp(orders=floors)
        # What is bought for least sizes serves what waits as well.
        in_flight = self._list_in_flight() | self._copy_orders(floors)
        found = self._plan_advised(asks, in_flight, demand.fleet, demand.placed)
        return replace(found, orders=(*floors, *found.orders))

    def _plan_advised(
        self,
        asks: tuple[Ask, ...],
        in_flight: dict[str, tuple[Node, str]],
        existing: ScratchFleet,
        placed: frozenset[str],
    ) -> ScaleUp:
        """Plan with the choice between spot, waiting and on-demand. Spot above the share of a pool counts as away."""
        coming = self._find_coming(asks, in_flight, existing)
        ordinary = tuple(ask for ask in asks if ask.owner in coming)
        others = tuple(ask for ask in asks if ask.owner not in coming)
        room, left = dict(self._room), self._left
        refused: set[str] = set()
        while True:
            advised = self._advisor.advise(
                others, self._usable, self._all.offers, refused=refused, coming=ordinary, placed=placed
            )
            found = self._plan_tiers((*ordinary, *advised.asks), in_flight, existing)
            limited = {each.owner for each in found.unmet if each.reason is UnmetReason.LIMIT} - refused
            limited &= {owner for owner, each in advised.verdicts.items() if each.choice is Choice.SPOT}
            if not limited:
                break
            refused |= limited
            self._room, self._left = dict(room), left
        waiting = tuple(
            Unmet(owner, UnmetReason.WAITS_FOR_SPOT, each.message) for owner, each in advised.waiting.items()
        )
        return replace(found, unmet=(*found.unmet, *waiting), verdicts=advised.verdicts)

    def _find_coming(
        self, asks: tuple[Ask, ...], in_flight: dict[str, tuple[Node, str]], existing: ScratchFleet
    ) -> frozenset[str]:
        """Return owners whose nodes are coming: they keep them, whatever becomes of spot meanwhile."""
        owners = {ask.owner for ask in asks if self._advisor.is_advised(ask)} if in_flight else set()
        if not owners:
            return frozenset()
        limits = {str(each.offer): min(self._room[each.offer.pool], self._left) for each in self._usable}
        plan = self._plan_once(self._usable, limits, asks, in_flight, existing)
        fresh = {node.name for _, node in plan.nodes}
        return frozenset(
            owner for owner, seats in plan.seats.items() if owner in owners and fresh.isdisjoint(s.node for s in seats)
        )

    def _plan_tiers(
        self, asks: tuple[Ask, ...], in_flight: dict[str, tuple[Node, str]], existing: ScratchFleet
    ) -> ScaleUp:
        near = frozenset(ask.owner for ask in asks if _is_near(ask))
        priorities = sorted({each.pool.priority for each in self._usable}, reverse=True)
        orders: list[PurchaseOrder] = []
        waiting, seated = asks, set[str]()
        unmet: tuple[Unmet, ...] = ()
        for least in priorities or [0]:
            offers = [each for each in self._usable if each.pool.priority == least]
            plan = self._plan_tier(offers, waiting, in_flight, existing)
            orders += make_orders(plan, {str(each.offer): each.offer for each in offers}, near)
            for pool, _ in plan.nodes:
                self._room[self._by_name[pool].offer.pool] -= 1
                self._left -= 1
            seated |= plan.seats.keys()
            unmet = plan.unmet
            waiting = tuple(ask for ask in waiting if ask.owner not in plan.seats)
            # What found no room on nodes in flight, beside the asks before it, finds none there now.
            in_flight = {}
        return ScaleUp(tuple(orders), unmet, frozenset(seated))

    def _plan_tier(
        self,
        offers: Sequence[PoolOffer],
        asks: Sequence[Ask],
        in_flight: dict[str, tuple[Node, str]],
        existing: ScratchFleet,
    ) -> PurchasePlan:
        """Plan with offers of one priority. Where a mixed pool would get too much spot, plan again with less of it."""
        limits = {str(each.offer): min(self._room[each.offer.pool], self._left) for each in offers}
        plan = cut_plan(
            self._plan_once(offers, limits, asks, in_flight, existing), self._pool_of, self._room, self._left
        )
        fewer = self._limit_spot(plan)
        if not fewer:
            return plan
        limits |= fewer
        return cut_plan(
            self._plan_once(offers, limits, asks, in_flight, existing), self._pool_of, self._room, self._left
        )

    def _plan_once(
        self,
        offers: Sequence[PoolOffer],
        limits: Mapping[str, int],
        asks: Sequence[Ask],
        in_flight: dict[str, tuple[Node, str]],
        existing: ScratchFleet,
    ) -> PurchasePlan:
        pools = [
            NodePool(str(each.offer), each.template, limits[str(each.offer)], each.pool.nodesPerLeaf) for each in offers
        ]
        planner = PurchasePlanner(
            pools,
            [node for node, _ in in_flight.values()],
            {name: group for name, (_, group) in in_flight.items() if group},
            tuple(level.name for level in existing.tree.levels) or (LEAF,),
            existing=existing,
        )
        return planner.plan(asks)

    def _pool_of(self, name: str) -> str:
        return self._by_name[name].offer.pool

    def _limit_spot(self, plan: PurchasePlan) -> dict[str, int]:
        """Return limits for the spot offers of mixed pools that would get more spot than their share."""
        counts = Counter(pool for pool, _ in plan.nodes)
        found: dict[str, int] = {}
        for described in self._policy.spec.nodePools:
            names = [name for name, each in self._by_name.items() if each.offer.pool == described.name]
            spot = [name for name in names if self._by_name[name].offer.capacity_type == "spot"]
            if described.capacityType or not sum(counts[name] for name in spot):
                continue
            target = described.spotPercentage
            share = self._policy.spec.spotInstancePercentage if target is None else target
            total = self._census.count_pool(described.name) + sum(counts[name] for name in names)
            # At least one: a pod that runs on spot only must not wait for ever for a share of one node.
            most = max(math.floor(share * total), 1 if share > 0 else 0)
            allowed = max(most - self._census.count_capacity(described.name, "spot"), 0)
            if sum(counts[name] for name in spot) > allowed:
                for name in spot:
                    found[name] = min(counts[name], allowed)
                    allowed -= found[name]
        return found

    # --- what is known ----------------------------------------------------------------------------------

    def _list_in_flight(self) -> dict[str, tuple[Node, str]]:
        """Name -> a node that comes, as it will be, and its placement group."""
        found = {}
        for each in self._census.nodes:
            offer = self._find_offer(each.offer)
            if each.is_in_flight and offer is not None:
                found[each.key] = (make_copy(offer.template, each.key), each.group)
        return found

    def _copy_orders(self, orders: Sequence[PurchaseOrder]) -> dict[str, tuple[Node, str]]:
        """Name -> a node of these orders, as it will be, without a placement group."""
        found = {}
        for position, order in enumerate(orders):
            template = self._by_name[str(order.offer)].template
            for number in range(order.count):
                name = f"{order.offer}/least-{position}-{number}"
                found[name] = (make_copy(template, name), "")
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
                total += order.count
        if total < spec.minNodes and (order := self._order_cheapest(spec.minNodes - total)) is not None:
            orders.append(order)
        return tuple(orders)

    def _order_cheapest(self, count: int, pool: str = "") -> PurchaseOrder | None:
        offers = [each for each in self._usable if (not pool or each.offer.pool == pool)]
        offers = [each for each in offers if self._room[each.offer.pool] > 0]
        if not offers:
            return None
        best = min(offers, key=lambda each: (-each.pool.priority, each.price_micro, str(each.offer)))
        count = min(count, self._room[best.offer.pool], self._left)
        if count <= 0:
            return None
        self._room[best.offer.pool] -= count
        self._left -= count
        return PurchaseOrder(best.offer, count, owners=("minSize",))


def cut_plan(plan: PurchasePlan, pool_of: Callable[[str], str], room: Mapping[str, int], left: int) -> PurchasePlan:
    """Return the plan without what exceeds limits that several offers share. The nodes of a gang stay or go together.

    `room`: pool -> nodes that may be bought. `left`: nodes that may be bought in all.
    """
    owner_of = {
        seat.node: owner for owner, seats in plan.seats.items() if len(seats) > 1 for seat in seats
    }  # a node of a gang, whichever other pods use the rest of it
    units: dict[str, list[tuple[str, Node]]] = {}
    for pool, node in plan.nodes:
        units.setdefault(owner_of.get(node.name, f"/{node.name}"), []).append((pool, node))
    free, kept = dict(room), []
    for nodes in units.values():
        wanted = Counter(pool_of(pool) for pool, _ in nodes)
        if len(nodes) <= left and all(count <= free[pool] for pool, count in wanted.items()):
            kept += nodes
            left -= len(nodes)
            for pool, count in wanted.items():
                free[pool] -= count
    gone = {node.name for _, node in plan.nodes} - {node.name for _, node in kept}
    if not gone:
        return plan
    seats = {owner: held for owner, held in plan.seats.items() if not any(seat.node in gone for seat in held)}
    dropped = tuple(
        Unmet(owner, UnmetReason.LIMIT, "the pools or the policy may not have that many nodes")
        for owner in plan.seats
        if owner not in seats
    )
    used = {seat.node for held in seats.values() for seat in held}
    needed = tuple((pool, node) for pool, node in kept if node.name in used)
    return PurchasePlan(needed, seats, (*plan.unmet, *dropped))


def _is_near(ask: Ask) -> bool:
    return bool(ask.gang.required if ask.gang is not None else ask.nearness.required)
