"""Chooses among equally good places for a gang the one that is best for the gangs that follow.

For every promising option the following gangs are placed behind it by a quick rule, one after the other
(`kgwe.placement.gang.lookahead.quick_fit`). The option with the fewest leaves in all wins; a gang that finds no room
counts as several leaves. Ties are broken in this order: the lower domain, fewer pairs of pods in different leaves,
fewer leaves that are begun and not filled, the tighter fit, fewer nodes. The default choice is one of the options and
stays unless another is better.

All options but one have as many leaves as the default choice. The exception may have more and keeps whole nodes for
larger pods (`LargePodReserve`). It is an option only where the forecast is better with it than without.

The result depends only on what is free and which gangs follow: no clock and no randomness. The amount of work is
bounded: on a large cluster fewer of the following gangs are considered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kgwe.placement.gang.lookahead import free_capacity
from kgwe.placement.gang.lookahead.quick_fit import Forecast, GangDemand

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kgwe.placement.gang.lookahead.free_capacity import FreeCapacity, Parts
    from kgwe.placement.gang.lookahead.quick_fit import ForecastResult, LargePodReserve

# Options to place the gang that are compared, leaves times gangs that are looked at for all of them, and sets of leaves
# of one level that are considered, by domains of it.
_MAX_OPTIONS: Final = 3
_MAX_VISITS: Final = 10_000
_MAX_SETS: Final = 80
_MAX_DOMAINS: Final = 8
# A gang that spans more leaves takes what is there.
_MAX_LEAVES: Final = 8


@dataclass(frozen=True, slots=True)
class PlacementOption:
    """One option to place the gang."""

    parts: Parts
    level: int
    tight: bool = False
    """Into the smallest holes of its leaves, instead of onto the fewest nodes."""

    @property
    def pairs_inside(self) -> int:
        """Grows with the pairs of pods that share a leaf."""
        return sum(pods * pods for _, pods in self.parts)


@dataclass(frozen=True, slots=True)
class Choice:
    option: PlacementOption
    ahead: ForecastResult
    usual: ForecastResult
    looked_at: int
    """Gangs that follow and were looked at."""

    def describe(self) -> str:
        others = f"the {self.looked_at} gangs that follow" if self.looked_at > 1 else "the gang that follows"
        found, fewer = self.usual.refused - self.ahead.refused, self.usual.leaves - self.ahead.leaves
        gains = []
        if found > 0:
            gains.append(f"{found} more will find room")
        if fewer > 0:
            gains.append(f"{fewer} {'leaves' if fewer > 1 else 'leaf'} fewer in all")
        if not gains and self.usual.price > self.ahead.price:
            gains.append("those that wait already will find room first")
        return f"placed with a view to {others}: {', '.join(gains) or 'fewer leaves are begun and not filled'}"


@dataclass(frozen=True, slots=True)
class AllowedDomains:
    """Where the gang may be placed."""

    levels: Sequence[tuple[int, Sequence[range]]]
    """Levels, the lowest first, with the leaves of each domain that holds the gang."""
    usable: Sequence[bool]
    """Leaf -> whether it is as good as those of the usual choice."""


def choose_option(
    capacity: FreeCapacity,
    demand: GangDemand,
    usual: PlacementOption,
    allowed: AllowedDomains,
    *,
    following: Sequence[GangDemand],
    waiting: int,
) -> Choice | None:
    """The best option, if it is better than the usual one; of those that follow, the first `waiting` wait already."""
    if len(usual.parts) > _MAX_LEAVES:
        return None
    options = _remove_duplicates(capacity, demand, [usual, *_iter_options(capacity, demand, allowed, len(usual.parts))])
    forecast = Forecast(capacity, following[: _MAX_VISITS // (len(capacity.states) * len(options))], waiting)
    # Room that is kept goes to gangs that come sooner: whether that pays shows only where the last one is in sight.
    keep = forecast.find_reserve(capacity, demand) if len(forecast.following) >= waiting else None
    if not forecast.following or (len(options) < 2 and keep is None):  # noqa: PLR2004 -- nothing to choose between
        return None
    # The usual one is worked out to the end; others no further than it takes to see that they are worse.
    plain = forecast.predict_leaves(options[0][1], len(usual.parts))
    outlooks = [plain]
    if keep is not None:
        option = _build_sparing_option(capacity, demand, usual, allowed, keep)
        after = capacity.copy_with_pods(demand.kind, option.parts, tight=option.tight)
        kept = keep.update(capacity, after, demand.kind)
        spared = forecast.predict_leaves(after, len(option.parts), keep=kept, limit=plain.total)
        if not _is_worth_reserving(spared, plain, len(option.parts) - len(usual.parts)):
            keep = None
        elif option is usual:
            outlooks = [spared]
        else:
            options.insert(1, (option, after))
            after = capacity.copy_with_pods(demand.kind, usual.parts, tight=usual.tight)
            kept = keep.update(capacity, after, demand.kind)
            outlooks = [forecast.predict_leaves(after, len(usual.parts), keep=kept, limit=spared.total), spared]
    for option, after in options[len(outlooks) :]:
        left = keep.update(capacity, after, demand.kind) if keep else None
        limit = min(each.total for each in outlooks)
        outlooks.append(forecast.predict_leaves(after, len(option.parts), keep=left, limit=limit))
    room = capacity.room[demand.kind]
    number = min(
        range(len(options)), key=lambda each: (outlooks[each].total, *_rank_option(room, options[each][0]), each)
    )
    return Choice(options[number][0], outlooks[number], plain, len(forecast.following)) if number else None


def _is_worth_reserving(spared: ForecastResult, plain: ForecastResult, more_leaves: int) -> bool:
    """Whether it pays to keep room; a gang takes more leaves itself only for one that would not start otherwise."""
    return spared.total < plain.total and (more_leaves <= 0 or spared.refused < plain.refused)


def _build_sparing_option(
    capacity: FreeCapacity, demand: GangDemand, usual: PlacementOption, allowed: AllowedDomains, keep: LargePodReserve
) -> PlacementOption:
    """The option that keeps room for larger pods; the usual one for a gang of such pods, and where there is none."""
    if not keep.is_for_larger_pods(capacity, demand.kind):
        return usual
    level, domains = allowed.levels[-1]
    within = GangDemand(
        demand.kind, demand.pods, (tuple(domains),), one_leaf=all(len(leaves) == 1 for leaves in domains)
    )
    found = keep.place_gang(capacity.restrict_to(allowed.usable), within, keep.spare)
    return usual if found is None else PlacementOption(found[0], level, tight=True)


def _rank_option(room: Sequence[int], option: PlacementOption) -> tuple[int, ...]:
    """Of options with equal forecasts, the least is the best."""
    return option.level, -option.pairs_inside, *_count_leftovers(room, option.parts), option.tight


def _count_leftovers(room: Sequence[int], parts: Parts) -> tuple[int, int]:
    """Leaves that are begun and not filled by a gang of several, and the room of all its leaves."""
    stumps = sum(room[leaf] > pods for leaf, pods in parts) if len(parts) > 1 else 0
    return stumps, sum(room[leaf] for leaf, _ in parts)


def _remove_duplicates(
    capacity: FreeCapacity, demand: GangDemand, options: Sequence[PlacementOption]
) -> list[tuple[PlacementOption, FreeCapacity]]:
    """The options with what they leave behind, each outcome once."""
    found: dict[tuple[object, ...], tuple[PlacementOption, FreeCapacity]] = {}
    for option in options:
        after = capacity.copy_with_pods(demand.kind, option.parts, tight=option.tight)
        key = (option.level, frozenset((leaf, after.states[leaf]) for leaf, _ in option.parts))
        found.setdefault(key, (option, after))
    return list(found.values())


def _iter_options(
    capacity: FreeCapacity, demand: GangDemand, allowed: AllowedDomains, number: int
) -> Iterator[PlacementOption]:
    """Options with as many leaves as the usual one, the most promising first; each on few nodes and in small holes."""
    room = [each if good else 0 for each, good in zip(capacity.room[demand.kind], allowed.usable, strict=True)]
    found: dict[tuple[object, ...], tuple[tuple[int, ...], PlacementOption]] = {}
    for level, domains in allowed.levels:
        for leaves in _list_tightest(room, domains):
            for chosen in _list_leaf_sets(
                room, leaves, demand.pods, number, _MAX_SETS // min(len(domains), _MAX_DOMAINS)
            ):
                for parts in free_capacity.split_over_set(room, chosen, demand.pods):
                    option = PlacementOption(parts, level)
                    stumps, held = _count_leftovers(room, parts)
                    merit = (stumps, level, -option.pairs_inside, held, *chosen)
                    # Leaves in the same state are as good as each other.
                    alike = (level, *sorted((capacity.states[leaf], pods) for leaf, pods in parts))
                    if alike not in found or merit < found[alike][0]:
                        found[alike] = merit, option
    for _, option in sorted(found.values(), key=lambda each: each[0])[:_MAX_OPTIONS]:
        yield option
        yield PlacementOption(option.parts, option.level, tight=True)


def _list_tightest(room: Sequence[int], domains: Sequence[range]) -> Sequence[range]:
    if len(domains) <= _MAX_DOMAINS or len(domains[0]) == 1:
        return domains
    return sorted(domains, key=lambda leaves: (sum(room[leaf] for leaf in leaves), leaves.start))[:_MAX_DOMAINS]


def _list_leaf_sets(room: Sequence[int], leaves: range, pods: int, number: int, most: int) -> list[list[int]]:
    if number == 1:
        return [[leaf] for leaf in leaves if room[leaf] >= pods]
    return free_capacity.find_leaf_sets(room, leaves, pods, number, most)
