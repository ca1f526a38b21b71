"""The most requests any policy could have served, knowing the whole stream beforehand.

Exact, for short streams on few cards: all reachable fleets are carried from request to request, each with
the most it has served so far. Fleets that no later request can tell apart are one: cards have no names, and an
instance's end counts only by the request it comes before. A fleet that could not get ahead of what is known to
be possible, even if it served everything still to come, is dropped; with a good `at_least` few remain.
"""

from __future__ import annotations

import bisect
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from kgwe import errors
from kgwe.sharing.mig import layout_graph

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# A card: its instances as (place, number of the first request that finds it gone), ordered.
_Card = tuple[tuple[int, int], ...]
_Fleet = tuple[_Card, ...]


class Request(NamedTuple):
    """One instance asked for, served at once or never."""

    start: float
    end: float
    profile: int
    """By its number in the atlas."""


def most_served(
    atlas: layout_graph.LayoutGraph,
    cards: int,
    requests: Sequence[Request],
    *,
    at_least: int = 0,
    may_refuse: bool = True,
    limit: int = 1_000_000,
) -> int:
    """The largest number of the requests (in time order) that can be served.

    `at_least` is a number known to be possible. Without `may_refuse` a request that fits somewhere is served, as
    a policy must that does not know what comes. Permanent when more than `limit` fleets would have to be compared.
    """
    starts = [request.start for request in requests]
    places = [np.flatnonzero(atlas.profile_of == number).tolist() for number in range(len(atlas.profiles))]
    states: dict[_Card, int] = {}
    served: dict[_Fleet, int] = {((),) * cards: 0}
    for position, request in enumerate(requests):
        left = len(requests) - position - 1
        gone = bisect.bisect_left(starts, request.end)
        after: dict[_Fleet, int] = {}
        for fleet, count in served.items():
            now = _expired(fleet, position)
            grown = list(_grown(atlas, states, now, gone, places[request.profile]))
            options = [(option, count + 1) for option in grown]
            if may_refuse or not grown:
                options.append((now, count))
            for option, total in options:
                if total + left > at_least and after.get(option, -1) < total:
                    after[option] = total
        served = after
        if len(served) > limit:
            raise errors.Permanent(f"{len(requests)} requests on {cards} cards are too many for an exact optimum")
    return max(served.values(), default=at_least)


def _grown(
    atlas: layout_graph.LayoutGraph, states: dict[_Card, int], fleet: _Fleet, gone: int, places: Sequence[int]
) -> Iterator[_Fleet]:
    """The fleet with one instance more, in every way that differs."""
    for number, card in enumerate(fleet):
        if number and card == fleet[number - 1]:
            continue
        if card not in states:
            states[card] = atlas.find_mask(sum(1 << place for place, _ in card))
        for place in places:
            if atlas.with_place[states[card], place] != layout_graph.NONE:
                grown = tuple(sorted((*card, (place, gone))))
                yield tuple(sorted((*fleet[:number], grown, *fleet[number + 1 :])))


def _expired(fleet: _Fleet, now: int) -> _Fleet:
    if all(gone > now for card in fleet for _, gone in card):
        return fleet
    return tuple(sorted(tuple(each for each in card if each[1] > now) for card in fleet))
