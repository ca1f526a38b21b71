"""Which replicas start and stop: services stay up while they are scaled and updated, and every update ends."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgwe.placement.disruption.rollout import Mode, Replica, Surge, decide_step

if TYPE_CHECKING:
    import random

REPLICAS = st.lists(
    st.builds(
        Replica,
        st.integers(0, 12),
        is_current=st.booleans(),
        is_ready=st.booleans(),
        since=st.sampled_from(["", "1", "2", "3"]),
        is_ending=st.booleans(),
    ),
    max_size=8,
    unique_by=lambda each: each.number,
)


@given(st.integers(0, 6), REPLICAS, st.sampled_from(Surge))
def test_a_step_never_stops_a_replica_that_is_needed(desired: int, replicas: list[Replica], surge: Surge):
    step = decide_step(desired, replicas, surge)
    live = [each for each in replicas if not each.is_ending]
    ready = [each for each in live if each.is_ready]
    left = [each for each in ready if each.number in step.kept]
    fewest = min(len(ready), desired)
    current = sum(each.is_current for each in live)
    if surge is Surge.NO_ROOM and current < desired:
        fewest -= 1
    assert len(left) >= fewest
    assert step.kept <= {each.number for each in live}
    assert not step.asking & {each.number for each in replicas}, "a number is used again only when it is free"
    assert current + len(step.asking) <= max(desired, current)
    assert len(step.wanted) <= max(desired + 1, len(live))


@given(st.integers(0, 5), REPLICAS, st.integers(0, 7), st.randoms(use_true_random=False))
def test_every_update_ends_with_the_replicas_that_fit(
    desired: int, replicas: list[Replica], more: int, rng: random.Random
):
    room = len(replicas) + more
    surge = Surge.UNKNOWN
    for tick in range(200):
        step = decide_step(desired, replicas, surge)
        kept = [each for each in replicas if each.number in step.kept]
        ending = [replace(each, is_ending=True) for each in replicas if each.number not in step.kept]
        replicas = kept + [each for each in ending if rng.random() < 0.5]
        surge = Surge.UNKNOWN
        for number in sorted(step.asking):
            if len(replicas) < room:
                replicas.append(Replica(number, is_current=True, is_ready=False, since=str(tick)))
            else:
                surge = Surge.NO_ROOM
        replicas = [replace(each, is_ready=each.is_ready or rng.random() < 0.5) for each in replicas]
    assert len([each for each in replicas if not each.is_ending]) == min(desired, room)
    assert all(each.is_current for each in replicas)


def test_replicas_that_are_not_ready_stop_first_and_then_the_newest():
    first = Replica(0, is_current=True, is_ready=True, since="1")
    second = Replica(1, is_current=True, is_ready=False, since="1")
    third = Replica(2, is_current=True, is_ready=True, since="2")
    assert decide_step(2, [first, second, third]).kept == {0, 2}
    assert decide_step(1, [first, second, third]).kept == {0}
    assert decide_step(0, [first, second, third]).kept == frozenset()


@pytest.mark.parametrize(
    ("surge", "kept", "asking", "mode"),
    [
        (Surge.UNKNOWN, {0, 1}, {2}, Mode.SURGE),
        (Surge.NO_ROOM, {0}, {2, 3}, Mode.ONE_BY_ONE),
        (Surge.IMPOSSIBLE, {0, 1}, {2}, Mode.BLOCKED),
    ],
)
def test_an_update_begins_as_there_is_room(surge: Surge, kept: set[int], asking: set[int], mode: Mode):
    old = [Replica(number, is_current=False, is_ready=True) for number in (0, 1)]
    step = decide_step(2, old, surge)
    assert (set(step.kept), set(step.asking), step.mode) == (kept, asking, mode)
