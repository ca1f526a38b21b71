"""Random streams of MIG requests, and their replay with a policy.

Requests arrive as a Poisson process. Each has a profile drawn from the mix and an exponential run time with mean 1.
Load is the requested compute slices divided by the fleet's slices. A request that finds no slot is lost: without a
queue, the served fraction measures the policy alone.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from kgwe.bench.mig.optimum import Request

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kgwe.bench.mig.policies import Policy
    from kgwe.sharing.mig.layout_graph import LayoutGraph

# Profiles are named by size, so one mix works for all models: compute slices, and memory if unusual.
MIXES: Mapping[str, Mapping[str, float]] = {
    "even": {"1g": 1, "2g": 1, "3g": 1, "4g": 1, "7g": 1},
    "inference": {"1g": 5, "2g": 3, "3g": 1},
    "mixed": {"1g": 6, "2g": 3, "3g": 2, "4g": 1, "7g": 0.5},
    "training": {"1g": 1, "2g": 2, "3g": 3, "4g": 2, "7g": 1},
    "halves": {"2g": 1, "3g": 1},
    "memory": {"1g": 3, "1g2": 3, "2g": 2, "3g": 1},
    "poles": {"1g": 6, "7g": 1},
}


class Outcome(NamedTuple):
    served: int
    asked: int
    served_slices: int
    asked_slices: int


def name_profiles(atlas: LayoutGraph, mix: Mapping[str, float]) -> dict[str, float]:
    """Return the mix with a model's profile names (`1g2`: 1g with twice the memory); sizes the model lacks are left
    out.
    """
    found = {}
    for size, share in mix.items():
        compute, _, rank = size.partition("g")
        plain = [each for each in atlas.profiles if each.is_plain and each.compute == int(compute)]
        plain.sort(key=lambda each: each.units)
        if len(plain) >= int(rank or 1):
            found[plain[int(rank or 1) - 1].name] = share
    return found


def draw(
    atlas: LayoutGraph, mix: Mapping[str, float], *, cards: int, load: float, requests: int, rng: np.random.Generator
) -> list[Request]:
    """Return a stream of `count` requests, in time order."""
    shares = np.array([mix.get(profile.name, 0) for profile in atlas.profiles], float)
    shares /= shares.sum()
    slices = float(shares @ np.array([profile.compute for profile in atlas.profiles]))
    rate = load * cards * atlas.geometry.compute / slices
    starts = np.cumsum(rng.exponential(1 / rate, requests))
    profiles = rng.choice(len(shares), requests, p=shares)
    ends = starts + rng.exponential(1.0, requests)
    return [Request(*each) for each in zip(starts.tolist(), ends.tolist(), profiles.tolist(), strict=True)]


def replay(atlas: LayoutGraph, policy: Policy, cards: int, requests: Sequence[Request], warm_up: int = 0) -> Outcome:
    """Replay a stream from an empty fleet; the first `warm_up` requests fill it and are not counted."""
    states = np.zeros(cards, np.int64)
    running: list[tuple[float, int, int]] = []
    served = served_slices = asked_slices = 0
    for position, request in enumerate(requests):
        while running and running[0][0] <= request.start:
            _, card, place = heapq.heappop(running)
            states[card] = atlas.without_place[states[card], place]
            policy.on_release(card, place)
        found = policy.place(states, request.profile)
        slices = atlas.profiles[request.profile].compute
        if found is not None:
            card, place = found
            states[card] = atlas.with_place[states[card], place]
            heapq.heappush(running, (request.end, card, place))
        if position >= warm_up:
            asked_slices += slices
            served += found is not None
            served_slices += slices * (found is not None)
    return Outcome(served, len(requests) - warm_up, served_slices, asked_slices)
