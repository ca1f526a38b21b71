"""Shares of cards against plain counting: no card has more holders than it is divided into, and none is forgotten."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.support.builders import small_fleet
from tests.support.builders.plans import state
from tests.support.examples import examples

from kgwe.model.devices.assignment import DeviceSet
from kgwe.model.network import domains
from kgwe.model.units import amounts
from kgwe.placement.fleet.node import Gpus, Request, share_milli
from kgwe.placement.fleet.snapshot import list_gpus
from kgwe.placement.live.holding import Holding
from kgwe.placement.live.ledger import Ledger, seat_key
from kgwe.placement.pod.engine import Decision

if TYPE_CHECKING:
    from kgwe.placement.live.fleet import LiveFleet

NODES = st.sampled_from(["n0", "n1"])
PIECES = st.sampled_from([0, 2, 3])
MASKS = st.integers(0, 0b1111)
CARDS = st.integers(0, 3)
PODS = st.sampled_from([f"p{number}" for number in range(12)])
SEATS = st.tuples(st.sampled_from(["w", "v"]), st.integers(0, 3))
WANTED = {amounts.SHARED: 1, amounts.CPU: 100, amounts.PODS: 1}


def recorded(fleet: LiveFleet, key: str) -> Holding:
    found = fleet.recorded_holding(key)
    assert found is not None
    return found


class ShareMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger()
        self.now = 0

    @initialize(there=st.fixed_dictionaries({"n0": st.tuples(PIECES, MASKS), "n1": st.tuples(PIECES, MASKS)}))
    def start(self, there: dict[str, tuple[int, int]]) -> None:
        self.nodes_change(there)

    @rule(there=st.dictionaries(NODES, st.tuples(PIECES, MASKS)))
    def nodes_change(self, there: dict[str, tuple[int, int]]) -> None:
        kept = {node.name: node for node in self.ledger.fleet.snapshot.nodes}
        made = []
        for name, (pieces, healthy) in there.items():
            node = replace(small_fleet.node(0), name=name, healthy=healthy, shares_per_gpu=pieces)
            made.append(kept[name] if kept.get(name) == node else node)
        self.ledger.fleet.set_nodes(made, domains.build_tree((), ()))

    @rule(uid=PODS, node=NODES, card=CARDS, seat=st.none() | SEATS)
    def pod_is_bound(self, uid: str, node: str, card: int, seat: tuple[str, int] | None) -> None:
        self.ledger.set_pod(uid, node, WANTED, seat, given=DeviceSet(1 << card))

    @rule(uid=PODS, node=NODES, card=CARDS)
    def kubelet_says_what_a_pod_has(self, uid: str, node: str, card: int) -> None:
        """It has that, unless others of whom it is said fill the card."""
        self.ledger.set_pod(uid, node, WANTED, observed=DeviceSet(1 << card))
        fleet = self.ledger.fleet
        there = fleet.node(node)
        if there is None or not there.shares_per_gpu or not there.usable >> card & 1:
            return
        told = [key for key in fleet.holders(node) if key != uid and recorded(fleet, key).observed]
        if sum(fleet.grants(key)[0].whole_or_shared == 1 << card for key in told) < there.shares_per_gpu:
            assert fleet.grants(uid)[0].whole_or_shared == 1 << card

    @rule(uid=PODS)
    def pod_goes(self, uid: str) -> None:
        self.ledger.remove_pod(uid)

    @rule(owner=st.sampled_from(["w", "v"]), seats=st.dictionaries(st.integers(0, 3), st.tuples(NODES, CARDS)))
    def owner_has_seats(self, owner: str, seats: dict[int, tuple[str, int]]) -> None:
        self.ledger.reserve_seats(owner, {n: Holding(node, WANTED, 1 << card) for n, (node, card) in seats.items()})

    @rule(uid=PODS, pieces=st.sampled_from([2, 3]))
    def a_pod_is_placed(self, uid: str, pieces: int) -> None:
        fleet = self.ledger.fleet
        if uid in fleet or not len(fleet.snapshot):
            return
        found = fleet.engine.decide(Request(Gpus(milli=share_milli(pieces)), cpu_milli=100))
        if isinstance(found, Decision):
            assert fleet.snapshot.nodes[found.node].shares_per_gpu == pieces
            self.now += 1
            self.ledger.assume_pod(uid, WANTED, found.grant, self.now + 5)
        else:
            for number, node in enumerate(fleet.snapshot.nodes):
                left = fleet.snapshot.milli[number]
                assert node.shares_per_gpu != pieces or (left < share_milli(pieces)).all()

    @rule()
    def time_passes(self) -> None:
        self.now += 3
        self.ledger.expire_assumed(self.now)

    @invariant()
    def no_card_has_more_holders_than_shares(self) -> None:
        fleet = self.ledger.fleet
        for node in fleet.snapshot.nodes:
            on = self.on_cards(node.name)
            # Where cards are no longer divided, whoever is known to have a part of one keeps others away.
            assert not on or max(on.values()) <= (node.shares_per_gpu or 1)
            assert not any(not node.usable >> card & 1 for card in on)

    @invariant()
    def whoever_can_have_one_has_one(self) -> None:
        fleet = self.ledger.fleet
        for node in fleet.snapshot.nodes:
            on = self.on_cards(node.name)
            full = (
                sum(1 << card for card, count in on.items() if count == node.shares_per_gpu)
                if node.shares_per_gpu
                else -1
            )
            for key in fleet.holders(node.name):
                told, mine = recorded(fleet, key), self.cards(key)
                may_have = told.gpus if told.observed else -1
                assert not mine & ~may_have, "who is known to have a card is on no other"
                assert mine or not node.usable & ~full & may_have

    def cards(self, key: str) -> int:
        mask = 0
        for grant in self.ledger.fleet.grants(key):
            mask |= grant.whole_or_shared
        return mask

    def on_cards(self, node: str) -> Counter[int]:
        return Counter(card for key in self.ledger.fleet.holders(node) for card in list_gpus(self.cards(key)))

    @invariant()
    def the_books_are_what_booking_afresh_gives(self) -> None:
        fleet = self.ledger.fleet
        assert state(fleet.recount()) == state(fleet.snapshot)
        assert all(seat_key(*seat) in fleet or seat in self.ledger._taken for seat in self.seats())

    def seats(self) -> list[tuple[str, int]]:
        return [(owner, number) for owner in self.ledger.owners() for number in self.ledger.booked_seats(owner)]


TestShares = ShareMachine.TestCase
TestShares.settings = examples(60, stateful_step_count=40)
