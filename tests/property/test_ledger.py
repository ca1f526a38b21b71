"""The ledger against plain counting: whatever happens in whatever order, no card has two holders and none is lost."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.support.builders import small_fleet
from tests.support.builders.plans import state
from tests.support.examples import examples

from kgwe.model.devices.assignment import DeviceSet
from kgwe.model.network import domains
from kgwe.model.units import amounts
from kgwe.placement.fleet.node import Gpus, Request
from kgwe.placement.fleet.snapshot import list_gpus
from kgwe.placement.live.holding import Holding
from kgwe.placement.live.ledger import Ledger, seat_key
from kgwe.placement.live.scratch import ScratchFleet
from kgwe.placement.pod.engine import Decision

if TYPE_CHECKING:
    from kgwe.placement.live.fleet import LiveFleet

NODES = st.sampled_from(["n0", "n1", "n2"])
COUNTS = st.integers(0, 5)
MASKS = st.integers(0, 0b11111)
PODS = st.sampled_from(["p0", "p1", "p2", "p3"])
OWNERS = st.sampled_from(["w", "v"])
SEATS = st.tuples(OWNERS, st.integers(0, 2))
NO_TREE = domains.build_tree((), ())


def wants(cards: int) -> dict[str, int]:
    return {amounts.GPU: cards, amounts.CPU: 1000, amounts.PODS: 1}


def recorded(fleet: LiveFleet, key: str) -> Holding:
    found = fleet.recorded_holding(key)
    assert found is not None
    return found


@dataclass
class Model:
    """Who should hold how many cards where; nothing is said of which."""

    nodes: dict[str, int] = field(default_factory=dict)
    """Cards that can be used, of nodes that are there."""
    pods: dict[str, tuple[str, int]] = field(default_factory=dict)
    seats: dict[tuple[str, int], tuple[str, int]] = field(default_factory=dict)
    seat_of: dict[str, tuple[str, int]] = field(default_factory=dict)
    assumed: dict[str, tuple[str, int, int]] = field(default_factory=dict)

    def holders(self) -> dict[str, tuple[str, int]]:
        taken = set(self.seat_of.values())
        return {
            **self.pods,
            **{seat_key(*seat): place for seat, place in self.seats.items() if seat not in taken},
            **{uid: place[:2] for uid, place in self.assumed.items()},
        }

    def set_pod(self, uid: str, node: str, cards: int, seat: tuple[str, int] | None) -> None:
        self.assumed.pop(uid, None)
        self.pods[uid] = (node, cards)
        self.seat_of.pop(uid, None)
        if seat in self.seats and self.seats[seat][0] == node and seat not in self.seat_of.values():
            self.seat_of[uid] = seat

    def reserve(self, owner: str, seats: dict[int, tuple[str, int]]) -> None:
        self.seats = {seat: place for seat, place in self.seats.items() if seat[0] != owner}
        self.seats |= {(owner, number): place for number, place in seats.items()}
        self.seat_of = {
            uid: seat
            for uid, seat in self.seat_of.items()
            if seat in self.seats and self.seats[seat][0] == self.pods[uid][0]
        }


class LedgerMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger()
        self.twin = ScratchFleet(self.ledger.fleet)
        self.model = Model()
        self.now = 0

    @initialize(healthy=st.lists(MASKS, min_size=3, max_size=3))
    def start(self, healthy: list[int]) -> None:
        self.set_nodes(dict(zip(("n0", "n1", "n2"), healthy, strict=True)))

    @rule(there=st.dictionaries(NODES, MASKS))
    def nodes_change(self, there: dict[str, int]) -> None:
        self.set_nodes(there)

    def set_nodes(self, there: dict[str, int]) -> None:
        """Nodes of four cards of which some are sick; with the fifth bit, its first card is cut."""
        kept = {node.name: node for node in self.ledger.fleet.snapshot.nodes}
        made = []
        for name, mask in there.items():
            node = replace(small_fleet.node(0, cut=mask >> 4), name=name, healthy=mask & 0b1111)
            made.append(kept[name] if kept.get(name) == node else node)
        self.ledger.fleet.set_nodes(made, NO_TREE)
        self.model.nodes = {node.name: node.usable.bit_count() for node in made}

    @rule(uid=PODS, node=NODES, cards=COUNTS, seat=st.none() | SEATS, known=MASKS)
    def pod_is_bound(self, uid: str, node: str, cards: int, seat: tuple[str, int] | None, known: int) -> None:
        self.ledger.set_pod(uid, node, wants(cards), seat, given=DeviceSet(known))
        self.model.set_pod(uid, node, cards, seat)

    @rule(uid=PODS, node=NODES, cards=COUNTS, seat=st.none() | SEATS, truth=MASKS)
    def kubelet_says_what_a_pod_has(
        self, uid: str, node: str, cards: int, seat: tuple[str, int] | None, truth: int
    ) -> None:
        """It has those, as far as they are whole and no other pod is said to have them."""
        fleet = self.ledger.fleet
        self.ledger.set_pod(uid, node, wants(cards), seat, observed=DeviceSet(truth))
        self.model.set_pod(uid, node, cards, seat)
        there = fleet.node(node)
        if there is None or not truth:
            return
        others = [recorded(fleet, key) for key in fleet.holders(node) if key != uid]
        certain = [
            fleet.grants(key)[0].gpus for key in fleet.holders(node) if key != uid and recorded(fleet, key).observed
        ]
        if not any(each.observed and each.gpus & truth for each in others):
            own = truth & there.usable & ~sum(certain)
            had = fleet.grants(uid)[0].gpus
            assert (had & own).bit_count() == min(own.bit_count(), cards)

    @rule(uid=PODS, seat=SEATS)
    def pod_takes_its_seat_and_gives_it_back(self, uid: str, seat: tuple[str, int]) -> None:
        """The next of its rank finds the seat as it was: nobody got anything of it in between."""
        if seat not in self.model.seats or seat in self.model.seat_of.values() or uid in self.ledger.fleet:
            return
        planned, before = self.ledger.booked_seats(seat[0])[seat[1]], self.held()
        self.ledger.set_pod(uid, planned.node, planned.amounts, seat)
        own = before.pop(seat_key(*seat))
        assert self.held() == before | {uid: own}
        assert not self.ledger.remove_pod(uid)
        assert self.held() == before | {seat_key(*seat): own}

    def held(self) -> dict[str, int]:
        """Holder -> cards."""
        fleet = self.ledger.fleet
        keys = [key for name in ("n0", "n1", "n2") for key in fleet.holders(name)]
        return {key: sum(grant.gpus.bit_count() for grant in fleet.grants(key)) for key in keys}

    @rule(uid=PODS)
    def pod_goes(self, uid: str) -> None:
        self.ledger.remove_pod(uid)
        self.model.pods.pop(uid, None)
        self.model.seat_of.pop(uid, None)
        self.model.assumed.pop(uid, None)

    @rule(owner=OWNERS, seats=st.dictionaries(st.integers(0, 2), st.tuples(NODES, COUNTS, MASKS)))
    def owner_has_seats(self, owner: str, seats: dict[int, tuple[str, int, int]]) -> None:
        self.ledger.reserve_seats(
            owner, {n: Holding(node, wants(cards), known) for n, (node, cards, known) in seats.items()}
        )
        self.model.reserve(owner, {n: (node, cards) for n, (node, cards, _) in seats.items()})

    @rule(owner=OWNERS)
    def seats_are_told_again(self, owner: str) -> None:
        before = state(self.ledger.fleet.snapshot)
        assert not self.ledger.reserve_seats(owner, self.ledger.booked_seats(owner))
        assert state(self.ledger.fleet.snapshot) == before

    @rule(owner=OWNERS, sizes=st.lists(st.integers(1, 4), min_size=1, max_size=3))
    def plan_is_reserved(self, owner: str, sizes: list[int]) -> None:
        if any(seat[0] == owner for seat in self.model.seats):
            return
        fleet, found, undos = self.ledger.fleet, [], []
        for cards in sizes:
            decision = fleet.engine.decide(Request(Gpus(count=cards), cpu_milli=1000))
            if isinstance(decision, Decision):
                undos.append(fleet.snapshot.commit(decision.grant))
                found.append((cards, decision))
        for undo in reversed(undos):
            undo()
        grants, nodes = [each.grant for _, each in found], [each.name for _, each in found]
        self.ledger.commit_plan(owner, [wants(cards) for cards, _ in found], grants, nodes)
        self.model.reserve(owner, {n: (each.name, cards) for n, (cards, each) in enumerate(found)})

    @rule(owner=OWNERS)
    def seats_are_released(self, owner: str) -> None:
        self.ledger.release_seats(owner)
        self.model.reserve(owner, {})

    @rule(uid=PODS, cards=st.integers(1, 3))
    def pod_is_about_to_be_bound(self, uid: str, cards: int) -> None:
        if uid in self.model.pods:
            return
        self.ledger.forget_pod(uid)
        self.model.assumed.pop(uid, None)
        decision = self.ledger.fleet.engine.decide(Request(Gpus(count=cards), cpu_milli=1000))
        if isinstance(decision, Decision):
            self.ledger.assume_pod(uid, wants(cards), decision.grant, self.now + 2)
            self.model.assumed[uid] = (decision.name, cards, self.now + 2)

    @rule()
    def time_passes(self) -> None:
        self.now += 1
        late = self.ledger.expire_assumed(self.now)
        assert sorted(late) == sorted(uid for uid, (*_, until) in self.model.assumed.items() if until <= self.now)
        for uid in late:
            del self.model.assumed[uid]

    @invariant()
    def check(self) -> None:
        fleet, holders = self.ledger.fleet, self.model.holders()
        assert {key for name in ("n0", "n1", "n2") for key in fleet.holders(name)} == holders.keys()
        for number, node in enumerate(fleet.snapshot.nodes):
            keys = fleet.holders(node.name)
            cards = [card for key in keys for grant in fleet.grants(key) for card in list_gpus(grant.gpus)]
            assert len(cards) == len(set(cards)), "two holders of one card"
            wanted = sum(count for name, count in holders.values() if name == node.name)
            assert len(cards) == min(wanted, self.model.nodes[node.name]), "a card is free that somebody holds"
            assert node.usable.bit_count() - len(cards) == int(fleet.snapshot.free[number]).bit_count()
            assert node.cpu_milli - 1000 * len(keys) == fleet.snapshot.cpu_milli[number]
        assert state(fleet.recount()) == state(fleet.snapshot)
        self.twin.sync()
        assert state(self.twin.snapshot) == state(fleet.snapshot)


TestLedger = LedgerMachine.TestCase
TestLedger.settings = examples(40, stateful_step_count=30)
