"""Whatever the cards, the distribution and the demand: legal, bounded, nothing in use touched, and stable."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from tests.support.builders.mig_layouts import layouts
from tests.support.examples import examples
from tests.support.machines.mig_card import A30, A100

from kgwe.model.gpu import mig
from kgwe.sharing.mig import strategy
from kgwe.sharing.mig.rebalance import decide_layouts
from kgwe.sharing.mig.types import Gate, Group, PartitionedGpu, SliceRequest


@st.composite
def cards(draw: st.DrawFn, geometry: mig.Geometry) -> tuple[PartitionedGpu, ...]:
    plain = [profile for profile in geometry.profiles.values() if profile.is_plain]
    small = mig.Geometry(geometry.name, geometry.units, geometry.compute, {each.name: each for each in plain})
    made = []
    for number in range(draw(st.integers(1, 5))):
        is_whole = draw(st.booleans())
        layout = () if is_whole else draw(layouts(small))
        used = tuple(place for place in layout if draw(st.booleans()))
        spare = tuple(place for place in layout if place not in used)
        made.append(
            PartitionedGpu(
                f"GPU-{number}",
                f"n{number % 2}",
                used,
                spare,
                is_whole=is_whole,
                is_decided=draw(st.booleans()),
                is_open=draw(st.integers(0, 3)) > 0,
                is_taken=is_whole and draw(st.booleans()),
                warm=frozenset(place for place in spare if draw(st.booleans())),
            )
        )
    return tuple(made)


@st.composite
def groups(draw: st.DrawFn) -> Group:
    geometry = draw(st.sampled_from((A30, A100)))
    names = sorted(name for name, profile in geometry.profiles.items() if profile.is_plain)
    parts = draw(st.dictionaries(st.sampled_from(names), st.integers(1, 9), min_size=1, max_size=3))
    total = sum(parts.values()) * draw(st.sampled_from((1, 2)))
    return Group(
        geometry,
        {name: part / total for name, part in parts.items()},
        draw(cards(geometry)),
        is_dynamic=draw(st.booleans()),
        is_due=draw(st.booleans()),
        mix=draw(st.dictionaries(st.sampled_from(names), st.integers(1, 9).map(float), max_size=2)),
        preferred=tuple(draw(st.lists(st.sampled_from(names), max_size=2))),
    )


@examples(120)
@given(st.data(), groups())
def test_decisions_are_legal_bounded_gentle_and_stable(data: st.DataObject, group: Group) -> None:
    names = sorted(name for name, profile in group.geometry.profiles.items() if profile.is_plain)
    asked = data.draw(st.lists(st.tuples(st.sampled_from(names), st.integers(1, 2)), max_size=4))
    asks = [SliceRequest(f"pod-{number}", profile, count) for number, (profile, count) in enumerate(asked)]
    gate = Gate(slots=data.draw(st.integers(0, 2)), busy=frozenset(data.draw(st.sets(st.sampled_from(["n0", "n1"])))))
    decision = decide_layouts(group, asks, gate)
    begun = set()
    for before, after in zip(group.gpus, decision.gpus, strict=True):
        assert not mig.find_problems(group.geometry, after.layout)
        assert set(before.used) <= set(after.layout)
        assert before.used == after.used
        assert not (after.is_whole and after.layout)
        if (before.layout, before.is_whole) != (after.layout, after.is_whole):
            assert before.is_open
            assert after.uuid in decision.changed
            begun.add(after.node)
    assert len(begun) <= gate.slots
    assert not begun & gate.busy
    least = strategy.count_whole_gpus(group.geometry, len(group.gpus), group.distribution)
    now = sum(card.is_whole for card in group.gpus)
    assert sum(card.is_whole for card in decision.gpus) >= min(least, now)
    # The same question again, when all of it is done: nothing more to do for what waits.
    settled = replace(group, gpus=tuple(replace(card, is_open=True) for card in decision.gpus), is_due=False)
    if group.is_dynamic and all(card.is_decided for card in decision.gpus):
        second = decide_layouts(settled, asks, Gate(slots=10))
        third = decide_layouts(replace(settled, gpus=second.gpus), asks, Gate(slots=10))
        assert not third.changed, "it came to rest"
