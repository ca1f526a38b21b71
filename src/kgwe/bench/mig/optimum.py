"""The largest number of requests that a policy could serve if it knew the whole stream in advance.

The result is exact, for short streams on few GPUs. The search keeps all reachable fleets from request to request,
each with the most requests it has served. Fleets that no later request can distinguish are merged: GPUs are
interchangeable, and the end of a slice counts only by the next request. A fleet is dropped if it cannot exceed the
known minimum even by serving all remaining requests. A good `at_least` leaves few fleets.
"""

from __future__ import annotations

import bisect
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from kgwe import errors
from kgwe.sharing.mig import layout_graph

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# A GPU: its slices as (placement, number of the first request that finds it gone), ordered.
_Card = tuple[tuple[int, int], ...]
_Fleet = tuple[_Card, ...]


class Request(NamedTuple):
    """One requested slice, served at once or never."""

    start: float
    end: float
    profile: int
    """The number of the profile in the layout graph."""


def most_served(
    atlas: layout_graph.LayoutGraph,
    cards: int,
    requests: Sequence[Request],
    *,
    at_least: int = 0,
    may_refuse: bool = True,
    limit: int = 1_000_000,
) -> int:
    """Return the largest number of requests (in time order) that can be served.

    `at_least` is a number known to be possible. Without `may_refuse` each request that fits is served, as an online
    policy must. Raise Permanent if more than `limit` fleets would have to be compared.
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
            now = _drop_expired(fleet, position)
            grown = list(_add_slice(atlas, states, now, gone, places[request.profile]))
            options = [(option, count + 1) for option in grown]
            if may_refuse or not grown:
                options.append((now, count))
            for option, total in options:
                if total + left > at_least and after.get(option, -1) < total:
                    after[option] = total
        served = after
        if len(served) > limit:
            raise errors.Permanent(f"{len(requests)} requests on {cards} GPUs are too many for an exact optimum")
    return max(served.values(), default=at_least)


def _add_slice(
    atlas: layout_graph.LayoutGraph, states: dict[_Card, int], fleet: _Fleet, gone: int, places: Sequence[int]
) -> Iterator[_Fleet]:
    """Yield the fleet with one more slice, in each distinct way."""
    for number, card in enumerate(fleet):
        if number and card == fleet[number - 1]:
            continue
        if card not in states:
            states[card] = atlas.find_mask(sum(1 << place for place, _ in card))
        for place in places:
            if atlas.with_place[states[card], place] != layout_graph.NONE:
                grown = tuple(sorted((*card, (place, gone))))
                yield tuple(sorted((*fleet[:number], grown, *fleet[number + 1 :])))


def _drop_expired(fleet: _Fleet, now: int) -> _Fleet:
    if all(gone > now for card in fleet for _, gone in card):
        return fleet
    return tuple(sorted(tuple(each for each in card if each[1] > now) for card in fleet))
