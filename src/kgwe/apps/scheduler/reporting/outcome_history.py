"""How workloads ended, by network domain: counted by the leader, read by placement as `Node.history`.

A domain is the nearest known one of a node: its leaf, as a rule. Where TopologyDomain objects describe the network the
counts are in their status and survive a restart; elsewhere a new leader starts without a past.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from kgwe.kube.api import timestamp
from kgwe.model.network.domains import nearest_domain
from kgwe.model.network.outcomes import Outcomes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kgwe.cluster.state.cluster_state import ClusterState
    from kgwe.model.network.domains import Tree

# Domains that are remembered; a fleet has hundreds.
_MOST: Final = 10_000


class OutcomeHistory:
    """One term's counts, by the name of the domain."""

    def __init__(self, state: ClusterState, clock: Callable[[], float] = time.time) -> None:
        self._state = state
        self._clock = clock
        self._domains: dict[str, Outcomes] = {}
        self.version = 0  # raised with every count
        self._tree: Tree | None = None
        self._nearest: dict[str, str] = {}  # node -> its domain when that was last seen: a lost node has none any more

    def restore_counts(self) -> None:
        """Read the counts from the status of TopologyDomains."""
        for obj in self._state.reader.domains():
            stored = obj.status.outcomes
            if stored is not None:
                at_s = timestamp.parse(stored.asOf).timestamp() if stored.asOf else 0.0
                self._domains[obj.metadata.name] = Outcomes(stored.completed, stored.lost, at_s)

    def record_completed(self, nodes: Iterable[str]) -> None:
        """A workload on these nodes completed."""
        self._count_outcome(nodes, completed=1.0)

    def record_lost(self, nodes: Iterable[str]) -> None:
        """A workload lost these nodes, or GPUs of them."""
        self._count_outcome(nodes, lost=1.0)

    def outcomes_of(self, domain: str) -> Outcomes | None:
        return self._domains.get(domain)

    def apply_scores(self) -> None:
        """Give the scores to placement."""
        now = self._clock()
        self._domains = {
            name: past for name, each in self._domains.items() if not (past := each.decay_to(now)).is_forgotten
        }
        tree = self._state.fleet.tree
        if tree is not self._tree:
            self._tree, self._nearest = tree, {node: nearest_domain(tree, node) for node in tree.nodes}
        scores = {
            node: self._domains[domain].step
            for node, domain in self._nearest.items()
            if domain in self._domains and self._domains[domain].step < 1.0
        }
        self._state.fleet_state.mark_changed(self._state.reader.set_history(scores))

    def _count_outcome(self, nodes: Iterable[str], *, completed: float = 0.0, lost: float = 0.0) -> None:
        self.version += 1
        tree, now = self._state.fleet.tree, self._clock()
        for domain in {nearest_domain(tree, node) or self._nearest.get(node, "") for node in nodes} - {""}:
            known = self._domains.pop(domain, Outcomes())
            self._domains[domain] = known.plus(now, completed=completed, lost=lost)
        while len(self._domains) > _MOST:
            del self._domains[next(iter(self._domains))]
