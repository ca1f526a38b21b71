"""Advice to a kubelet: whatever is planned and free, it is exactly what was asked for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.support.examples import examples
from tests.support.machines.reference import nvswitch, pcie_pairs

from kgwe.placement.devices import whole
from kgwe.placement.devices.whole import Ask, Stock

IDS = tuple(f"GPU-{i}" for i in range(8))
CARDS = {each: i for i, each in enumerate(IDS)}


def some(*numbers: int) -> frozenset[str]:
    return frozenset(IDS[i] for i in numbers)


MASKS = st.sets(st.integers(0, 7))


@examples(60)
@given(
    free=MASKS,
    plans=st.lists(st.tuples(MASKS, st.integers(1, 4)), max_size=3),
    must=st.sets(st.integers(0, 7), max_size=2),
    size=st.integers(1, 8),
    switched=st.booleans(),
)
def test_advice_is_always_what_was_asked_for(free, plans, must, size, switched):
    if len(must) > size or len(free | must) < size:
        return
    stock = Stock(CARDS, wiring=nvswitch(8) if switched else pcie_pairs(8))
    asks = [Ask(f"p{i}", (wants,), some(*plan)) for i, (plan, wants) in enumerate(plans)]
    have = [IDS[i] for i in sorted(must)]
    devices = whole.advise_devices(asks, stock, some(*free), size, must=have).devices
    assert len(devices) == len(set(devices)) == size
    assert set(have) <= set(devices) <= some(*free, *must)
