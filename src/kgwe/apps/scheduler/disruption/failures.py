"""Failed nodes and GPUs, the places they affect, and their description for users."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from kgwe.model.units.phrasing import format_count
from kgwe.placement.fleet.snapshot import list_gpus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from kgwe.kube.translate.node_health import NodeFault
    from kgwe.placement.disruption.recovery import Repaired
    from kgwe.placement.live.holding import Holding

# Nodes and pods that a message names: it is stored with the plan and has to stay short.
_MOST_NAMED: Final = 8


@dataclass(frozen=True)
class Failures:
    """Failed nodes, and failed GPUs of other nodes."""

    nodes: frozenset[str] = frozenset()
    #: node -> mask of its failed GPUs
    cards: Mapping[str, int] = field(default_factory=dict)

    def has_failed(self, place: Holding) -> bool:
        """Whether a pod cannot stay at this place. Failed GPUs count only if the GPUs of the place are known."""
        return place.node in self.nodes or bool(place.gpus & self.cards.get(place.node, 0))

    def describe(self, places: Iterable[Holding], fault: Callable[[str], NodeFault | None]) -> str:
        """The failures that affect these places, as text."""
        parts = []
        for node, cards in sorted(self._failed_gpus_of(places).items()):
            if node in self.nodes:
                found = fault(node)
                parts.append(f"Node {node} is {found.value if found else 'lost'}")
            else:
                many = "s" * (cards.bit_count() > 1)
                parts.append(f"GPU{many} {', '.join(map(str, list_gpus(cards)))} on {node} failed")
        more = [f"{len(parts) - _MOST_NAMED} more failures"] if len(parts) > _MOST_NAMED else []
        return " and ".join(parts[:_MOST_NAMED] + more)

    def _failed_gpus_of(self, places: Iterable[Holding]) -> dict[str, int]:
        found: dict[str, int] = {}
        for place in places:
            if self.has_failed(place):
                found[place.node] = found.get(place.node, 0) | place.gpus & self.cards.get(place.node, 0)
        return found


def describe_moves(repaired: Repaired) -> str:
    """The moves that are planned for an affected owner, as text."""
    moved = ", ".join(f"pod {move.member} moves to {move.node}" for move in repaired.moves[:_MOST_NAMED])
    moved += f" and {len(repaired.moves) - _MOST_NAMED} more pods move" * (len(repaired.moves) > _MOST_NAMED)
    again = f"; {format_count(len(repaired.restarts), 'other pod')} restarting" if repaired.restarts else ""
    short = f"; no node found yet for {format_count(repaired.missing, 'pod')}" if repaired.missing else ""
    return moved + again + short
