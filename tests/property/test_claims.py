"""Pods, seats and claims in any order: every card that somebody has is counted once, and all come free in the end."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.support.builders.claims import claim, claiming_job, claiming_pod, mask, resource_slice
from tests.support.builders.objects import UID, added, free, node, pod, removed, workload
from tests.support.examples import examples

from kgwe.cluster.state.cluster_state import ClusterState
from kgwe.model.devices import assignment
from kgwe.placement.planning.plan import Seat

CARDS = 8


def numbers(cards: int) -> tuple[int, ...]:
    return assignment.DeviceSet(cards).numbers


@st.composite
def owners(draw: st.DrawFn) -> list[int]:
    """Masks that have no card in common: of our workload, two claims of others, and a pod of the device plugin."""
    whose = draw(st.lists(st.integers(0, 4), min_size=CARDS, max_size=CARDS))
    return [sum(1 << card for card in range(CARDS) if whose[card] == owner) for owner in range(4)]


@examples(60)
@given(owners(), st.randoms(use_true_random=False), st.booleans())
def test_every_card_is_counted_once_whatever_is_seen_first(masks: list[int], order: Any, backed: bool):  # noqa: FBT001 - drawn
    ours, one, two, plugin = masks
    state = ClusterState()
    objects: list[tuple[Any, Any]] = [
        (state.on_node, node("n1")),
        (state.on_slice, resource_slice("n1")),
    ]
    if ours:
        objects += [
            (state.on_kgwe, workload(count=ours.bit_count())),
            (state.on_job, claiming_job(seats=(Seat("n1", ours),))),
            (state.on_pod, claiming_pod()),
            (state.on_claim, claim("ours", numbers(ours), of="uid-p")),
        ]
    for name, cards in (("one", one), ("two", two)):
        if cards:
            objects.append((state.on_claim, claim(name, numbers(cards))))
    if plugin:
        notes = {assignment.CARDS_ANNOTATION: assignment.format_mask(plugin)}
        objects.append((state.on_pod, pod("plugin", "", gpus=plugin.bit_count(), notes=notes)))
        if backed:  # its resource is one that a claim stands behind
            objects.append((state.on_claim, claim("plugin", numbers(plugin), of="uid-plugin")))
    order.shuffle(objects)
    for listener, obj in objects:
        listener(added(obj))
    assert mask(state) == 0xFF & ~(ours | one | two | plugin)
    free(state)  # the books balance
    if ours:
        assert state.ledger.pod_in(UID, 0) == "uid-p"

    order.shuffle(objects)
    kept = (state.on_node, state.on_slice)
    for listener, obj in objects:
        if listener not in kept:
            listener(removed(obj))
            free(state)
    assert mask(state) == 0xFF
