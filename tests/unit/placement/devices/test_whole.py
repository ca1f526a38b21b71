"""Which devices a kubelet is advised to give."""

from __future__ import annotations

import itertools

import pytest

from kgwe.model.gpu.topology import Slot, Wiring
from kgwe.placement.devices import whole
from kgwe.placement.devices.whole import Ask, Stock

IDS = tuple(f"GPU-{i}" for i in range(8))


def pairs() -> Wiring:
    """Eight cards, NVLink between two neighbours each."""
    return Wiring(
        slots=tuple(Slot(f"0000:0{i}:00.0", numa=i // 4) for i in range(8)),
        nvlink_version=4,
        mesh=tuple((i, i + 1, 4) for i in range(0, 8, 2)),
    )


STOCK = Stock({each: i for i, each in enumerate(IDS)}, wiring=pairs())


def some(*numbers: int) -> frozenset[str]:
    return frozenset(IDS[i] for i in numbers)


def advise(asks, size, free=IDS, must=(), spoken_for=(), stock=STOCK):
    return whole.advise_devices(asks, stock, free, size, must=must, spoken_for=spoken_for)


class TestPlans:
    def test_the_pod_that_lacks_devices_gets_those_of_its_plan(self):
        advice = advise([Ask("a", (2,), some(3, 6))], 2)
        assert (advice.devices, advice.pod) == (("GPU-3", "GPU-6"), "a")

    def test_the_size_tells_pods_apart(self):
        asks = [Ask("a", (2,), some(0, 1), since="1"), Ask("b", (1,), some(5), since="2")]
        assert advise(asks, 1).devices == ("GPU-5",)

    def test_of_equal_pods_the_oldest_that_was_not_yet_advised(self):
        asks = [Ask("b", (1,), some(1), since="2"), Ask("a", (1,), some(0), since="1")]
        assert advise(asks, 1).pod == "a"
        asks[1] = Ask("a", (1,), some(0), since="1", advised=1)
        assert advise(asks, 1) == whole.Advice(("GPU-1",), "b")

    def test_containers_of_one_pod_share_its_plan(self):
        plan = some(2, 3, 4, 5)
        first = advise([Ask("a", (2, 2), plan)], 2).devices
        second = advise([Ask("a", (2,), plan, has=frozenset(first))], 2, free=set(IDS) - set(first)).devices
        assert (set(first) | set(second)) == plan

    def test_what_an_init_container_had_stays_and_the_rest_of_the_plan_comes_to_it(self):
        asks = [Ask("a", (4,), some(2, 3, 4, 5), since="2"), Ask("b", (4,), some(0, 1, 6, 7), since="1")]
        advice = advise(asks, 4, must=("GPU-2", "GPU-3"))
        assert advice.pod == "a"
        assert advice.devices == ("GPU-2", "GPU-3", "GPU-4", "GPU-5")

    def test_what_is_no_longer_free_is_replaced_from_what_nobody_else_was_promised(self):
        asks = [Ask("a", (2,), some(0, 1), since="1"), Ask("b", (2,), some(2, 3), since="2")]
        advice = advise(asks, 2, free=some(1, 2, 3, 7))
        assert set(advice.devices) == some(1, 7)

    def test_a_pod_without_a_plan_leaves_alone_what_others_were_promised(self):
        asks = [Ask("plain", (2,), since="1"), Ask("b", (4,), some(0, 1), since="2")]
        advice = advise(asks, 2, free=some(0, 1, 4, 7), spoken_for=some(4))
        assert "GPU-7" in advice.devices
        assert advice.pod == "plain"

    def test_where_there_is_nothing_else_it_gets_that_too(self):
        asks = [Ask("plain", (2,), since="1"), Ask("b", (4,), some(0, 1), since="2")]
        assert set(advise(asks, 2, free=some(0, 1)).devices) == some(0, 1)

    def test_nobody_known_asks(self):
        advice = advise([Ask("a", (4,), some(0, 1, 2, 3))], 2)
        assert advice.pod == ""
        assert set(advice.devices) == some(4, 5)


class TestTopology:
    def test_cards_that_are_linked(self):
        assert set(advise([], 2, free=some(0, 3, 5, 6, 7)).devices) == some(6, 7)

    def test_the_partner_of_a_card_that_is_given(self):
        assert set(advise([], 2, must=("GPU-5",)).devices) == some(4, 5)

    def test_without_wiring_the_lowest_numbers(self):
        bare = Stock(STOCK.gpus)
        assert advise([], 2, free=some(7, 3, 5), stock=bare).devices == ("GPU-3", "GPU-5")

    def test_slices_fill_the_fullest_card(self):
        stock = Stock({"MIG-a": 0, "MIG-b": 0, "MIG-c": 1}, {"MIG-a": 4, "MIG-b": 0, "MIG-c": 0})
        assert advise([], 1, free=("MIG-a", "MIG-b", "MIG-c"), stock=stock).devices == ("MIG-c",)
        assert advise([], 1, free=("MIG-a", "MIG-b"), stock=stock).devices == ("MIG-b",)

    def test_a_machine_too_wide_for_tables(self):
        ids = tuple(f"GPU-{i:02}" for i in range(20))
        stock = Stock({each: i for i, each in enumerate(ids)}, wiring=Wiring(tuple(Slot("") for _ in ids)))
        assert advise([], 3, free=ids, stock=stock).devices == ids[:3]


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_pods_of_one_size_all_get_their_plans_in_whatever_order_they_come(order):
    plans = {"a": some(0, 5), "b": some(2, 7), "c": some(1, 3)}
    free = set(IDS)
    for number in order:
        pod = "abc"[number]
        advice = advise([Ask(pod, (2,), plans[pod])], 2, free=free)
        assert set(advice.devices) == plans[pod]
        free -= set(advice.devices)
