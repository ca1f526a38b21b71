"""What the cards of a MIGStrategy are to be cut into now: by its distribution, by what waits, by what is to come.

The cards are looked at as they will be when everything asked of them so far is done, so that a request that waits for
a cut under way is not cut for twice. In this order:

1. Spare instances are put aside for the requests that wait, oldest first: all of one pod on one node.
2. The distribution is laid out (`strategy.cut`): always where it is fixed; where it may follow demand, for new cards
   and when a rebalance is due, and then only if it would move a tenth of the memory units: less is not worth a cut.
3. For requests still without a place the cheapest re-cut is found (`recut.plan`). Slices that were busy for much of the
   time until now are the last to go. Cards that the distribution leaves whole stay whole.
4. A preferred profile of which none is spare gets one, if it can be had from free units.

An instance in use is never touched, nor a card that is being cut. Nodes begin with a cut only as the gate lets them:
so many at a time. What was decided is stable: asked again with nothing changed, nothing changes.
"""

from __future__ import annotations

import functools
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from kgwe import errors
from kgwe.model import mig
from kgwe.sharing import layouts, recut, strategy
from kgwe.sharing.cutcards import Ask, CutCard
from kgwe.sharing.recut import Card, Recut, Stuck
from kgwe.sharing.slots import SlotTable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from kgwe.sharing.cutcards import Gate

#: moving less than this part of the memory units is not worth a cut
DEAD_BAND: Final = 0.1
# Steps in which a forecast is looked at: a table is made for each mix.
_MIX_STEPS: Final = 10


@dataclass(frozen=True, slots=True)
class Group:
    """Cards of one geometry that one strategy decides on."""

    geometry: mig.Geometry
    distribution: Mapping[str, float]
    cards: tuple[CutCard, ...]
    is_dynamic: bool = False
    is_due: bool = False
    """A rebalance is due."""
    mix: Mapping[str, float] = field(default_factory=dict)
    """Profile -> weight of recent requests."""
    preferred: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Decision:
    """What became of it."""

    cards: tuple[CutCard, ...]
    """In the order given, as they are to be."""
    gate: Gate
    changed: frozenset[str]
    """UUIDs of cards that are to be cut anew."""
    waiting: tuple[str, ...]
    """Requests without a place, and why."""
    short: Mapping[str, int]
    """Instances of the distribution that no layout has room for."""


def known(geometry: mig.Geometry, distribution: Mapping[str, float]) -> dict[str, float]:
    """The part of a distribution that a kind of card can be cut into."""
    return {name: share for name, share in distribution.items() if name in geometry.profiles}


def decide(group: Group, asks: Sequence[Ask], gate: Gate) -> Decision:
    """What the cards are to be cut into now."""
    work = _Work(group, gate)
    left = work.put_aside([ask for ask in asks if ask.profile in group.geometry.profiles])
    short = work.conform()
    left = work.put_aside(left)
    if group.is_dynamic:
        waiting = [f"{ask.name}: {why}" for ask in left if (why := work.serve(ask)) is not None]
        for profile in group.preferred:
            work.warm_up(profile)
    else:
        waiting = [f"{ask.name}: no {ask.profile} is spare, and the distribution is fixed" for ask in left]
    cards = tuple(work.result(number) for number in range(len(group.cards)))
    changed = {
        new.uuid for old, new in zip(group.cards, cards, strict=True) if (old.layout, old.is_whole) != _shape(new)
    }
    return Decision(cards, work.gate, frozenset(changed), tuple(waiting), short)


def served_by(groups: Sequence[Sequence[CutCard]], asks: Iterable[Ask]) -> dict[str, int]:
    """Request -> the first of several groups that has spare instances for it, or will have; the others are left out."""
    spare: dict[tuple[str, int, str], int] = {}
    for number, cards in enumerate(groups):
        for card in cards:
            for place in card.spare:
                key = place.profile.name, number, card.node
                spare[key] = spare.get(key, 0) + 1
    found = {}
    for ask in asks:
        for (profile, number, node), count in spare.items():
            if profile == ask.profile and count >= ask.count and ask.may_go(node):
                spare[profile, number, node] -= ask.count
                found[ask.name] = number
                break
    return found


def _shape(card: CutCard) -> tuple[tuple[mig.Placement, ...], bool]:
    return card.layout, card.is_whole


class _Work:
    """The cards while they are being decided on."""

    def __init__(self, group: Group, gate: Gate) -> None:
        self._group = group
        self.gate = gate
        self._cards = list(group.cards)
        self._put_aside: dict[int, list[mig.Placement]] = {number: [] for number in range(len(group.cards))}
        self._seen: dict[tuple[int, bool], Card] = {}
        self._kinds: dict[tuple[int, bool], tuple[frozenset[str], frozenset[str], bool]] = {}
        self._on: dict[str, list[int]] = {}
        for number, card in enumerate(group.cards):
            self._on.setdefault(card.node, []).append(number)
        self._distribution = known(group.geometry, group.distribution)
        self._least_whole = strategy.whole_cards(group.geometry, len(group.cards), self._distribution)

    def result(self, number: int) -> CutCard:
        return self._cards[number]

    def _free(self, number: int) -> list[mig.Placement]:
        return [place for place in self._cards[number].spare if place not in self._put_aside[number]]

    def _held(self, number: int, *, and_warm: bool) -> tuple[mig.Placement, ...]:
        card = self._cards[number]
        warm = [place for place in card.warm if place in card.spare] if and_warm else []
        return tuple(dict.fromkeys((*card.used, *self._put_aside[number], *warm)))

    # --- 1. what is there already -----------------------------------------------------------------------

    def put_aside(self, asks: Iterable[Ask]) -> list[Ask]:
        """Spare instances for those who wait; returns who is left."""
        spare: dict[tuple[str, str], list[tuple[int, mig.Placement]]] = {}
        for node, numbers in self._on.items():
            for number in numbers:
                for place in self._free(number):
                    spare.setdefault((place.profile.name, node), []).append((number, place))
        left = []
        for ask in asks:
            enough = (
                found
                for (profile, node), found in spare.items()
                if profile == ask.profile and len(found) >= ask.count and ask.may_go(node)
            )
            places = next(enough, None)
            if places is None:
                left.append(ask)
                continue
            for number, place in (places.pop() for _ in range(ask.count)):
                self._put_aside[number].append(place)
        return left

    # --- 2. the distribution ----------------------------------------------------------------------------

    def conform(self) -> Mapping[str, int]:
        """Lay the distribution out where that is due; returns what it is short of."""
        group = self._group
        everywhere = group.is_due or not group.is_dynamic
        if not everywhere and all(card.is_decided for card in self._cards):
            return {}
        if not self._distribution:
            self._accept()
            return {}
        # New cards first, then idle ones: what the distribution leaves whole is best what somebody has whole.
        order = sorted(range(len(self._cards)), key=lambda i: (self._cards[i].is_decided, self._cards[i].is_taken, i))
        shares = self._wanted_shares()
        cut = strategy.cut(
            group.geometry, [self._as_is(i, is_open=self._may_change(i, everywhere=everywhere)) for i in order], shares
        )
        if group.is_dynamic and group.is_due and not self._is_worth_it(cut):
            self._accept()
            return {}
        # Those that become whole come first: no other is cut for them before.
        for number, plan in sorted(zip(order, cut.cards, strict=True), key=lambda each: bool(each[1].layout)):
            self._lay_out(number, plan.layout, may_change=self._may_change(number, everywhere=everywhere))
        return cut.short

    def _may_change(self, number: int, *, everywhere: bool) -> bool:
        card = self._cards[number]
        if not card.is_decided:
            return card.is_open
        return card.is_open and everywhere and not (self._group.is_dynamic and card.is_taken)

    def _as_is(self, number: int, *, is_open: bool) -> Card:
        held = self._held(number, and_warm=self._group.is_dynamic)
        if not is_open:
            return Card(self._cards[number].layout)
        return Card(held, tuple(place for place in self._cards[number].spare if place not in held))

    def _wanted_shares(self) -> Mapping[str, float]:
        """The distribution; where it may follow demand, half of the way to what was asked of late."""
        group, given = self._group, self._distribution
        asked = {name: weight for name, weight in group.mix.items() if name in group.geometry.profiles and weight > 0}
        if not group.is_dynamic or not asked:
            return given
        units = {name: weight * group.geometry.profile(name).units for name, weight in asked.items()}
        whole, total = sum(given.values()), sum(units.values())
        # A thousandth of rounding error must not make more than one of the shares.
        return {
            name: round((given.get(name, 0.0) + whole * units.get(name, 0.0) / total) / 2 - 5e-7, 6)
            for name in sorted({*given, *units})
        }

    def _is_worth_it(self, cut: strategy.Cut) -> bool:
        units = max(1, len(self._cards) * self._group.geometry.units)
        now: Counter[str] = Counter()
        for card in self._cards:
            for place in card.layout:
                now[place.profile.name] += place.profile.units
        names = {*now, *cut.shares}
        moved = sum(abs(cut.shares.get(name, 0.0) - now[name] / units) for name in names) / 2
        return moved >= DEAD_BAND or not all(card.is_decided for card in self._cards)

    def _accept(self) -> None:
        """New cards stay as they are."""
        self._cards = [replace(card, is_decided=True) for card in self._cards]

    def _lay_out(self, number: int, layout: tuple[mig.Placement, ...], *, may_change: bool) -> None:
        card = self._cards[number]
        # A card with MIG mode on and nothing on it is not whole; one that stays whole needs no cut.
        is_same = layout == card.layout and card.is_whole == (not layout)
        if is_same:
            self._cards[number] = replace(card, is_decided=True)
        elif may_change and self.gate.lets(card.node) and (not card.is_whole or self._whole_to_spare() > 0):
            self.gate = self.gate.through(card.node)
            spare = tuple(place for place in layout if place not in card.used)
            self._cards[number] = replace(card, spare=spare, is_whole=not layout, is_decided=True)

    def _whole_to_spare(self) -> int:
        """Whole cards beyond those that the distribution leaves whole."""
        return sum(card.is_whole for card in self._cards) - self._least_whole

    # --- 3. demand --------------------------------------------------------------------------------------

    def serve(self, ask: Ask) -> str | None:
        """Cut anew for one pod; the reason when there is no way."""
        stuck: str | None = None
        for and_warm in (True, False):
            for candidates in self._candidates(ask):
                numbers = self._unlike(candidates, and_warm=and_warm) if ask.count == 1 else candidates
                plan = self._plan(numbers, ask, and_warm=and_warm)
                if isinstance(plan, Recut):
                    self._apply(numbers, plan)
                    return None
                stuck = plan.detail
        return stuck or "every card is being cut, is used as a whole, or stays whole"

    def _candidates(self, ask: Ask) -> Iterator[list[int]]:
        """Cards to look at together: all of them for a single slice, else node by node."""
        whole = self._whole_to_spare()
        numbers = []
        for number, card in enumerate(self._cards):
            if not (card.is_open and card.is_decided and self.gate.lets(card.node) and ask.may_go(card.node)):
                continue
            if card.is_whole:
                if whole <= 0 or card.is_taken:
                    continue
                whole -= 1
            numbers.append(number)
        if ask.count == 1:
            if numbers:
                yield numbers
            return
        nodes: dict[str, list[int]] = {}
        for number in numbers:
            nodes.setdefault(self._cards[number].node, []).append(number)
        yield from nodes.values()

    def _plan(self, numbers: Sequence[int], ask: Ask, *, and_warm: bool) -> Recut | Stuck:
        cards = [self._as_asked(number, and_warm=and_warm) for number in numbers]
        names = {ask.profile, *(place.profile.name for card in cards for place in (*card.used, *card.spare))}
        return recut.plan(_table(self._group, frozenset(names)), cards, ask.profile, ask.count)

    def _as_asked(self, number: int, *, and_warm: bool) -> Card:
        """As `recut` sees it; remembered, because most cards stay as they are from one request to the next."""
        key = number, and_warm
        if key not in self._seen:
            held = self._held(number, and_warm=and_warm)
            self._seen[key] = Card(held, tuple(place for place in self._cards[number].spare if place not in held))
        return self._seen[key]

    def _unlike(self, numbers: Sequence[int], *, and_warm: bool) -> list[int]:
        """One card of each kind: for a single slice more of a kind are of no use."""
        kinds: dict[tuple[frozenset[str], frozenset[str], bool], int] = {}
        for number in numbers:
            key = number, and_warm
            if key not in self._kinds:
                card = self._as_asked(number, and_warm=and_warm)
                names = [
                    frozenset(f"{each.profile.name}@{each.start}" for each in part) for part in (card.used, card.spare)
                ]
                self._kinds[key] = names[0], names[1], self._cards[number].is_whole
            kinds.setdefault(self._kinds[key], number)
        return list(kinds.values())

    def _touch(self, number: int) -> None:
        for and_warm in (True, False):
            self._seen.pop((number, and_warm), None)
            self._kinds.pop((number, and_warm), None)

    def _apply(self, numbers: Sequence[int], plan: Recut) -> None:
        for change in plan.changes:
            number = numbers[change.card]
            card = self._cards[number]
            if change.create or change.destroy:
                self.gate = self.gate.through(card.node)
            kept = [place for place in card.spare if place not in change.destroy]
            self._cards[number] = replace(card, spare=(*kept, *change.create), is_whole=False)
            self._put_aside[number] += change.serve
            self._touch(number)

    # --- 4. ahead of demand -----------------------------------------------------------------------------

    def warm_up(self, profile: str) -> None:
        if profile not in self._group.geometry.profiles:
            return
        if any(place.profile.name == profile for number in range(len(self._cards)) for place in self._free(number)):
            return
        ask = Ask("", profile)
        for numbers in self._candidates(ask):
            cut = self._unlike([n for n in numbers if not self._cards[n].is_whole], and_warm=True)
            plan = self._plan(cut, ask, and_warm=True) if cut else None
            if isinstance(plan, Recut) and not plan.destroyed:
                self._apply(cut, plan)


def _table(group: Group, names: frozenset[str]) -> SlotTable:
    geometry = group.geometry
    profiles = tuple(name for name in geometry.profiles if name in {*layouts.plain_profiles(geometry), *names})
    weights = {name: group.mix[name] for name in profiles if group.mix.get(name, 0.0) > 0}
    total = sum(weights.values())
    # Of a profile that is rarely asked a little is kept: what nobody asked of late may still come.
    mix = (
        tuple((name, max(1, round(_MIX_STEPS * weights.get(name, 0.0) / total))) for name in profiles) if total else ()
    )
    return _made_table(geometry.name, profiles, mix)


@functools.lru_cache(maxsize=64)
def _made_table(geometry: str, profiles: tuple[str, ...], mix: tuple[tuple[str, int], ...]) -> SlotTable:
    try:
        found = mig.GEOMETRIES[geometry]
    except KeyError:
        raise errors.Permanent(f"no geometry {geometry!r} is known") from None
    return SlotTable(layouts.atlas(found, profiles), {name: float(weight) for name, weight in mix} or None)
