"""Advice on pieces of shared cards: whoever is planned where, and in whatever order they are served."""

from __future__ import annotations

import asyncio
import collections
import itertools
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st
from tests.support.fakes import kubelet as bed

from kgwe.apps.agent.devices.allocator import DeviceAllocator
from kgwe.hardware.kubelet.podresources import PodResources
from kgwe.model.devices import advertised, holdings
from kgwe.model.devices.assignment import NO_DEVICES, DeviceSet
from kgwe.model.devices.holdings import ContainerDevices, PodDevices
from kgwe.placement.devices import shared
from kgwe.placement.devices.whole import Ask, Stock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hypothesis.strategies import DataObject

CARDS = 8


@dataclass
class Node:
    """Pods on the way from their plan to a piece."""

    cards: int
    each: int
    plans: dict[str, int | None] = field(default_factory=dict)
    waiting: set[str] = field(default_factory=set)
    """The kubelet knows them, and they have nothing."""
    promised: dict[str, str] = field(default_factory=dict)
    has: dict[str, str] = field(default_factory=dict)
    asked: collections.Counter[str] = field(default_factory=collections.Counter)

    def __post_init__(self) -> None:
        names = [(card, piece) for card in range(self.cards) for piece in range(self.each)]
        self.stock = Stock(
            {f"{card}::{piece}": card for card, piece in names},
            {f"{card}::{piece}": piece for card, piece in names},
            is_shared=True,
        )

    @property
    def free(self) -> set[str]:
        """As the kubelet sees it."""
        return set(self.stock.gpus) - set(self.has.values())

    @property
    def unpromised(self) -> set[str]:
        return self.free - set(self.promised.values())

    def ask(self, pod: str) -> Ask:
        card = self.plans[pod]
        planned = frozenset(each for each, of in self.stock.gpus.items() if of == card)
        return Ask(pod, (1,), planned, since=pod, advised=self.asked[pod])

    def spare(self, card: int, but: str) -> int:
        """What is left of a card when everybody else who is planned there has come."""
        there = [each for each in self.plans if self.plans[each] == card and each != but]
        coming = [each for each in there if each not in self.has and each not in self.promised]
        return sum(self.stock.gpus[each] == card for each in self.unpromised) - len(coming)

    def advise(self) -> tuple[str, str]:
        """(pod, piece); whoever it is meant for takes it."""
        others = [pod for pod in self.plans if pod not in self.waiting and pod not in self.has]
        asks = [self.ask(pod) for pod in sorted(self.waiting)]
        who = min(asks, key=lambda ask: (ask.advised, ask.since))
        promised = {pod: frozenset({piece}) for pod, piece in self.promised.items() if pod != who.pod}
        advice = shared.advise_shares(
            asks, self.stock, self.free, 1, promised=promised, to_come=[self.ask(pod) for pod in others]
        )
        self.asked[advice.pod] += 1
        (piece,) = advice.devices
        return advice.pod, piece


@st.composite
def nodes(draw: st.DrawFn) -> Node:
    made = Node(draw(st.integers(1, 4)), draw(st.integers(2, 4)))
    plans = st.none() | st.integers(0, made.cards - 1)
    count = draw(st.integers(1, made.cards * made.each))
    made.plans = {f"p{i:02}": draw(plans) for i in range(count)}
    return made


@given(node=nodes(), data=st.data())
def test_nobody_has_anothers_piece_and_plans_are_followed_as_far_as_they_can(node: Node, data: DataObject):
    """Pods become known, are advised, take what they were advised, and end, in any order."""
    to_come = list(node.plans)
    for _ in range(4 * len(node.plans)):
        steps = [*(["come"] if to_come else []), *(["ask"] if node.waiting else [])]
        steps += [*(["take"] if node.promised else []), *(["end"] if node.has else [])]
        if not steps:
            break
        step = data.draw(st.sampled_from(steps))
        if step == "come":
            node.waiting.add(to_come.pop(data.draw(st.integers(0, len(to_come) - 1))))
        elif step == "ask":
            _ask(node)
        elif step == "take":
            pod = data.draw(st.sampled_from(sorted(node.promised)))
            node.has[pod] = node.promised.pop(pod)
            node.waiting.discard(pod)
        else:
            ended = data.draw(st.sampled_from(sorted(node.has)))
            del node.has[ended], node.plans[ended]
        taken = [*node.has.values(), *node.promised.values()]
        assert len(taken) == len(set(taken)), "two pods on one piece"


def _ask(node: Node) -> None:
    pod, piece = node.advise()
    node.promised.pop(pod, None)
    assert piece in node.unpromised, "there are as many pieces as pods"
    plan, card = node.plans[pod], node.stock.gpus[piece]
    if plan is not None and any(node.stock.gpus[each] == plan for each in node.unpromised):
        assert card == plan
    else:
        spare = {of: node.spare(of, pod) for of in range(node.cards)}
        most = {of: left for of, left in spare.items() if left > 0}
        if most:
            assert spare[card] == min(most.values())
    node.promised[pod] = piece


SHARED = "nvidia.com/gpu.shared"


class Truth(PodResources):
    """What a kubelet would tell of its pods."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(Path("nowhere"))
        self.names = names
        self.given: dict[str, frozenset[str]] = {}

    async def list(self, **_deadline: float | None) -> tuple[PodDevices, ...]:
        told = {name: ((SHARED, tuple(self.given.get(name, ()))),) for name in self.names}
        await asyncio.sleep(0)
        return tuple(PodDevices("team", name, (ContainerDevices("c0", had),)) for name, had in told.items())


class Rush:
    """Pods of a batch are all asked for at once; the kubelet notes what it gave when the batch is through."""

    def __init__(self, plans: Sequence[DeviceSet], each: int) -> None:
        self.names = [f"p{i:02}" for i in range(len(plans))]
        pods = bed.Pods()
        pods.add(*(bed.pod(name, 1, resource=SHARED, plan=plan) for name, plan in zip(self.names, plans, strict=True)))
        offers = advertised.list_advertised(bed.machine(CARDS), pieces=each)
        self.every = [one.id for one in offers[SHARED]]
        self.truth = Truth(self.names)
        self.desk = DeviceAllocator(pods, self.truth, clock=lambda: 0.0)
        self.desk.set_devices(offers, None)

    async def serve(self, batch: Sequence[str], pauses: Sequence[tuple[int, int]]) -> None:
        self.truth.names = [*self.truth.given, *batch]
        await asyncio.gather(*(self._one(*pause) for _, pause in zip(batch, pauses, strict=False)))
        self.truth.given = {
            pod.removeprefix("team/"): ids for (_, pod), ids in self.desk._book._granted_devices.items()
        }

    async def _one(self, before: int, between: int) -> None:
        free = [each for each in self.every if not any(each in ids for ids in self.truth.given.values())]
        for _ in range(before):
            await asyncio.sleep(0)
        (piece,) = await self.desk.prefer(SHARED, free, [], 1)
        for _ in range(between):
            await asyncio.sleep(0)
        await self.desk.allocate(SHARED, [piece])


@given(
    each=st.integers(2, 6),
    order=st.permutations(range(2 * CARDS)),
    cards=st.permutations([card for card in range(CARDS) for _ in range(2)]),
    cuts=st.sets(st.integers(1, 2 * CARDS - 1), max_size=6),
    pauses=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=2 * CARDS, max_size=2 * CARDS),
    planned=st.booleans(),
)
def test_kai_2153_sixteen_halves_on_eight_cards_are_two_on_each(each, order, cards, cuts, pauses, planned):
    """https://github.com/kai-scheduler/KAI-Scheduler/issues/2153: one by one, in batches, or all in the same moment."""
    rush = Rush([DeviceSet(1 << card) if planned else NO_DEVICES for card in cards], each if planned else 2)

    async def serve() -> None:
        for start, end in itertools.pairwise([0, *sorted(cuts), 2 * CARDS]):
            await rush.serve([rush.names[order[i]] for i in range(start, end)], pauses[start:end])

    asyncio.run(serve())
    given = [piece for ids in rush.truth.given.values() for piece in ids]
    assert len(given) == len(set(given)) == 2 * CARDS
    assert set(collections.Counter(map(holdings.device_uuid, given)).values()) == {2}
    if planned:
        mine = [{holdings.device_uuid(piece) for piece in rush.truth.given[name]} for name in rush.names]
        assert mine == [{f"GPU-{card}"} for card in cards]
