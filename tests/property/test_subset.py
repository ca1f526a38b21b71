"""The tables of best sets against trying everything."""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.examples import examples
from tests.support.machines import reference

from kgwe.model.gpu import bandwidth, smi_topo
from kgwe.model.gpu.topology import Relation, Slot, Wiring
from kgwe.placement.fleet.node import Preference
from kgwe.placement.gpuset import gpu_tables

Cards = tuple[int, ...]


class Brute:
    """The same questions, answered by going through everything."""

    def __init__(self, wiring: Wiring) -> None:
        self.wiring = wiring
        self.n = len(wiring.slots)
        self.islands = self._islands()

    def pair(self, a: int, b: int) -> int:
        return round(1000 * bandwidth.pair_gb_per_s(self.wiring, a, b))

    @functools.cache  # noqa: B019 - one per machine
    def ring(self, cards: Cards) -> float:
        if len(cards) == 1:
            return math.inf
        first, *rest = cards
        return max(
            min(self.pair(a, b) for a, b in itertools.pairwise((first, *order, first)))
            for order in itertools.permutations(rest)
        )

    def _islands(self) -> set[Cards]:
        cards = range(self.n)
        found = set()
        for least in {self.pair(a, b) for a, b in itertools.combinations(cards, 2)} - {0}:
            groups = [{card} for card in cards]
            for a, b in itertools.combinations(cards, 2):
                if self.pair(a, b) >= least:
                    one = next(group for group in groups if a in group)
                    other = next(group for group in groups if b in group)
                    if one is not other:
                        groups.remove(other)
                        one |= other
            found |= {tuple(sorted(group)) for group in groups}
        for card in cards:
            found.add(tuple(b for b in cards if b == card or self._same_numa(card, b)))
            found.add(tuple(b for b in cards if b == card or self._same_switch(card, b)))
        return {group for group in found if len(group) > 1}

    def _same_numa(self, a: int, b: int) -> bool:
        numa = self.wiring.slots[a].numa
        return numa is not None and numa == self.wiring.slots[b].numa

    def _same_switch(self, a: int, b: int) -> bool:
        return self.wiring.pcie_relation(a, b) in (Relation.PIX, Relation.PXB)

    @functools.cache  # noqa: B019 - one per machine
    def packing(self, cards: Cards, size: int) -> float:
        """Best sum over disjoint jobs, found by trying every first job and every card left out."""
        if len(cards) < size:
            return 0
        first, *rest = cards
        best = self.packing(tuple(rest), size)
        for others in itertools.combinations(rest, size - 1):
            left = tuple(card for card in rest if card not in others)
            best = max(best, size * self.ring((first, *others)) + self.packing(left, size))
        return best

    @functools.cache  # noqa: B019 - one per machine
    def worth(self, left: Cards) -> tuple[int, float]:
        intact = sum(len(island) for island in self.islands if set(island) <= set(left))
        return intact, sum(self.packing(left, size) for size in (2, 4, 8, 16) if size <= self.n)

    def meets(self, cards: Cards, preference: Preference) -> bool:
        test = {
            Preference.NVLINK_REQUIRED: lambda a, b: bool(self.wiring.nvlinks(a, b)),
            Preference.SAME_NUMA: self._same_numa,
            Preference.SAME_PCIE_SWITCH: self._same_switch,
        }.get(preference, lambda _a, _b: True)
        return all(test(a, b) for a, b in itertools.combinations(cards, 2))

    def best(self, free: Cards, count: int, preference: Preference, *, required: bool) -> Cards | None:
        def merit(cards: Cards) -> tuple[bool, float, tuple[int, float], Cards]:
            left = tuple(card for card in free if card not in cards)
            return self.meets(cards, preference), self.ring(cards), self.worth(left), tuple(-card for card in cards)

        sets = [cards for cards in itertools.combinations(free, count) if not required or self.meets(cards, preference)]
        return max(sets, key=merit, default=None)


def compare(brute: Brute, preference: Preference, *, required: bool) -> None:
    table = gpu_tables.build_table(brute.wiring, preference, required=required)
    for mask in range(1 << brute.n):
        free = tuple(card for card in range(brute.n) if mask >> card & 1)
        for count in range(1, brute.n + 1):
            expected = brute.best(free, count, preference, required=required)
            choice = table.choose(mask, count)
            assert (choice.gpus if choice else None) == expected, (free, count)
            if choice and expected:
                assert choice.gb_per_s == pytest.approx(brute.ring(expected) / 1000)


@functools.cache
def known_machine(name: str) -> Brute:
    entry = reference.machine(name)
    return Brute(smi_topo.parse_smi_topology(reference.topo_text(entry), model=reference.model(entry)))


PREFERENCES = [p for p in Preference if p is not Preference.NVLINK_OPTIMAL]


def preferences_by_machine() -> list[Any]:
    """All pairs; one preference of each machine, in turns, is enough between two runs of the slow tests."""
    return [
        pytest.param(name, each, marks=() if each is PREFERENCES[number % len(PREFERENCES)] else pytest.mark.slow)
        for number, name in enumerate(reference.NAMES)
        for each in PREFERENCES
    ]


@pytest.mark.parametrize(("name", "preference"), preferences_by_machine())
def test_the_table_of_every_known_machine_is_optimal(name, preference):
    compare(known_machine(name), preference, required=True)


@st.composite
def wirings(draw: st.DrawFn, most: int = 6) -> Wiring:
    """Any machine, likely or not."""
    n = draw(st.integers(1, most))
    slots = tuple(
        Slot(
            str(i),
            draw(st.sampled_from((None, 0, 1))),
            pcie=draw(st.sampled_from(((), ("rc0",), ("rc0", "a"), ("rc0", "a", "b"), ("rc1", "c"), ("rc1", "d")))),
        )
        for i in range(n)
    )
    version = draw(st.sampled_from((0, 2, 4, 5)))
    if draw(st.booleans()):
        down = tuple(draw(st.integers(0, 4)) for _ in range(n))
        return Wiring(slots, version, draw(st.sampled_from((4, 18))), links_down=down)
    mesh = tuple(
        (a, b, links)
        for a, b in itertools.combinations(range(n), 2)
        if (links := draw(st.sampled_from((0, 0, 1, 2, 4))))
    )
    return Wiring(slots, version if mesh else 0, mesh=mesh)


@examples(60)
@given(wiring=wirings(), preference=st.sampled_from(Preference), required=st.booleans())
def test_the_table_of_any_machine_is_optimal(wiring, preference, required):
    compare(Brute(wiring), preference, required=required)


@examples(60)
@given(wiring=wirings(most=8), free=st.integers(1, 255))
def test_single_cards_never_break_an_intact_island_when_there_is_another_choice(wiring, free):
    brute = Brute(wiring)
    free &= (1 << brute.n) - 1
    choice = gpu_tables.build_table(wiring).choose(free, 1)
    if choice is None:
        assert not free
        return
    intact = [island for island in brute.islands if all(free >> card & 1 for card in island)]
    spared = {card for card in range(brute.n) if free >> card & 1} - {card for island in intact for card in island}
    assert not spared or choice.gpus[0] in spared


@examples(30)
@given(wiring=wirings(most=7), cards=st.sets(st.integers(0, 6), min_size=2))
def test_the_ring_of_any_set_is_the_best_of_all_orders(wiring, cards):
    chosen = tuple(sorted(card for card in cards if card < len(wiring.slots)))
    if len(chosen) > 1:
        assert bandwidth.set_gb_per_s(wiring, chosen) == pytest.approx(Brute(wiring).ring(chosen) / 1000, abs=1e-3)
