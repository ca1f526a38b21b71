"""Custom strategies: code of other packages that chooses among the nodes that fit.

KGWE's own strategies are those of `kgwe.placement.pod.ranking`. Any installed package adds one by the entry point group
`kgwe.strategies`: a class with a `choose` method. A workload of one pod names it in `schedulingStrategy`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from kgwe.placement.planning.ask import Ask


class Candidate(NamedTuple):
    """A node that fits, with its whole GPUs."""

    name: str
    free: int
    total: int
    labels: Mapping[str, str]


class Rng(Protocol):
    """The only randomness a strategy may use, so that a replay gives the same answer."""

    def randrange(self, stop: int, /) -> int: ...


class Chooser(Protocol):
    """Choose one of `candidates` (never empty, every one fits, ordered by name)."""

    def choose(self, candidates: Sequence[Candidate], ask: Ask, rng: Rng | None) -> Candidate: ...


Choosers = Mapping[str, Chooser]
