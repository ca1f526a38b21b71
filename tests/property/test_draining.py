"""Whoever consents, whatever waits: nobody else is asked to leave, nothing is asked that does not help, and it ends."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from tests.support.examples import examples
from tests.support.machines.mig_card import A30, A100

from kgwe.model.gpu import mig
from kgwe.sharing.mig.rebalance import Decision, decide_layouts
from kgwe.sharing.mig.types import Gate, Group, MovablePod, PartitionedGpu, SliceRequest

NODES = ("n0", "n1")


@st.composite
def crowded(draw: st.DrawFn) -> Group:
    """Cards on which small slices lie in the way of wide ones, most of whose users consent."""
    geometry = draw(st.sampled_from((A30, A100)))
    small = min((each for each in geometry.profiles.values() if each.is_plain), key=lambda each: each.units)
    cards, movable = [], []
    for number in range(draw(st.integers(2, 4))):
        starts = sorted(draw(st.sets(st.sampled_from(small.starts), min_size=1, max_size=4)))
        layout = [mig.Placement(small, start) for start in starts]
        used = tuple(place for place in layout if draw(st.integers(0, 3)))
        spare = tuple(place for place in layout if place not in used)
        card = PartitionedGpu(f"GPU-{number}", NODES[number % 2], used, spare, is_open=draw(st.integers(0, 5)) > 0)
        cards.append(card)
        for place in (place for place in used if draw(st.integers(0, 3))):
            nodes = None if draw(st.integers(0, 3)) else frozenset(draw(st.sets(st.sampled_from(NODES))))
            uid = f"{card.uuid}-{place.start}"
            movable.append(MovablePod(uid, SliceRequest(uid, small.name, 1, nodes), ((card.uuid, place),)))
    shares = {small.name: draw(st.sampled_from((0.5, 1.0)))}
    return Group(geometry, shares, tuple(cards), is_dynamic=True, is_due=draw(st.booleans()), movable=tuple(movable))


def asked(data: st.DataObject, group: Group) -> list[SliceRequest]:
    names = sorted(
        name
        for name, each in group.geometry.profiles.items()
        if each.is_plain and 2 * each.units >= group.geometry.units
    )
    wanted = data.draw(st.lists(st.tuples(st.sampled_from(names), st.sampled_from((1, 1, 2))), min_size=1, max_size=3))
    return [SliceRequest(f"pod-{number}", profile, count) for number, (profile, count) in enumerate(wanted)]


def left(card: PartitionedGpu) -> PartitionedGpu:
    """Everybody has gone who was asked to."""
    if card.drain is None:
        return card
    gone = tuple(place for place in card.used if place in card.drain.places)
    return replace(card, used=tuple(place for place in card.used if place not in gone), spare=(*card.spare, *gone))


def drained(decision: Decision) -> list[tuple[str, frozenset[str], str]]:
    return [(card.uuid, card.drain.pods, card.drain.ask) for card in decision.gpus if card.drain is not None]


@examples(150)
@given(st.data(), crowded())
def test_only_those_who_consent_are_asked_and_only_where_it_helps(data: st.DataObject, group: Group) -> None:
    asks = asked(data, group)
    gate = Gate(slots=data.draw(st.integers(0, 2)))
    decision = decide_layouts(group, asks, gate)
    consenting = {each.uid: each for each in group.movable}
    without = decide_layouts(replace(group, may_drain=False), asks, gate)
    assert not drained(without)
    for old, card in zip(group.gpus, decision.gpus, strict=True):
        assert old.used == card.used, "nothing in use is touched"
        if card.drain is None:
            continue
        assert card.layout == old.layout, "the card stays as it is"
        mine = {place for uid in card.drain.pods for uuid, place in consenting[uid].slices if uuid == card.uuid}
        assert {place for place in card.drain.places if place in card.used} == mine
        assert card.drain.ask in without.waiting, "there was no other way"
    units = {name: profile.units for name, profile in group.geometry.profiles.items()}
    for ask in asks:
        pods = {uid for _, uids, name in drained(decision) for uid in uids if name == ask.name}
        moved = sum(place.profile.units for uid in pods for _, place in consenting[uid].slices)
        assert moved <= units[ask.profile] * ask.count
    # Asked again with nothing changed, nobody else is asked.
    again = decide_layouts(replace(group, gpus=decision.gpus, is_due=False), asks, Gate(0, begun=decision.gate.begun))
    assert set(drained(decision)) <= set(drained(again)) or not drained(decision)


@examples(150)
@given(st.data(), crowded())
def test_when_they_have_left_all_of_them_and_who_waited_have_places(data: st.DataObject, group: Group) -> None:
    (ask, *_) = asks = asked(data, group)[:1]
    decision = decide_layouts(group, asks, Gate(slots=data.draw(st.integers(1, 2))))
    if not drained(decision):
        return
    uids = {uid for _, pods, _ in drained(decision) for uid in pods}
    homes = [each.request for each in group.movable if each.uid in uids]
    begun = frozenset(card.node for card in decision.gpus if card.drain)
    now = tuple(left(card) for card in decision.gpus)
    stay = tuple(each for each in group.movable if each.uid not in uids)
    done = decide_layouts(replace(group, gpus=now, movable=stay, is_due=False), [*homes, ask], Gate(2, begun=begun))
    assert not done.waiting, "those who were moved, and the one it was for"
    assert not drained(done)
