"""Where a gang goes when others follow: so that as many of them as can be start, on the fewest leaves together.

For every promising way to place the gang, those that follow are placed behind it by a quick rule, one after the other
(`kgwe.placement.gang.lookahead.quick_fit`); what counts is the leaves of all of them. A gang that finds no room any
more counts as many leaves. Of ways that are equal in that, the lower domain wins, then the one with fewer pairs of pods
in different leaves, then the one that begins fewer leaves without filling them, then the tighter one, then the one on
fewer nodes. The usual choice is one of the ways, and stays unless another is better.

All ways but one have as many leaves as the usual choice. The one that may have more, inside the same domain or above
the level that the gang prefers, keeps whole nodes for larger pods (`Keep`). It is a way only where the forecast is
better with it than without.

Who goes first is not decided here, and the answer depends on nothing but what is free and who follows: no clock, no
chance. Work is bounded by counting: on a large cluster fewer of those that follow are looked at.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kgwe.placement.gang.lookahead import free_capacity
from kgwe.placement.gang.lookahead.quick_fit import Forecast, Want

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kgwe.placement.gang.lookahead.free_capacity import Board, Parts
    from kgwe.placement.gang.lookahead.quick_fit import Keep, Outlook

# Ways to place the gang that are compared, leaves times gangs that are looked at for all of them, and sets of leaves
# of one level that are considered, by domains of it.
_WAYS: Final = 3
_VISITS: Final = 10_000
_SETS: Final = 80
_DOMAINS: Final = 8
# A gang that spans more leaves takes what is there.
_LEAVES: Final = 8


@dataclass(frozen=True, slots=True)
class Way:
    """One way to place the gang."""

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
    way: Way
    ahead: Outlook
    usual: Outlook
    looked_at: int
    """Gangs that follow and were looked at."""

    def words(self) -> str:
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
class Allowed:
    """Where the gang may be placed."""

    levels: Sequence[tuple[int, Sequence[range]]]
    """Levels, the lowest first, with the leaves of each domain that holds the gang."""
    fine: Sequence[bool]
    """Leaf -> whether it is as good as those of the usual choice."""


def choose(
    board: Board, want: Want, usual: Way, allowed: Allowed, *, following: Sequence[Want], waiting: int
) -> Choice | None:
    """The best way, if it is better than the usual one; of those that follow, the first `waiting` wait already."""
    if len(usual.parts) > _LEAVES:
        return None
    ways = _distinct(board, want, [usual, *_ways(board, want, allowed, len(usual.parts))])
    forecast = Forecast(board, following[: _VISITS // (len(board.states) * len(ways))], waiting)
    # Room that is kept goes to gangs that come sooner: whether that pays shows only where the last one is in sight.
    keep = forecast.find_keep(board, want) if len(forecast.following) >= waiting else None
    if not forecast.following or (len(ways) < 2 and keep is None):  # noqa: PLR2004 -- nothing to choose between
        return None
    # The usual one is worked out to the end; others no further than it takes to see that they are worse.
    plain = forecast.count(ways[0][1], len(usual.parts))
    outlooks = [plain]
    if keep is not None:
        way = _sparing_way(board, want, usual, allowed, keep)
        after = board.after(want.kind, way.parts, tight=way.tight)
        kept = keep.after(board, after, want.kind)
        spared = forecast.count(after, len(way.parts), keep=kept, limit=plain.total)
        if not _is_worth(spared, plain, len(way.parts) - len(usual.parts)):
            keep = None
        elif way is usual:
            outlooks = [spared]
        else:
            ways.insert(1, (way, after))
            after = board.after(want.kind, usual.parts, tight=usual.tight)
            kept = keep.after(board, after, want.kind)
            outlooks = [forecast.count(after, len(usual.parts), keep=kept, limit=spared.total), spared]
    for way, after in ways[len(outlooks) :]:
        left = keep.after(board, after, want.kind) if keep else None
        limit = min(each.total for each in outlooks)
        outlooks.append(forecast.count(after, len(way.parts), keep=left, limit=limit))
    room = board.room[want.kind]
    number = min(range(len(ways)), key=lambda each: (outlooks[each].total, *_order(room, ways[each][0]), each))
    return Choice(ways[number][0], outlooks[number], plain, len(forecast.following)) if number else None


def _is_worth(spared: Outlook, plain: Outlook, more_leaves: int) -> bool:
    """Whether it pays to keep room; a gang takes more leaves itself only for one that would not start otherwise."""
    return spared.total < plain.total and (more_leaves <= 0 or spared.refused < plain.refused)


def _sparing_way(board: Board, want: Want, usual: Way, allowed: Allowed, keep: Keep) -> Way:
    """The way that keeps room for larger pods; the usual one for a gang of such pods, and where there is none."""
    if not keep.is_wider(board, want.kind):
        return usual
    level, domains = allowed.levels[-1]
    within = Want(want.kind, want.pods, (tuple(domains),), one_leaf=all(len(leaves) == 1 for leaves in domains))
    found = keep.place(board.only(allowed.fine), within, keep.spare)
    return usual if found is None else Way(found[0], level, tight=True)


def _order(room: Sequence[int], way: Way) -> tuple[int, ...]:
    """Of ways with equal forecasts, the least is the best."""
    return way.level, -way.pairs_inside, *_rest(room, way.parts), way.tight


def _rest(room: Sequence[int], parts: Parts) -> tuple[int, int]:
    """Leaves that are begun and not filled by a gang of several, and the room of all its leaves."""
    stumps = sum(room[leaf] > pods for leaf, pods in parts) if len(parts) > 1 else 0
    return stumps, sum(room[leaf] for leaf, _ in parts)


def _distinct(board: Board, want: Want, ways: Sequence[Way]) -> list[tuple[Way, Board]]:
    """The ways with what they leave behind, each outcome once."""
    found: dict[tuple[object, ...], tuple[Way, Board]] = {}
    for way in ways:
        after = board.after(want.kind, way.parts, tight=way.tight)
        key = (way.level, frozenset((leaf, after.states[leaf]) for leaf, _ in way.parts))
        found.setdefault(key, (way, after))
    return list(found.values())


def _ways(board: Board, want: Want, allowed: Allowed, number: int) -> Iterator[Way]:
    """Ways with as many leaves as the usual one, the most promising first; each on few nodes and in small holes."""
    room = [each if good else 0 for each, good in zip(board.room[want.kind], allowed.fine, strict=True)]
    found: dict[tuple[object, ...], tuple[tuple[int, ...], Way]] = {}
    for level, domains in allowed.levels:
        for leaves in _tightest(room, domains):
            for chosen in _sets(room, leaves, want.pods, number, _SETS // min(len(domains), _DOMAINS)):
                for parts in free_capacity.share_out(room, chosen, want.pods):
                    way = Way(parts, level)
                    stumps, held = _rest(room, parts)
                    merit = (stumps, level, -way.pairs_inside, held, *chosen)
                    # Leaves in the same state are as good as each other.
                    alike = (level, *sorted((board.states[leaf], pods) for leaf, pods in parts))
                    if alike not in found or merit < found[alike][0]:
                        found[alike] = merit, way
    for _, way in sorted(found.values(), key=lambda each: each[0])[:_WAYS]:
        yield way
        yield Way(way.parts, way.level, tight=True)


def _tightest(room: Sequence[int], domains: Sequence[range]) -> Sequence[range]:
    if len(domains) <= _DOMAINS or len(domains[0]) == 1:
        return domains
    return sorted(domains, key=lambda leaves: (sum(room[leaf] for leaf in leaves), leaves.start))[:_DOMAINS]


def _sets(room: Sequence[int], leaves: range, pods: int, number: int, most: int) -> list[list[int]]:
    if number == 1:
        return [[leaf] for leaf in leaves if room[leaf] >= pods]
    return free_capacity.find_sets(room, leaves, pods, number, most)
