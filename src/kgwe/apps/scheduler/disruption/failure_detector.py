"""Decides when a node or GPU counts as failed: after a delay, and later if a large part of the fleet fails at once.

A node that is gone or unreachable, or a GPU that is unhealthy, counts as failed after a short delay: failures that
belong together are then handled by one plan. A kubelet that reports itself as not ready gets more time, because it
often recovers. What recovers within this time never counts as failed.

If a large part of the fleet becomes unreachable at once (a storm), the network or the control plane is the likely
cause, and moving all workloads would make it worse. Then recovery waits, longer while more nodes fail, and only as long
as so many nodes are down.
"""

from __future__ import annotations

from dataclasses import dataclass

from kgwe.kube.translate.node_health import NodeFault


@dataclass(frozen=True, slots=True)
class Patience:
    """Delays in seconds, and the size of a storm (`share`, `least`)."""

    gather_s: float = 1.0
    not_ready_s: float = 10.0
    #: share of all nodes that must be down in a storm, and their least number
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
    """Faults of nodes and GPUs, each with its time. All times are the caller's monotonic clock."""

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
            # From unreachable to not ready, or back: it has been down all the time.
            seen.fault = fault

    def observe_gpus(self, name: str, sick: int, now: float) -> None:
        """Note the unhealthy GPUs of the node (a mask)."""
        for key in [key for key in self._cards if key[0] == name and not sick >> key[1] & 1]:
            del self._cards[key]
        for card in range(sick.bit_length()):
            if sick >> card & 1:
                self._cards.setdefault((name, card), now)

    @property
    def is_calm(self) -> bool:
        """Whether nothing at all is wrong."""
        return not self._nodes and not self._cards

    def failed_since(self, node: str) -> float | None:
        """When the first thing went wrong with the node."""
        seen = self._nodes.get(node)
        times = [at for (name, _), at in self._cards.items() if name == node]
        return min([*times, seen.since] if seen else times, default=None)

    def confirm_failures(self, now: float, nodes: int) -> float | None:
        """Confirm faults that are old enough; returns when to call again. None: after the next change."""
        due = [self._confirmed_at(seen) for seen in self._nodes.values() if not seen.believed]
        held_until = self._storm_end(now, nodes)
        if held_until <= now:
            for seen in self._nodes.values():
                seen.believed = seen.believed or self._confirmed_at(seen) <= now
        later = [max(at, held_until) for at in due if max(at, held_until) > now]
        later += [at + self.patience.gather_s for at in self._cards.values() if at + self.patience.gather_s > now]
        return min(later, default=None)

    def failed_nodes(self) -> frozenset[str]:
        """Nodes that count as failed."""
        return frozenset(name for name, seen in self._nodes.items() if seen.believed)

    def failed_gpus(self, now: float) -> dict[str, int]:
        """Node -> mask of the GPUs that count as failed."""
        found: dict[str, int] = {}
        for (name, card), since in self._cards.items():
            if since + self.patience.gather_s <= now:
                found[name] = found.get(name, 0) | 1 << card
        return found

    @property
    def held_until(self) -> float:
        """Until when recovery waits because of a storm; 0: there is none."""
        return self._hold_until

    def _confirmed_at(self, seen: _Seen) -> float:
        if seen.fault is NodeFault.INTERRUPTED:
            return seen.since  # the cloud has announced it
        wait_s = self.patience.gather_s if seen.fault is NodeFault.LOST else self.patience.not_ready_s
        return seen.since + wait_s

    def _storm_end(self, now: float, nodes: int) -> float:
        """Until when to wait because of a storm; 0: there is none."""
        # Announced ends are no sign of a broken network.
        count = sum(seen.fault is not NodeFault.INTERRUPTED for seen in self._nodes.values())
        if count < self.patience.least or count <= self.patience.share * nodes:
            self._hold_until, self._hold_s, self._counted = 0.0, self.patience.hold_s, 0
            return 0.0
        if count > self._counted and self._hold_until <= now:
            self._hold_until = now + self._hold_s
            self._hold_s = min(2 * self._hold_s, self.patience.longest_hold_s)
            self._counted = count
        return self._hold_until
