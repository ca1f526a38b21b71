"""Which piece of a shared card a kubelet is advised to give."""

from __future__ import annotations

from kgwe.placement.devices import shared
from kgwe.placement.devices.whole import Ask, Stock


def stock(cards: int = 3, each: int = 4) -> Stock:
    names = {f"GPU-{card}::{piece}": (card, piece) for card in range(cards) for piece in range(each)}
    return Stock(
        {name: card for name, (card, _) in names.items()},
        {name: piece for name, (_, piece) in names.items()},
        is_shared=True,
    )


STOCK = stock()


def of(*cards: int) -> frozenset[str]:
    """All pieces of the cards: a plan names cards."""
    return frozenset(name for name, card in STOCK.gpus.items() if card in cards)


def advise(asks, free=STOCK.gpus, size=1, **more):
    return shared.advise_shares(asks, STOCK, free, size, **more).devices


def planned(pod, card, **more):
    return Ask(pod, (1,), of(card), **more)


class TestPlans:
    def test_a_piece_of_the_planned_card(self):
        assert advise([planned("a", 2)]) == ("GPU-2::0",)

    def test_pieces_are_given_by_number(self):
        assert advise([planned("a", 2)], free=["GPU-2::3", "GPU-2::1"]) == ("GPU-2::1",)

    def test_several_pods_may_be_planned_on_one_card(self):
        asks = [planned("a", 1, since="1", advised=1), planned("b", 1, since="2")]
        assert advise(asks, promised={"a": frozenset({"GPU-1::0"})}) == ("GPU-1::1",)

    def test_where_the_card_has_none_left_one_of_another_that_nobody_is_planned_on(self):
        asks = [planned("a", 0, since="1"), *(planned(f"b{i}", 1, since="2") for i in range(4))]
        assert advise(asks, free=of(1, 2)) == ("GPU-2::0",)

    def test_a_piece_that_was_promised_is_not_promised_again(self):
        asks = [planned("a", 0, since="1", advised=1), planned("b", 0, since="2")]
        free = {"GPU-0::0", *of(1)}
        assert advise(asks, free=free, promised={"a": frozenset({"GPU-0::0"})}) == ("GPU-1::0",)

    def test_unless_there_is_nothing_else(self):
        assert advise([planned("b", 0)], free=["GPU-1::0"], promised={"": frozenset({"GPU-1::0"})}) == ("GPU-1::0",)

    def test_what_an_init_container_had_stays(self):
        assert advise([planned("a", 1)], free=of(1), must=["GPU-1::2"]) == ("GPU-1::2",)


class TestWithoutAPlan:
    ASK = Ask("plain", (1,), since="0")

    def test_the_card_that_has_fewest_left(self):
        assert advise([self.ASK], free=of(0) | {"GPU-1::3", "GPU-2::1", "GPU-2::2"}) == ("GPU-1::3",)

    def test_what_others_are_planned_to_take_counts_as_gone(self):
        """When the pod that is planned there has come, that card has three of four left: fewer than the others."""
        assert advise([self.ASK, planned("a", 1, since="1")]) == ("GPU-1::0",)
        assert advise([self.ASK], to_come=[planned("a", 2)]) == ("GPU-2::0",)

    def test_a_card_that_others_take_all_of_is_left_to_them(self):
        asks = [self.ASK, planned("a", 0, since="1"), planned("b", 0, since="2")]
        assert advise(asks, free={"GPU-0::1", "GPU-0::3", *of(1)}) == ("GPU-1::0",)

    def test_unless_nothing_else_is_left(self):
        asks = [self.ASK, planned("a", 0, since="1")]
        assert advise(asks, free=["GPU-0::1"]) == ("GPU-0::1",)

    def test_a_promise_is_not_counted_on_top_of_the_plan(self):
        """One of the two pieces of card 0 is kept for a pod that is planned there; the other is anybody's."""
        asks = [self.ASK, planned("a", 0, since="1", advised=1)]
        free = {"GPU-0::0", "GPU-0::1", *of(1)}
        assert advise(asks, free=free, promised={"a": frozenset({"GPU-0::0"})}) == ("GPU-0::1",)

    def test_a_pod_of_several_containers_takes_several(self):
        asks = [self.ASK, Ask("a", (1, 1), of(0), since="1", lacks=2)]
        assert advise(asks, free={"GPU-0::0", "GPU-0::1", *of(1)}) == ("GPU-1::0",)

    def test_nobody_known_asks(self):
        found = shared.advise_shares([], STOCK, STOCK.gpus, 1)
        assert (found.devices, found.pod) == (("GPU-0::0",), "")
