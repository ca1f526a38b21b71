"""When to believe that something has failed: not at once, and not when everything fails at once.

A node that is gone, unreachable or has a sick card is believed after a moment, in which others that failed with it come
to light: what fails together is one question. A kubelet that says itself that it is not ready is given longer, for it
often mends itself. Whatever comes back in that time never failed.

When a large part of the fleet falls silent at once, the network or the control plane is the likely cause, and moving
everything would make it worse. Then all of it waits: each time longer while more and more fails, and only for as long
as so much of the fleet is down.
"""

from __future__ import annotations

from dataclasses import dataclass

from kgwe.kube.translate.node_health import NodeFault


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds, but for `share` and `least`."""

    gather_s: float = 1.0
    not_ready_s: float = 10.0
    #: part of all nodes that must be down for it to be called a storm, and the least number of them
    share: float = 0.33
    least: int = 5
    hold_s: float = 30.0
    longest_hold_s: float = 300.0


@dataclass(slots=True)
class _Seen:
    fault: NodeFault
    since: float
    believed: bool = False


class FailureDetector:
    """Faults of nodes and of cards, each with its time. All times are the caller's monotonic clock."""

    def __init__(self, patience: Patience = Patience()) -> None:  # noqa: B008 - frozen
        self.patience = patience
        self._nodes: dict[str, _Seen] = {}
        self._cards: dict[tuple[str, int], float] = {}  # (node, card) -> since
        self._hold_until = 0.0
        self._hold_s = patience.hold_s
        self._counted = 0  # nodes that were down when the hold began

    def observe_node(self, name: str, fault: NodeFault | None, now: float) -> None:
        """What is wrong with the node now; None: nothing."""
        seen = self._nodes.get(name)
        if fault is None:
            self._nodes.pop(name, None)
        elif seen is None:
            self._nodes[name] = _Seen(fault, now)
        elif seen.fault is not fault:
            # From silent to not ready, or back: it has been out of order all the time.
            seen.fault = fault

    def observe_gpus(self, name: str, sick: int, now: float) -> None:
        """Mask of the node's sick cards now."""
        for key in [key for key in self._cards if key[0] == name and not sick >> key[1] & 1]:
            del self._cards[key]
        for card in range(sick.bit_length()):
            if sick >> card & 1:
                self._cards.setdefault((name, card), now)

    @property
    def is_calm(self) -> bool:
        """Whether nothing at all is wrong."""
        return not self._nodes and not self._cards

    def since(self, node: str) -> float | None:
        """When the first thing went wrong with the node."""
        seen = self._nodes.get(node)
        times = [at for (name, _), at in self._cards.items() if name == node]
        return min([*times, seen.since] if seen else times, default=None)

    def confirm_failures(self, now: float, nodes: int) -> float | None:
        """Believe what is old enough; returns when to ask again, None: not before something changes."""
        due = [self._confirmed_at(seen) for seen in self._nodes.values() if not seen.believed]
        held_until = self._storm_end(now, nodes)
        if held_until <= now:
            for seen in self._nodes.values():
                seen.believed = seen.believed or self._confirmed_at(seen) <= now
        later = [max(at, held_until) for at in due if max(at, held_until) > now]
        later += [at + self.patience.gather_s for at in self._cards.values() if at + self.patience.gather_s > now]
        return min(later, default=None)

    def failed_nodes(self) -> frozenset[str]:
        """Nodes believed to have failed."""
        return frozenset(name for name, seen in self._nodes.items() if seen.believed)

    def failed_gpus(self, now: float) -> dict[str, int]:
        """Node -> mask of the cards believed to have failed."""
        found: dict[str, int] = {}
        for (name, card), since in self._cards.items():
            if since + self.patience.gather_s <= now:
                found[name] = found.get(name, 0) | 1 << card
        return found

    @property
    def held_until(self) -> float:
        """Until when a storm holds everything back; 0: there is none."""
        return self._hold_until

    def _confirmed_at(self, seen: _Seen) -> float:
        wait_s = self.patience.gather_s if seen.fault is NodeFault.LOST else self.patience.not_ready_s
        return seen.since + wait_s

    def _storm_end(self, now: float, nodes: int) -> float:
        """Until when to wait because so much fails at once; 0: it does not."""
        count = len(self._nodes)
        if count < self.patience.least or count <= self.patience.share * nodes:
            self._hold_until, self._hold_s, self._counted = 0.0, self.patience.hold_s, 0
            return 0.0
        if count > self._counted and self._hold_until <= now:
            self._hold_until = now + self._hold_s
            self._hold_s = min(2 * self._hold_s, self.patience.longest_hold_s)
            self._counted = count
        return self._hold_until
