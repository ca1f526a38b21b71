"""How workloads ended in a network domain: the history part of a domain's score.

Two counts hold the whole past: workloads that completed there, and losses (a workload lost a node or GPU there). Both
halve every `HALF_LIFE_S`. The score is the share that went well,

    score = (completed + PRIOR) / (completed + lost + PRIOR)

so a domain of which nothing is known scores 1.0, one loss among few costs little, and losses that keep coming cost more
than many completions make up for. A workload that failed by its own fault says nothing about the domain and is not
counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

#: a week, as long as reliability remembers
HALF_LIFE_S: Final = 7 * 86_400.0
#: completions that every domain is credited with
PRIOR: Final = 4.0
#: scores nearer to each other than this are the same to placement
STEP: Final = 0.05
# A limit, so that old counts can be outweighed.
_MOST: Final = 1_000.0
_LEAST: Final = 0.01


@dataclass(frozen=True, slots=True)
class Outcomes:
    """The past of one domain, as it was at `at_s`."""

    completed: float = 0.0
    lost: float = 0.0
    at_s: float = 0.0

    def decay_to(self, now_s: float) -> Outcomes:
        """The counts, decayed to `now_s`; a clock that went back changes nothing."""
        if now_s <= self.at_s:
            return self
        kept = 2.0 ** (-(now_s - self.at_s) / HALF_LIFE_S)
        return Outcomes(self.completed * kept, self.lost * kept, now_s)

    def plus(self, now_s: float, *, completed: float = 0.0, lost: float = 0.0) -> Outcomes:
        then = self.decay_to(now_s)
        return Outcomes(min(then.completed + completed, _MOST), min(then.lost + lost, _MOST), then.at_s)

    @property
    def score(self) -> float:
        """0..1; 1.0: no loss is known."""
        return (self.completed + PRIOR) / (self.completed + self.lost + PRIOR)

    @property
    def step(self) -> float:
        """The score in steps of `STEP`: placement need not follow every change."""
        return round(round(self.score / STEP) * STEP, 2)

    @property
    def is_forgotten(self) -> bool:
        """Whether too little is left of it to make a difference."""
        return self.completed < _LEAST and self.lost < _LEAST
