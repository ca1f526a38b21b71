"""Faults of nodes and single GPUs, and reclaimed spot nodes.

Each node has its own random stream, so faults depend on the seed and the fleet only: all policies of a comparison get
the same faults at the same times. Times between faults and times of repair are exponential. A fault of a part that is
already down has no effect.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kgwe.sim.events import Event, Kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kgwe.placement.fleet.node import Node

MONTH_S = 30 * 24 * 3600.0
DAY_S = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Faults:
    """The rates of faults. By default there are none."""

    #: failures per node in 30 days
    per_node_month: float = 0.0
    #: fraction of failures that affect a single GPU, not the node
    card_part: float = 0.5
    #: mean time until a node or GPU is repaired
    repair_s: float = 4 * 3600.0
    #: reclaims per spot node and day
    spot_per_day: float = 0.0
    #: mean time until a spot node is available again
    spot_return_s: float = 2 * 3600.0

    @property
    def any(self) -> bool:
        return self.per_node_month > 0 or self.spot_per_day > 0


@dataclass(frozen=True, slots=True)
class Fault:
    event: Event
    #: the event that ends it
    end: Event


_UP = {Kind.NODE_DOWN: Kind.NODE_UP, Kind.CARD_DOWN: Kind.CARD_UP, Kind.TAKE_BACK: Kind.NODE_UP}


class FaultStreams:
    """The next fault of each kind on each node."""

    def __init__(self, faults: Faults, nodes: Sequence[Node], *, seed: int, start_s: float) -> None:
        self._faults = faults
        self._cards = [node.shape.gpu_count for node in nodes]
        per_s = faults.per_node_month / MONTH_S
        self._per_s = {
            Kind.NODE_DOWN: per_s * (1 - faults.card_part),
            Kind.CARD_DOWN: per_s * faults.card_part,
            Kind.TAKE_BACK: faults.spot_per_day / DAY_S,
        }
        self._streams = {
            (node, kind): np.random.default_rng((seed, node, int(kind)))
            for node, described in enumerate(nodes)
            for kind, rate in self._per_s.items()
            if rate > 0
            and (described.spot or kind is not Kind.TAKE_BACK)
            and (described.shape.gpu_count or kind is not Kind.CARD_DOWN)
        }
        self._start_s = start_s

    def draw_first(self) -> list[Fault]:
        return [self._draw(node, kind, self._start_s) for node, kind in self._streams]

    def draw_next(self, event: Event) -> Fault:
        """Return the fault that follows this one in its stream."""
        return self._draw(event.subject, event.kind, event.at_s)

    def _draw(self, node: int, kind: Kind, since_s: float) -> Fault:
        rng = self._streams[node, kind]
        at_s = since_s + float(rng.exponential(1 / self._per_s[kind]))
        away_s = self._faults.spot_return_s if kind is Kind.TAKE_BACK else self._faults.repair_s
        card = int(rng.integers(self._cards[node])) if kind is Kind.CARD_DOWN else 0
        back_s = at_s + float(rng.exponential(away_s))
        return Fault(Event(at_s, kind, node, card), Event(back_s, _UP[kind], node, card))
