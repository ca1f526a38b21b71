"""Describes the place of pods that already have nodes: the lowest domain that holds them, and their ring.

Recovery moves some pods of a gang and leaves the others on their nodes. It compares no domains, so the place has no
score.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kgwe.placement.gang.plan import describe_place

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kgwe.placement.gang.request import GangRequest
    from kgwe.placement.gang.ring import Ring
    from kgwe.placement.gang.search import GangSearch


@dataclass(frozen=True, slots=True)
class GangLocation:
    """The place of a gang."""

    pods: int
    nodes: int
    level: str
    """Level of the lowest known domain that holds all pods."""
    domain: str
    ring: Ring | None
    """None: the GPUs of some pod are unknown."""
    missed_level: str = ""
    """The preferred level if the place does not keep it."""

    def describe(self) -> str:
        ring = "unknown" if self.ring is None else self.ring.describe()
        found = describe_place(self.pods, self.nodes, self.level, self.domain, ring)
        return found + (f"\nnot in one {self.missed_level}, as preferred" if self.missed_level else "")


def locate_gang(search: GangSearch, gang: GangRequest | None, seats: Sequence[tuple[str, int]]) -> GangLocation | None:
    """The place of pods on these (node, mask of GPUs), in the order of ranks; None if a node is missing."""
    table = search.level_tables.for_levels(gang.named_levels if gang is not None else ())
    number_of = {name: number for number, name in enumerate(table.levels[0].names)}
    if not seats or any(node not in number_of for node, _ in seats):
        return None
    places = [number_of[node] for node, _ in seats]
    used: dict[int, int] = {}
    for place, (_, mask) in zip(places, seats, strict=True):
        used[place] = used.get(place, 0) | mask
    passed: list[str] = []
    for level in table.levels:
        domains = np.unique(np.searchsorted(level.starts, places, "right") - 1)
        if len(domains) == 1 and level.known[domains[0]]:
            break
        passed.append(level.name)
    preferred = gang.preferred if gang is not None else ""
    return GangLocation(
        pods=len(seats),
        nodes=len(used),
        level=level.name,
        domain=level.names[int(domains[0])],
        ring=search.rings.predict_ring(table, places, used) if all(mask for _, mask in seats) else None,
        missed_level=preferred if preferred in passed else "",
    )
