"""Which of the nodes that fit: small, swappable rules.

A strategy is a class with a `choose` method. Ours are `leastLoaded`, `random` and `costOptimized`; any
installed package adds its own by the entry point group `kgwe.strategies`, and a workload names it in
`schedulingStrategy`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kgwe.placement.ask import Ask

#: nodes an operator declared cheap (spot, old, already paid for)
CHEAP_NODE_LABEL = "gpu-orchestrator/cheap-node"


class Candidate(NamedTuple):
    """A node that fits, with the amounts of the resource that was asked for."""

    name: str
    free: int
    total: int
    labels: Mapping[str, str]


class Rng(Protocol):
    """The only randomness a strategy may use, so that a replay gives the same answer."""

    def randrange(self, stop: int, /) -> int: ...


class Strategy(Protocol):
    """Choose one of `candidates` (never empty, every one fits, ordered by name)."""

    def choose(self, candidates: Sequence[Candidate], ask: Ask, rng: Rng) -> Candidate: ...


class LeastLoaded:
    """The node with the most free GPUs: spreads work (worst fit); ties go to the first name."""

    def choose(self, candidates: Sequence[Candidate], ask: Ask, rng: Rng) -> Candidate:  # noqa: ARG002 - the Protocol's shape
        return max(candidates, key=lambda candidate: candidate.free)


class Random:
    """Any node that fits, each as likely as the other."""

    def choose(self, candidates: Sequence[Candidate], ask: Ask, rng: Rng) -> Candidate:  # noqa: ARG002 - the Protocol's shape
        return candidates[rng.randrange(len(candidates))]


class CostOptimized:
    """The least loaded of the cheap nodes; when none of them fits, of all."""

    def choose(self, candidates: Sequence[Candidate], ask: Ask, rng: Rng) -> Candidate:
        cheap = [candidate for candidate in candidates if candidate.labels.get(CHEAP_NODE_LABEL) == "true"]
        return LeastLoaded().choose(cheap or candidates, ask, rng)
