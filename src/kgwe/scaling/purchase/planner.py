"""The purchase planner: the cheapest nodes on which everything that waits would fit.

Gangs come first, the largest first. A gang for which enough nodes are in flight waits for them. Otherwise it is bought
from one pool, whole or not at all, and only where the scheduler's gang planner accepts it on the simulated nodes. If no
level is required, free nodes of the fleet are used first (`top_up`).
Single pods then take the room that is left on those nodes and on nodes in flight. What still waits is covered by class
(`cover`, or `exact` for few pods).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from kgwe import errors
from kgwe.model.network.domains import Place, build_tree
from kgwe.placement.fleet.snapshot import Snapshot
from kgwe.placement.live.scratch import ScratchFleet
from kgwe.placement.planning.plan import Plan
from kgwe.placement.planning.planner import gang_request, make_plan
from kgwe.placement.pod.fit import Fitter
from kgwe.placement.pod.fit_status import FitStatus
from kgwe.scaling.purchase.cover import Batch, cover_pods
from kgwe.scaling.purchase.filling import NodeFiller
from kgwe.scaling.purchase.pools import PromisedSeat, PurchasePlan, Unmet, UnmetReason
from kgwe.scaling.purchase.top_up import TopUpSearch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from kgwe.model.network.domains import Tree
    from kgwe.placement.fleet.node import Node, Request
    from kgwe.placement.fleet.snapshot import Grant
    from kgwe.placement.live.scratch import Source
    from kgwe.placement.planning.ask import Ask
    from kgwe.scaling.purchase.cover import ExactCover
    from kgwe.scaling.purchase.pools import NodePool
    from kgwe.scaling.purchase.top_up import TopUp

    #: number of the node among those bought for the gang, and the devices of one pod
    GangSeats = tuple[tuple[int, Grant], ...]

#: Name of the level of leaves or placement groups in the simulated network.
LEAF: Final = "leaf"
#: How many pools, the cheapest first, are tried to complete a gang beside free nodes.
_TOP_UPS: Final = 4


@dataclass(frozen=True, slots=True)
class _Simulated:
    """Nodes that do not exist yet, and their network."""

    snapshot: Snapshot
    tree: Tree


@dataclass(slots=True)
class PurchasePlanner:
    """Plans one purchase. `budget` is in micro-dollars per hour; None: no limit."""

    pools: Sequence[NodePool]
    in_flight: Sequence[Node] = ()
    groups: Mapping[str, str] = field(default_factory=dict)
    """Node in flight -> the leaf or placement group it was bought in."""
    levels: Sequence[str] = (LEAF,)
    budget: int | None = None
    exact: ExactCover | None = None
    existing: Source | None = None
    """The fleet as it is: gangs without a required level use what is free there. It is the same afterwards."""
    _bought: list[tuple[str, Node]] = field(default_factory=list)
    _seats: dict[str, tuple[PromisedSeat, ...]] = field(default_factory=dict)
    _unmet: list[Unmet] = field(default_factory=list)
    _count: Counter[str] = field(default_factory=Counter)
    _spent: int = 0
    _fillers: dict[tuple[Request, ...], NodeFiller] = field(default_factory=dict)
    _tried: dict[tuple[Ask, str, int], GangSeats | None] = field(default_factory=dict)
    _undos: list[Callable[[], None]] = field(default_factory=list)

    def plan(self, asks: Sequence[Ask]) -> PurchasePlan:
        """Return what to buy. Call it once."""
        ordered = sorted(asks, key=lambda ask: ask.sort_key())
        gangs = [ask for ask in ordered if ask.pods > 1 or ask.gang is not None]
        gangs.sort(key=lambda ask: (-ask.priority, -_count_pods(ask)))
        coming = self._simulate(self.in_flight, self.groups) if gangs and self.in_flight else None
        for ask in gangs:
            if coming is None or not self._seat_gang(coming, ask):
                self._buy_gang(ask)
        singles: dict[Request, list[Ask]] = {}
        for ask in ordered:
            if ask.pods == 1 and ask.gang is None:
                singles.setdefault(ask.request, []).append(ask)
        if singles:
            self._seat_on_known_nodes(singles)
            self._buy_for_pods({request: waiting for request, waiting in singles.items() if waiting})
        for undo in reversed(self._undos):
            undo()
        return PurchasePlan(tuple(self._bought), dict(self._seats), tuple(self._unmet))

    # --- gangs ------------------------------------------------------------------------------------------

    def _seat_gang(self, coming: ScratchFleet, ask: Ask) -> bool:
        """Seat a gang on nodes in flight, so that it is not bought twice. Return whether it fits there."""
        found = make_plan(coming, ask, explain=False)
        if not isinstance(found, Plan):
            return False
        coming.snapshot.commit_all(found.grants)
        self._seats[ask.owner] = tuple(
            PromisedSeat(seat.node, replace(grant, node=-1))
            for seat, grant in zip(found.seats, found.grants, strict=True)
        )
        return True

    def _simulate(self, nodes: Sequence[Node], groups: Mapping[str, str]) -> ScratchFleet:
        """Return nodes that do not exist yet as a fleet. Without a group, no two are taken to be near each other."""
        places = [
            Place(node.name, (groups[node.name],) * len(self.levels) if node.name in groups else ()) for node in nodes
        ]
        return ScratchFleet(_Simulated(Snapshot.from_nodes(nodes), build_tree(places, tuple(self.levels))))

    def _buy_gang(self, ask: Ask) -> None:
        """Buy the nodes of a gang from the cheapest pool on which the gang planner accepts it."""
        requests = _list_requests(ask)
        offers, reason = self._list_gang_offers(ask, requests)
        if self._top_up_gang(ask, len(requests), min((price for price, _, _ in offers), default=None)):
            return
        for _, nodes, number in sorted(offers):
            pool = self.pools[number]
            key = (ask.without_identity(), pool.name, nodes)
            if key not in self._tried:
                self._tried[key] = self._try_gang(ask, pool, nodes)
            seats = self._tried[key]
            if seats is not None:
                made = [self._buy(pool) for _ in range(nodes)]
                self._seats[ask.owner] = tuple(PromisedSeat(made[node].name, grant) for node, grant in seats)
                return
        if offers:
            reason = UnmetReason.TOPOLOGY
        text = f"nodes are bought for all {len(requests)} pods of the gang, or for none"
        if reason is UnmetReason.NO_POOL and self.pools:
            filler = self._fillers[tuple(dict.fromkeys(requests))]
            text = f"{text}: {'; '.join(filler.describe_misfits(each) for each in filler.classes)}"
        self._refuse(ask.owner, reason, text)

    def _top_up_gang(self, ask: Ask, pods: int, whole: int | None) -> bool:
        """Buy only what a gang needs beside the free nodes of the fleet, if that is cheaper than all of it."""
        required = ask.gang.required if ask.gang is not None else ask.nearness.required
        if self.existing is None or required or not len(self.existing.snapshot):
            return False
        coming = [*self.in_flight, *(node for _, node in self._bought)]
        search = TopUpSearch(self.existing, coming, self._seats.values())
        best: tuple[int, int, TopUp] | None = None
        cheapest = sorted(range(len(self.pools)), key=lambda each: self.pools[each].price)[:_TOP_UPS]
        for number in cheapest:
            pool = self.pools[number]
            most = min(self._room(pool), pods)
            if self.budget is not None and pool.price:
                most = min(most, (self.budget - self._spent) // pool.price)
            found = search.find(ask, pool, self._count[pool.name], most) if most > 0 else None
            if found is not None and (best is None or found.nodes * pool.price < best[0]):
                best = (found.nodes * pool.price, number, found)
        if best is None or (whole is not None and best[0] > whole):
            return False
        _, number, top_up = best
        for _ in range(top_up.nodes):
            self._buy(self.pools[number])
        snapshot = self.existing.snapshot
        for seat in top_up.seats:
            if seat.node in snapshot.index:
                self._undos.append(snapshot.commit(replace(seat.grant, node=snapshot.index[seat.node])))
        self._seats[ask.owner] = top_up.seats
        return True

    def _list_gang_offers(self, ask: Ask, requests: list[Request]) -> tuple[list[tuple[int, int, int]], UnmetReason]:
        """Return price, nodes and pool where the whole gang can be bought, and why not where there is none."""
        classes = tuple(dict.fromkeys(requests))
        filler = self._fillers.get(classes)
        if filler is None:
            filler = self._fillers[classes] = NodeFiller(self.pools, classes)
        wanted = tuple(requests.count(each) for each in classes)
        required = ask.gang.required if ask.gang is not None else ask.nearness.required
        offers, reason = [], UnmetReason.NO_POOL
        for number, pool in enumerate(self.pools):
            nodes = _count_nodes(filler, number, wanted)
            if nodes is None:
                continue
            if nodes > self._room(pool):
                reason = UnmetReason.LIMIT if reason is UnmetReason.NO_POOL else reason
            elif required and nodes > pool.leaf_nodes:
                reason = UnmetReason.TOPOLOGY
            elif self.budget is not None and self._spent + nodes * pool.price > self.budget:
                reason = UnmetReason.BUDGET
            else:
                offers.append((nodes * pool.price, nodes, number))
        return offers, reason

    def _try_gang(self, ask: Ask, pool: NodePool, nodes: int) -> GangSeats | None:
        """Return the seats that the scheduler gives the gang on new nodes of the pool; None where it refuses."""
        made = [pool.make_node(number) for number in range(nodes)]
        groups = dict.fromkeys((node.name for node in made), "group") if pool.leaf_nodes >= nodes else {}
        found = make_plan(self._simulate(made, groups), ask, explain=False)
        if not isinstance(found, Plan):
            return None
        return tuple((grant.node, replace(grant, node=-1)) for grant in found.grants)

    # --- pods -------------------------------------------------------------------------------------------

    def _seat_on_known_nodes(self, singles: dict[Request, list[Ask]]) -> None:
        """Seat pods on nodes in flight and in the room that gangs left; nothing is bought for them."""
        nodes = [*self.in_flight, *(node for _, node in self._bought)]
        if not nodes:
            return
        snapshot = Snapshot.from_nodes(nodes)
        for seats in self._seats.values():
            for seat in seats:
                snapshot.commit(replace(seat.grant, node=snapshot.index[seat.node]))
        fitter = Fitter(snapshot)
        for request in sorted(singles, key=_sort_largest):
            waiting = singles[request]
            codes = fitter.check_nodes(request)
            for number in (codes == FitStatus.FITS).nonzero()[0].tolist():
                while waiting and (grant := fitter.find_grant(request, number)) is not None:
                    snapshot.commit(grant)
                    seat = PromisedSeat(nodes[number].name, replace(grant, node=-1))
                    self._seats[waiting.pop(0).owner] = (seat,)

    def _buy_for_pods(self, singles: dict[Request, list[Ask]]) -> None:
        classes = list(singles)
        filler = NodeFiller(self.pools, classes)
        wanted = tuple(
            len(singles[each]) if filler.alone[:, number].any() else 0 for number, each in enumerate(classes)
        )
        limits = [self._room(pool) for pool in self.pools]
        batches = self.exact.cover(filler, wanted, limits) if self.exact is not None else None
        if batches is None:
            batches = cover_pods(filler, wanted, limits)
        queues = [iter(singles[each]) for each in classes]
        for batch in batches:
            self._take_batch(filler, batch, queues)
        for number, each in enumerate(classes):
            reason = UnmetReason.LIMIT if filler.alone[:, number].any() else UnmetReason.NO_POOL
            if reason is UnmetReason.LIMIT and self.budget is not None and self._is_over_budget():
                reason = UnmetReason.BUDGET
            text = f"no node can be bought for a pod that asks for {_describe(each)}"
            if reason is UnmetReason.NO_POOL and self.pools:
                text = f"{text}: {filler.describe_misfits(each)}"
            for ask in queues[number]:
                self._refuse(ask.owner, reason, text)

    def _take_batch(self, filler: NodeFiller, batch: Batch, queues: Sequence[Iterator[Ask]]) -> None:
        pool = self.pools[batch.pool]
        counts, grants = filler.fill(batch.pool, batch.counts)
        if counts != batch.counts:
            raise errors.InvariantBroken("a filling does not fit its node")
        seats = [(number, replace(grant, node=-1)) for number, grant in grants]
        for _ in range(batch.nodes):
            if self.budget is not None and self._spent + pool.price > self.budget:
                return
            node = self._buy(pool)
            for number, grant in seats:
                self._seats[next(queues[number]).owner] = (PromisedSeat(node.name, grant),)

    # --- books ------------------------------------------------------------------------------------------

    def _room(self, pool: NodePool) -> int:
        return pool.limit - self._count[pool.name]

    def _is_over_budget(self) -> bool:
        cheapest = min((pool.price for pool in self.pools if self._room(pool) > 0), default=0)
        return self.budget is not None and self._spent + cheapest > self.budget

    def _buy(self, pool: NodePool) -> Node:
        node = pool.make_node(self._count[pool.name])
        self._count[pool.name] += 1
        self._spent += pool.price
        self._bought.append((pool.name, node))
        return node

    def _refuse(self, owner: str, reason: UnmetReason, message: str) -> None:
        self._unmet.append(Unmet(owner, reason, message))


def _list_requests(ask: Ask) -> list[Request]:
    roles = gang_request(ask).roles
    return [role.request for role in roles for _ in range(role.replicas)]


def _count_pods(ask: Ask) -> int:
    return sum(role.replicas for role in gang_request(ask).roles)


def _count_nodes(filler: NodeFiller, pool: int, wanted: tuple[int, ...]) -> int | None:
    """Return how many nodes of one pool hold all these pods; None where some of them fit on none."""
    left, nodes = list(wanted), 0
    if any(have and not filler.alone[pool, number] for number, have in enumerate(left)):
        return None
    while any(left):
        counts, _ = filler.fill(pool, tuple(left))
        times = min(have // each for have, each in zip(left, counts, strict=True) if each)
        nodes += times
        left = [have - times * each for have, each in zip(left, counts, strict=True)]
    return nodes


def _sort_largest(request: Request) -> tuple[float, int]:
    gpus = request.gpus
    return (-(gpus.count + gpus.milli / 1000 + gpus.slices / 8), -request.cpu_milli)


def _describe(request: Request) -> str:
    gpus = request.gpus
    if gpus.slices:
        return f"{gpus.slices}×{gpus.profile}"
    if gpus.milli:
        return f"{gpus.milli / 1000:g} of a GPU"
    return f"{gpus.count} GPUs" if gpus.count != 1 else "1 GPU"
