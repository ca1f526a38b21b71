"""Where pods are that have their seats already, in the words of a plan: the lowest domain that holds them, their ring.

Recovery moves some pods of a gang and leaves the others where they are. It compares no domains, so such a place has no
score.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kgwe.placement.gang.plan import place_words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kgwe.placement.gang.request import GangRequest
    from kgwe.placement.gang.ring import Ring
    from kgwe.placement.gang.search import GangSearch


@dataclass(frozen=True, slots=True)
class Site:
    """The place of a gang."""

    pods: int
    nodes: int
    level: str
    """Level of the lowest known domain that holds all pods."""
    domain: str
    ring: Ring | None
    """None: the cards of some pod are not known."""
    missed: str = ""
    """The preferred level, where the place does not keep it."""

    def words(self) -> str:
        ring = "unknown" if self.ring is None else self.ring.words()
        found = place_words(self.pods, self.nodes, self.level, self.domain, ring)
        return found + (f"\nnot in one {self.missed}, as preferred" if self.missed else "")


def survey(search: GangSearch, gang: GangRequest | None, seats: Sequence[tuple[str, int]]) -> Site | None:
    """The place of pods on these (node, mask of cards), by rank; None when a node is not there."""
    ladder = search.ladders.of(gang.named_levels if gang is not None else ())
    number_of = {name: number for number, name in enumerate(ladder.rungs[0].names)}
    if not seats or any(node not in number_of for node, _ in seats):
        return None
    places = [number_of[node] for node, _ in seats]
    used: dict[int, int] = {}
    for place, (_, cards) in zip(places, seats, strict=True):
        used[place] = used.get(place, 0) | cards
    passed: list[str] = []
    for rung in ladder.rungs:
        domains = np.unique(np.searchsorted(rung.starts, places, "right") - 1)
        if len(domains) == 1 and rung.known[domains[0]]:
            break
        passed.append(rung.name)
    preferred = gang.preferred if gang is not None else ""
    return Site(
        pods=len(seats),
        nodes=len(used),
        level=rung.name,
        domain=rung.names[int(domains[0])],
        ring=search.rings.predict(ladder, places, used) if all(cards for _, cards in seats) else None,
        missed=preferred if preferred in passed else "",
    )
