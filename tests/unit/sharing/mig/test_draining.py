"""Pods that consent make way for a cut: the fewest, only where that helps, and nobody without another place."""

from __future__ import annotations

from dataclasses import replace

from tests.support.builders.mig_groups import OPEN, cut, group, names
from tests.support.machines.mig_card import A100, places

from kgwe.sharing.mig import layout_graph, recut, slots
from kgwe.sharing.mig.rebalance import Decision, assign_groups, decide_layouts
from kgwe.sharing.mig.types import Drain, Gate, MovablePod, PartitionedGpu, SliceRequest

TABLE = slots.SlotTable(layout_graph.get_layout_graph(A100, layout_graph.plain_profiles(A100)))
WIDE = SliceRequest("wide", "3g.40gb")


def movable(name: str, card: int, where: str, nodes: frozenset[str] | None = None) -> MovablePod:
    (place,) = places(A100, where)
    return MovablePod(name, SliceRequest(f"pod {name}", place.profile.name, 1, nodes), ((f"GPU-{card}", place),))


def drained(decision: Decision) -> dict[str, tuple[list[str], str]]:
    """GpuSlices -> (who is to leave it, for whom)."""
    return {card.uuid: (sorted(card.drain.pods), card.drain.ask) for card in decision.gpus if card.drain}


def holes() -> list[PartitionedGpu]:
    """No 3g can be cut: on either card a 1g lies in each half; one 1g is spare elsewhere."""
    return [
        cut(0, "1g.10gb@0 1g.10gb@5", "1g.10gb@6"),
        cut(1, "1g.10gb@1 2g.20gb@4 1g.10gb@6"),
    ]


def test_recut_leaves_what_yields_alone_where_there_is_another_way() -> None:
    card = recut.GpuSlices(places(A100, "1g.10gb@0"), places(A100, "2g.20gb@2"), places(A100, "1g.10gb@5"))
    plan = recut.plan_recut(TABLE, [card], "2g.20gb", 1)
    assert isinstance(plan, recut.Recut)
    assert plan.vacated_units == 0
    assert plan.changes[0].serve == places(A100, "2g.20gb@2")


def test_recut_takes_the_fewest_units_of_those_who_yield() -> None:
    cards = [
        recut.GpuSlices((), (), places(A100, "2g.20gb@0 2g.20gb@4")),
        recut.GpuSlices((), (), places(A100, "1g.10gb@0 2g.20gb@4")),
    ]
    plan = recut.plan_recut(TABLE, cards, "4g.40gb", 1)
    assert isinstance(plan, recut.Recut)
    (change,) = plan.changes
    assert (change.gpu, change.vacate) == (1, places(A100, "1g.10gb@0"))
    assert plan.vacated_units == 1
    assert change.apply_to(cards[1]).used == (*places(A100, "2g.20gb@4"), *places(A100, "4g.40gb@0"))


def test_what_one_makes_way_for_is_never_the_very_same() -> None:
    assert isinstance(
        recut.plan_recut(TABLE, [recut.GpuSlices((), (), places(A100, "3g.40gb@0 3g.40gb@4"))], "3g.40gb", 1),
        recut.RecutRefusal,
    )


def test_without_consent_nobody_is_asked() -> None:
    decision = decide_layouts(group(*holes()), [WIDE], OPEN)
    assert not drained(decision)
    assert "wide" in decision.waiting


def test_who_consents_and_has_another_place_is_asked_and_the_card_stays_as_it_is_meanwhile() -> None:
    cards = holes()
    given = group(*cards, movable=(movable("a", 0, "1g.10gb@5"),))
    decision = decide_layouts(given, [WIDE], OPEN)
    # The spare 1g lies in the way too, so its new place is one that is cut for it.
    assert drained(decision) == {"GPU-0": (["a"], "wide")}
    assert decision.gpus[0].drain == Drain("wide", frozenset({"a"}), places(A100, "1g.10gb@5 1g.10gb@6"))
    assert not decision.changed
    assert decision.waiting["wide"] == "asked to leave: pod a"
    again = decide_layouts(replace(given, gpus=decision.gpus), [WIDE], OPEN)
    assert drained(again) == drained(decision), "it is stable"
    assert not again.changed
    # It has left; its next self waits already, and came before the other.
    left = replace(again.gpus[0], used=places(A100, "1g.10gb@0"), spare=places(A100, "1g.10gb@5 1g.10gb@6"))
    waits = [SliceRequest("pod a-2", "1g.10gb"), WIDE]
    done = decide_layouts(group(left, again.gpus[1]), waits, OPEN)
    assert names(done)[0].endswith("3g.40gb@4")
    assert "1g.10gb@1" in names(done)[0] or "1g.10gb@2" in names(done)[0], "and the moved one has a slice again"
    assert not done.waiting
    assert not drained(done)


def test_nobody_is_moved_who_would_have_no_other_place() -> None:
    full = [cut(0, "1g.10gb@0 1g.10gb@1 1g.10gb@2 1g.10gb@3 1g.10gb@5"), cut(1, "7g.80gb@0")]
    here = movable("a", 0, "1g.10gb@5", nodes=frozenset())
    assert not drained(decide_layouts(group(*full, movable=(here,)), [WIDE], OPEN))


def test_no_more_is_moved_than_is_asked_for() -> None:
    cards = [cut(0, "4g.40gb@0 3g.40gb@4"), cut(1, "", "", node="n1")]
    big = movable("a", 0, "4g.40gb@0")
    small = SliceRequest("small", "2g.20gb", nodes=frozenset({"n0"}))
    assert not drained(decide_layouts(group(*cards, movable=(big,)), [small], OPEN))
    same = SliceRequest("same", "2g.20gb", 2, nodes=frozenset({"n0"}))
    assert drained(decide_layouts(group(*cards, movable=(big,)), [same], OPEN)) == {"GPU-0": (["a"], "same")}


def test_another_is_tried_when_the_first_has_no_other_place() -> None:
    cards = [
        cut(0, "4g.40gb@0 1g.10gb@5"),
        cut(1, "4g.40gb@0 2g.20gb@4"),
        cut(2, "7g.80gb@0", node="n1"),
        cut(3, "4g.40gb@0", "2g.20gb@4", node="n2"),
    ]
    pods = (movable("a", 0, "1g.10gb@5", nodes=frozenset()), movable("b", 1, "2g.20gb@4"))
    wide = replace(WIDE, nodes=frozenset({"n0"}))
    assert drained(decide_layouts(group(*cards, movable=pods), [wide], OPEN)) == {"GPU-1": (["b"], "wide")}


def test_a_gate_that_is_shut_and_a_flag_keep_it_from_beginning() -> None:
    given = group(*holes(), movable=(movable("a", 0, "1g.10gb@5"),))
    assert not drained(decide_layouts(given, [WIDE], Gate(slots=0)))
    assert not drained(decide_layouts(replace(given, may_drain=False), [WIDE], OPEN))
    assert not drained(decide_layouts(replace(given, is_dynamic=False), [WIDE], OPEN))


def test_who_waited_finds_a_place_or_goes_away_and_nobody_has_to_leave_any_more() -> None:
    first, second = holes()
    under_way = replace(first, drain=Drain("wide", frozenset({"a"}), places(A100, "1g.10gb@5")))
    given = group(under_way, second, movable=(movable("a", 0, "1g.10gb@5"),))
    assert drained(decide_layouts(given, [WIDE], OPEN)) == {"GPU-0": (["a"], "wide")}
    assert not drained(decide_layouts(given, [], OPEN))
    spare = cut(2, "", "3g.40gb@0")
    assert not drained(decide_layouts(replace(given, gpus=(under_way, second, spare)), [WIDE], OPEN))
    broken = replace(under_way, drain=replace(under_way.drain, is_broken=True))  # type: ignore[type-var] # it has one
    assert not drained(decide_layouts(group(broken, second), [WIDE], OPEN))


def test_slices_to_be_left_are_put_aside_for_nobody() -> None:
    drain = Drain("wide", frozenset({"a"}), places(A100, "1g.10gb@6"))
    card = replace(cut(0, "1g.10gb@0 1g.10gb@5", "1g.10gb@6"), drain=drain)
    assert assign_groups([[card]], [SliceRequest("pod", "1g.10gb")]) == {}
    assert assign_groups([[replace(card, drain=None)]], [SliceRequest("pod", "1g.10gb")]) == {"pod": 0}


def test_a_request_for_several_slices_waits_until_all_its_cards_are_left() -> None:
    cards = [cut(0, "4g.40gb@0 1g.10gb@5"), cut(1, "4g.40gb@0 1g.10gb@5"), cut(2, "", "", node="n1")]
    pods = (movable("a", 0, "1g.10gb@5"), movable("b", 1, "1g.10gb@5"))
    two = SliceRequest("two", "3g.40gb", 2, nodes=frozenset({"n0"}))
    begun = decide_layouts(group(*cards, movable=pods), [two], OPEN)
    assert drained(begun) == {"GPU-0": (["a"], "two"), "GPU-1": (["b"], "two")}
    half = replace(begun.gpus[0], used=places(A100, "4g.40gb@0"), spare=places(A100, "1g.10gb@5"))
    waits = decide_layouts(group(half, *begun.gpus[1:], movable=pods[1:]), [two], OPEN)
    assert drained(waits) == drained(begun)
    assert not waits.changed
    whole = replace(begun.gpus[1], used=places(A100, "4g.40gb@0"), spare=places(A100, "1g.10gb@5"))
    done = decide_layouts(group(half, whole, begun.gpus[2]), [two], OPEN)
    assert names(done)[:2] == ["4g.40gb@0 3g.40gb@4"] * 2
