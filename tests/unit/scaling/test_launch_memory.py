"""Launch errors: each kind blocks its own offers for its own time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgwe.cloud.provider import RETRYABLE, LaunchErrorKind
from kgwe.scaling.launch_memory import RULES, LaunchMemory, Offer, Reach, Setback

A = Offer("h100", "p5", "a", "spot")
OTHER_ZONE = A._replace(zone="b")
OTHER_TYPE = A._replace(instance_type="p4d")
OTHER_CAPACITY = A._replace(capacity_type="on-demand")
OTHER_POOL = A._replace(pool="more")


def test_every_kind_of_error_has_a_rule() -> None:
    assert set(LaunchErrorKind) <= RULES.keys()
    assert {kind for kind in LaunchErrorKind if RULES[kind].reach is Reach.REQUEST} == RETRYABLE


@pytest.mark.parametrize(
    ("kind", "blocked"),
    [
        ("no-capacity", {A, OTHER_POOL}),
        ("quota", {A, OTHER_ZONE, OTHER_POOL}),
        ("limit", {A, OTHER_ZONE, OTHER_TYPE, OTHER_CAPACITY}),
        ("authentication", {A, OTHER_ZONE, OTHER_TYPE, OTHER_CAPACITY, OTHER_POOL}),
        ("transient", set()),
    ],
)
def test_an_error_blocks_the_offers_it_concerns(kind: str, blocked: set[Offer]) -> None:
    memory = LaunchMemory().record(Setback(A, kind, "no", 0.0))
    offers = {A, OTHER_ZONE, OTHER_TYPE, OTHER_CAPACITY, OTHER_POOL}
    assert {offer for offer in offers if memory.find_block(offer, 1.0, 0)} == blocked


def test_a_pause_doubles_with_every_repeat_and_ends() -> None:
    memory, now_s, pauses = LaunchMemory(), 0.0, []
    for _ in range(6):
        memory = memory.record(Setback(A, "no-capacity", "no", now_s))
        (setback,) = memory.setbacks
        pauses.append(setback.pause_s)
        now_s = setback.until_s
        assert memory.find_block(A, now_s, 0) is None
    assert pauses == [180.0, 360.0, 720.0, 1440.0, 1800.0, 1800.0]


def test_an_error_that_an_operator_cures_ends_with_a_change_of_the_policy() -> None:
    memory = LaunchMemory().record(Setback(A, "bad-template", "no such type", 0.0, generation=3))
    assert memory.find_block(OTHER_TYPE, 1.0, 3) is not None
    assert memory.find_block(OTHER_TYPE, 1.0, 4) is None


def test_a_success_clears_what_it_disproves() -> None:
    memory = LaunchMemory().record(Setback(A, "no-capacity", "no", 0.0)).record(Setback(OTHER_TYPE, "quota", "no", 0.0))
    assert [each.offer for each in memory.forget_success(A).setbacks] == [OTHER_TYPE]


@given(st.sampled_from(sorted(RULES)), st.integers(-5000, 5000))
def test_a_clock_that_jumps_blocks_for_no_longer_than_the_pause(kind: str, jump_s: int) -> None:
    memory = LaunchMemory().record(Setback(A, kind, "no", 10_000.0))
    block = memory.find_block(A, 10_000.0 + jump_s, 0)
    assert block is None or 0 <= jump_s < block.pause_s
