"""Whatever happens while the pods of gangs are created: no seat has two pods, no node gives more GPUs than it has."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st
from tests.support.examples import examples
from tests.support.fakes.offer_bed import OfferBed, make_member

from kgwe.kube.api import resources

if TYPE_CHECKING:
    from collections.abc import Sequence

SIZES = {"a": 2, "b": 3, "c": 4}
GANGS = st.sampled_from(sorted(SIZES))
NUMBERS = st.integers(0, 3)
STEPS = st.one_of(
    # through the webhook; without it, because it was down; answered, but never created; deleted
    st.tuples(st.sampled_from(["create", "miss", "lose", "delete"]), GANGS, NUMBERS),
    # the offers end; another replica leads
    st.tuples(st.sampled_from(["end", "elect"]), GANGS, NUMBERS),
)
Step = tuple[str, str, int]


class World:
    """Two nodes with 8 GPUs each, and gangs of pods with 4 GPUs."""

    def __init__(self) -> None:
        self.bed = OfferBed()
        self.term = AsyncExitStack()
        self.pods: set[str] = set()

    async def start(self) -> None:
        for name in ("n1", "n2"):
            await self.bed.node(name)
        await self.elect()

    async def elect(self) -> None:
        await self.term.aclose()
        await self.term.enter_async_context(self.bed.leading())

    async def take(self, step: Step) -> None:
        what, gang, number = step
        name, size = f"{gang}-{number}", SIZES[gang]
        if what == "elect":
            await self.elect()
        elif what == "end":
            assert self.bed.leader is not None
            self.bed.leader.offers.stop()
        elif what == "delete" and name in self.pods:
            self.pods.discard(name)
            await self.bed.client.delete(resources.POD, name, "team")
        elif what == "lose":
            await self.bed.ask(make_member(name, gang, size))
        elif what in {"create", "miss"} and name not in self.pods:
            self.pods.add(name)
            if what == "miss":
                await self.bed.store(make_member(name, gang, size))
            else:
                await self.bed.create(name, gang, size)

    def check(self) -> None:
        state, held, taken = self.bed.state, Counter[str](), set()
        for uid in list(state.pods):
            if (seat := state.gangs.seat(uid)) is not None:
                assert seat not in taken, "a seat has two pods"
                taken.add(seat)
                place = state.ledger.reserved_seat(*seat)
                assert place is not None
                held[place.node] += 4
        assert all(gpus <= 8 for gpus in held.values())
        assert self.bed.count_free() >= 0


async def live_through(steps: Sequence[Step]) -> None:
    world = World()
    await world.start()
    for step in steps:
        await world.take(step)
        world.check()
    await world.term.aclose()
    world.check()
    reserved = {seat for owner in world.bed.state.ledger.owners() for seat in seats_of(world, owner)}
    assert reserved == {seat for uid in world.bed.state.pods if (seat := world.bed.state.gangs.seat(uid)) is not None}


def seats_of(world: World, owner: str) -> set[tuple[str, int]]:
    return {(owner, number) for number in world.bed.state.ledger.reserved_seats(owner)}


@examples(12)
@given(st.lists(STEPS, max_size=14))
def test_seats_have_one_pod_and_nothing_is_left_after_the_term(steps: list[Step]) -> None:
    asyncio.run(live_through(steps))
