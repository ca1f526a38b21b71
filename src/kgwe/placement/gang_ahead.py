"""Where a gang goes when others follow: so that all of them together need the fewest leaves.

For every promising way to place the gang, those that follow are placed behind it by a quick rule, one after the other;
what counts is the leaves of all of them. A gang that finds no room any more counts as many leaves (`_price`). Of ways
that are equal in that, the lower domain wins, then the one with fewer pairs of pods in different leaves, then the one
that begins fewer leaves without filling them, then the tighter one, then the one on fewer nodes. The usual choice is
one of the ways, and stays unless another is better.

Who goes first is not decided here, and the answer depends on nothing but what is free and who follows: no clock, no
chance. Work is bounded by counting: on a large cluster fewer of those that follow are looked at.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kgwe.placement import gang_board

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kgwe.placement.gang_board import Board, Parts

# What a gang counts that finds no room any more, in leaves: so many, and so many for each it would need at least now.
# The last gangs that fit often span twice as many as they should, which is worth it.
_WAITS: Final = 4
_WAITS_PER_LEAF: Final = 3
# Ways to place the gang that are compared, leaves times gangs that are looked at for all of them, and sets of leaves
# of one level that are considered, by domains of it.
_WAYS: Final = 4
_VISITS: Final = 10_000
_SETS: Final = 80
_DOMAINS: Final = 8
# A gang that spans more leaves takes what is there.
_LEAVES: Final = 8

#: leaves of each domain of one level, of levels from the lowest to try
Scopes = tuple[tuple[range, ...], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Want:
    """A gang as it is counted here; gangs that are alike share one."""

    kind: int
    pods: int
    scopes: Scopes
    """Where to look when no leaf holds it: the first level that has a domain with room."""
    one_leaf: bool = False
    """It does not start unless one leaf holds it."""


@dataclass(frozen=True, slots=True)
class Way:
    """One way to place the gang."""

    parts: Parts
    rung: int
    tight: bool = False
    """Into the smallest holes of its leaves, instead of onto the fewest nodes."""

    @property
    def pairs_inside(self) -> int:
        """Grows with the pairs of pods that share a leaf."""
        return sum(pods * pods for _, pods in self.parts)


@dataclass(frozen=True, slots=True)
class Outlook:
    """What the gangs that follow get, as placed by the quick rule."""

    leaves: int
    """Of the gang itself and of those that find room."""
    refused: int
    price: int
    """Of those that find none, in leaves."""

    @property
    def total(self) -> int:
        return self.leaves + self.price


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
        return f"placed with a view to {others}: {', '.join(gains) or 'fewer leaves are begun and not filled'}"


@dataclass(frozen=True, slots=True)
class Allowed:
    """Where the gang may be placed."""

    levels: Sequence[tuple[int, Sequence[range]]]
    """Rungs, the lowest first, with the leaves of each domain that holds the gang."""
    fine: Sequence[bool]
    """Leaf -> whether it is as good as those of the usual choice."""


def choose(board: Board, want: Want, usual: Way, allowed: Allowed, *, following: Sequence[Want]) -> Choice | None:
    """The best way, if it is better than the usual one."""
    if len(usual.parts) > _LEAVES:
        return None
    ways = _distinct(board, want, [usual, *_ways(board, want, allowed, len(usual.parts))])
    ahead = following[: _VISITS // (len(board.states) * len(ways))]
    if len(ways) < 2 or not ahead:  # noqa: PLR2004 -- nothing to choose between
        return None
    least = _least_leaves(board, ahead)
    outlooks: list[Outlook] = []
    merits: list[tuple[tuple[float, ...], int]] = []
    room = board.room[want.kind]
    for number, (way, after) in enumerate(ways):
        # The usual one is worked out to the end; others no further than it takes to see that they are worse.
        limit = min((each.total for each in outlooks), default=None)
        found = _count(after, ahead, len(way.parts), least, limit)
        outlooks.append(found)
        merits.append(((found.total, way.rung, -way.pairs_inside, *_rest(room, way.parts), way.tight), number))
    number = min(merits)[1]
    return Choice(ways[number][0], outlooks[number], outlooks[0], len(ahead)) if number else None


def _rest(room: Sequence[int], parts: Parts) -> tuple[int, int]:
    """Leaves that are begun and not filled by a gang of several, and the room of all its leaves."""
    stumps = sum(room[leaf] > pods for leaf, pods in parts) if len(parts) > 1 else 0
    return stumps, sum(room[leaf] for leaf, _ in parts)


def _distinct(board: Board, want: Want, ways: Sequence[Way]) -> list[tuple[Way, Board]]:
    """The ways with what they leave behind, each outcome once."""
    found: dict[tuple[object, ...], tuple[Way, Board]] = {}
    for way in ways:
        after = board.after(want.kind, way.parts, tight=way.tight)
        key = (way.rung, frozenset((leaf, after.states[leaf]) for leaf, _ in way.parts))
        found.setdefault(key, (way, after))
    return list(found.values())


def _ways(board: Board, want: Want, allowed: Allowed, number: int) -> Iterator[Way]:
    """Ways with as many leaves as the usual one, the most promising first; each on few nodes and in small holes."""
    room = [each if good else 0 for each, good in zip(board.room[want.kind], allowed.fine, strict=True)]
    found: dict[tuple[object, ...], tuple[tuple[int, ...], Way]] = {}
    for rung, domains in allowed.levels:
        for leaves in _tightest(room, domains):
            for chosen in _sets(room, leaves, want.pods, number, _SETS // min(len(domains), _DOMAINS)):
                for parts in gang_board.share_out(room, chosen, want.pods):
                    way = Way(parts, rung)
                    stumps, held = _rest(room, parts)
                    merit = (stumps, rung, -way.pairs_inside, held, *chosen)
                    # Leaves in the same state are as good as each other.
                    alike = (rung, *sorted((board.states[leaf], pods) for leaf, pods in parts))
                    if alike not in found or merit < found[alike][0]:
                        found[alike] = merit, way
    for _, way in sorted(found.values(), key=lambda each: each[0])[:_WAYS]:
        yield way
        yield Way(way.parts, way.rung, tight=True)


def _tightest(room: Sequence[int], domains: Sequence[range]) -> Sequence[range]:
    if len(domains) <= _DOMAINS or len(domains[0]) == 1:
        return domains
    return sorted(domains, key=lambda leaves: (sum(room[leaf] for leaf in leaves), leaves.start))[:_DOMAINS]


def _sets(room: Sequence[int], leaves: range, pods: int, number: int, most: int) -> list[list[int]]:
    if number == 1:
        return [[leaf] for leaf in leaves if room[leaf] >= pods]
    return gang_board.find_sets(room, leaves, pods, number, most)


def _least_leaves(board: Board, following: Sequence[Want]) -> list[int]:
    """No less than what each of those that follow needs: room only shrinks."""
    known: dict[Want, int] = {}
    for want in following:
        if want not in known:
            room = board.room[want.kind]
            known[want] = gang_board.count_fewest(room, range(len(room)), want.pods) or 1
    return [known[want] for want in following]


def _price(least: int) -> int:
    """What a gang counts that finds no room."""
    return _WAITS + _WAITS_PER_LEAF * least


def _count(board: Board, following: Sequence[Want], leaves: int, least: Sequence[int], limit: int | None) -> Outlook:
    """What those that follow get when each goes where the quick rule puts it; beyond `limit` it is not worked out.

    `leaves`: of the gang itself. Leaves the board full.
    """
    count = price = 0
    rest = sum(least)
    refused: set[Want] = set()
    for want, fewest in zip(following, least, strict=True):
        rest -= fewest
        parts = None if want in refused else _place(board, want)
        if parts is None:
            refused.add(want)
            count += 1
            price += _price(fewest)
        else:
            leaves += len(parts)
            board.place(want.kind, parts, tight=True)
        if limit is not None and leaves + price + rest > limit:
            return Outlook(leaves + rest, count, price)
    return Outlook(leaves, count, price)


def _place(board: Board, want: Want) -> Parts | None:
    """The quick rule: the tightest leaf, else the fewest leaves of a domain with the least left over."""
    room = board.room[want.kind]
    if max(room) >= want.pods:
        tightest = min([each for each in room if each >= want.pods])
        return ((room.index(tightest), want.pods),)
    if want.one_leaf:
        return None
    for domains in want.scopes:
        found = [parts for leaves in domains if (parts := gang_board.split_fast(room, leaves, want.pods))]
        if found:
            return min(found, key=len)
    return None
