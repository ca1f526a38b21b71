"""The reliability of a GPU, a link, a node or a domain: 0..1; 1.0: no incident is known.

Every incident costs demerits, by its severity (`Weight`), and demerits halve every `HALF_LIFE_S`:

    demerits(t) = sum of weight * 2^(-(t - when) / half-life)        at most MOST
    score       = e^(-demerits)

so scores multiply where demerits add, as chances of independent mishaps do:

    GPU     its own demerits and those of its links
    node     its own demerits and those of its GPUs: work that fills the node needs all of them
    domain   the mean over its nodes, so that a large domain is not worse for being large (`kgwe.placement.gang.score`)

A GPU without a history scores 1.0: new hardware is not suspected, and a fleet without agents is not affected. One
number and its time hold the whole history, so it survives a restart in a few bytes.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

#: a week: hardware that failed is likeliest to fail again soon
HALF_LIFE_S: Final = 7 * 86_400.0
#: more are not counted, so that the worst hour is forgiven after about six half-lives (0.9 again)
MOST: Final = 5.0
#: demerits that errors of applications alone can bring about
APPLICATIONS_MOST: Final = 0.1
#: demerits below this are no trouble any more
_LEAST: Final = 0.005
#: smaller differences between scores are not published
TELLING: Final = 0.05
_DIGITS: Final = 2


class Weight(float, enum.Enum):
    """Demerits of one incident."""

    FATAL = 1.0
    """A GPU went out of service."""
    CONTAINED = 0.25
    """Memory failed under one process, or will be mended at the next reset; a link is down or flaps."""
    SLOW = 0.1
    """Heat, a burst of errors on a link, memory corrected too often."""
    APPLICATION = 0.01
    """Most often the program's own fault: programs alone bring at most `APPLICATIONS_MOST`."""
    NONE = 0.0


@dataclass(frozen=True, slots=True)
class Record:
    """The history of one object: its demerits at `at_s`."""

    demerits: float = 0.0
    at_s: float = 0.0

    def demerits_at(self, now_s: float) -> float:
        """The demerits left at `now_s`; a clock that went back forgives nothing."""
        left = self.demerits * 2 ** (-max(now_s - self.at_s, 0.0) / HALF_LIFE_S)
        return left if left >= _LEAST else 0.0

    def score(self, now_s: float) -> float:
        return score(self.demerits_at(now_s))

    def charge(self, weight: float, now_s: float) -> Record:
        """The record with one more incident."""
        at_s = max(now_s, self.at_s)
        left, most = self.demerits_at(at_s), APPLICATIONS_MOST if weight <= Weight.APPLICATION else MOST
        return self if weight <= 0 or left >= most else Record(min(left + weight, most), at_s)


CLEAN: Final = Record()


def score(demerits: float) -> float:
    return math.exp(-demerits)


def combined_score(records: Iterable[Record], now_s: float) -> float:
    """The score of what needs every one of them."""
    return score(sum(record.demerits_at(now_s) for record in records))


def published_score(score: float, before: float) -> float:
    """The score to publish, `before` being what was: the same while the difference is not worth a write."""
    rounded = round(score, _DIGITS)
    if rounded == 1.0 or abs(rounded - before) >= TELLING:
        return rounded
    return before
