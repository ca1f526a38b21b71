"""Chooses among equally good places for a gang the one that is best for the gangs that follow.

For every promising option, the gangs that follow are placed after it by a quick rule, one after the other
(`kgwe.placement.gang.lookahead.quick_fit`). The option with the fewest leaves in total wins. A gang that finds no room
counts as several leaves. Ties are broken in this order: the lower level, fewer pairs of pods in different leaves,
fewer partly filled leaves, the tighter fit, fewer nodes. The default choice is one of the options and stays unless
another one is better.

All options but one have as many leaves as the default choice. The exception may have more, and keeps whole nodes for
larger pods (`LargePodReserve`). It is considered only if the forecast is better with it.

The result depends only on the free capacity and the gangs that follow, not on a clock or on chance. The amount of work
is bounded: on a large cluster fewer of the following gangs are considered.
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

# Sets of leaves that are compared.
_MAX_OPTIONS: Final = 3
# Leaves times following gangs that are visited for all options together.
_MAX_VISITS: Final = 10_000
# Sets of leaves of one level that are considered, and domains that they come from.
_MAX_SETS: Final = 80
_MAX_DOMAINS: Final = 8
# For a gang that spans more leaves there is no choice.
_MAX_LEAVES: Final = 8


@dataclass(frozen=True, slots=True)
class PlacementOption:
    """One possible place of the gang."""

    parts: Parts
    level: int
    tight: bool = False
    """Whether pods fill the nodes with the least room first, instead of using the fewest nodes."""

    @property
    def pairs_inside(self) -> int:
        """The more pairs of pods share a leaf, the larger."""
        return sum(pods * pods for _, pods in self.parts)


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen option, with the forecasts for it and for the default choice."""

    option: PlacementOption
    ahead: ForecastResult
    default: ForecastResult
    looked_at: int
    """Number of following gangs that were considered."""

    def describe(self) -> str:
        others = f"the {self.looked_at} gangs that follow" if self.looked_at > 1 else "the gang that follows"
        found, fewer = self.default.refused - self.ahead.refused, self.default.leaves - self.ahead.leaves
        gains = []
        if found > 0:
            gains.append(f"{found} more will fit")
        if fewer > 0:
            gains.append(f"{fewer} {'leaves' if fewer > 1 else 'leaf'} fewer in total")
        if not gains and self.default.price > self.ahead.price:
            gains.append("waiting gangs will fit before expected ones")
        return f"place chosen for {others}: {', '.join(gains) or 'fewer leaves stay partly filled'}"


@dataclass(frozen=True, slots=True)
class AllowedDomains:
    """The domains where the gang may be placed."""

    levels: Sequence[tuple[int, Sequence[range]]]
    """Levels, the lowest first, each with the leaves of every domain that holds the gang."""
    usable: Sequence[bool]
    """Leaf -> whether it is as good as the leaves of the default choice."""


def choose_option(
    capacity: FreeCapacity,
    demand: GangDemand,
    default: PlacementOption,
    allowed: AllowedDomains,
    *,
    following: Sequence[GangDemand],
    waiting: int,
) -> Choice | None:
    """The best option if it is better than the default choice; else None.

    The first `waiting` of the following gangs wait already, the others are expected.
    """
    if len(default.parts) > _MAX_LEAVES:
        return None
    options = _remove_duplicates(
        capacity, demand, [default, *_iter_options(capacity, demand, allowed, len(default.parts))]
    )
    forecast = Forecast(capacity, following[: _MAX_VISITS // (len(capacity.states) * len(options))], waiting)
    # Reserved room helps earlier gangs. Its cost for later ones is known only if all waiting gangs are considered.
    reserve = forecast.find_reserve(capacity, demand) if len(forecast.following) >= waiting else None
    if not forecast.following or (len(options) < 2 and reserve is None):  # noqa: PLR2004 -- nothing to choose between
        return None
    # The forecast for the default choice is complete; others end as soon as they are known to be worse.
    plain = forecast.predict_leaves(options[0][1], len(default.parts))
    forecasts = [plain]
    if reserve is not None:
        option = _build_sparing_option(capacity, demand, default, allowed, reserve)
        after = capacity.copy_with_pods(demand.kind, option.parts, tight=option.tight)
        left = reserve.after_placing(capacity, after, demand.kind)
        with_reserve = forecast.predict_leaves(after, len(option.parts), reserve=left, limit=plain.total)
        if not _is_worth_reserving(with_reserve, plain, len(option.parts) - len(default.parts)):
            reserve = None
        elif option is default:
            forecasts = [with_reserve]
        else:
            options.insert(1, (option, after))
            after = capacity.copy_with_pods(demand.kind, default.parts, tight=default.tight)
            left = reserve.after_placing(capacity, after, demand.kind)
            forecasts = [
                forecast.predict_leaves(after, len(default.parts), reserve=left, limit=with_reserve.total),
                with_reserve,
            ]
    for option, after in options[len(forecasts) :]:
        remaining = reserve.after_placing(capacity, after, demand.kind) if reserve else None
        limit = min(each.total for each in forecasts)
        forecasts.append(forecast.predict_leaves(after, len(option.parts), reserve=remaining, limit=limit))
    room = capacity.room[demand.kind]
    number = min(
        range(len(options)), key=lambda each: (forecasts[each].total, *_rank_option(room, options[each][0]), each)
    )
    return Choice(options[number][0], forecasts[number], plain, len(forecast.following)) if number else None


def _is_worth_reserving(with_reserve: ForecastResult, plain: ForecastResult, more_leaves: int) -> bool:
    """Whether reserving room is better; a gang uses more leaves only for a gang that would not start otherwise."""
    return with_reserve.total < plain.total and (more_leaves <= 0 or with_reserve.refused < plain.refused)


def _build_sparing_option(
    capacity: FreeCapacity,
    demand: GangDemand,
    default: PlacementOption,
    allowed: AllowedDomains,
    reserve: LargePodReserve,
) -> PlacementOption:
    """The option that keeps room for larger pods; the default choice if the gang has such pods or no option exists."""
    if not reserve.is_for_larger_pods(capacity, demand.kind):
        return default
    level, domains = allowed.levels[-1]
    within = GangDemand(
        demand.kind, demand.pods, (tuple(domains),), one_leaf=all(len(leaves) == 1 for leaves in domains)
    )
    found = reserve.place_gang(capacity.restrict_to(allowed.usable), within, reserve.spare)
    return default if found is None else PlacementOption(found[0], level, tight=True)


def _rank_option(room: Sequence[int], option: PlacementOption) -> tuple[int, ...]:
    """The sort key of options with equal forecasts: the smallest is the best."""
    return option.level, -option.pairs_inside, *_count_leftovers(room, option.parts), option.tight


def _count_leftovers(room: Sequence[int], parts: Parts) -> tuple[int, int]:
    """Leaves that a gang of several leaves fills only in part, and the total room of its leaves."""
    partly_filled = sum(room[leaf] > pods for leaf, pods in parts) if len(parts) > 1 else 0
    return partly_filled, sum(room[leaf] for leaf, _ in parts)


def _remove_duplicates(
    capacity: FreeCapacity, demand: GangDemand, options: Sequence[PlacementOption]
) -> list[tuple[PlacementOption, FreeCapacity]]:
    """The options, each with the capacity it leaves; of options with the same result only the first."""
    found: dict[tuple[object, ...], tuple[PlacementOption, FreeCapacity]] = {}
    for option in options:
        after = capacity.copy_with_pods(demand.kind, option.parts, tight=option.tight)
        key = (option.level, frozenset((leaf, after.states[leaf]) for leaf, _ in option.parts))
        found.setdefault(key, (option, after))
    return list(found.values())


def _iter_options(
    capacity: FreeCapacity, demand: GangDemand, allowed: AllowedDomains, number: int
) -> Iterator[PlacementOption]:
    """Options with so many leaves, the most promising first; each with `tight` False and True."""
    room = [each if good else 0 for each, good in zip(capacity.room[demand.kind], allowed.usable, strict=True)]
    found: dict[tuple[object, ...], tuple[tuple[int, ...], PlacementOption]] = {}
    for level, domains in allowed.levels:
        for leaves in _list_tightest(room, domains):
            for chosen in _list_leaf_sets(
                room, leaves, demand.pods, number, _MAX_SETS // min(len(domains), _MAX_DOMAINS)
            ):
                for parts in free_capacity.split_over_set(room, chosen, demand.pods):
                    option = PlacementOption(parts, level)
                    partly_filled, held = _count_leftovers(room, parts)
                    merit = (partly_filled, level, -option.pairs_inside, held, *chosen)
                    # Leaves in the same state are interchangeable.
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
