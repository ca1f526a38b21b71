"""The risk that a gang on spot nodes of one pool breaks: from runs in which all of its nodes were available.

Nodes of a pool are lost together. `1 - (1 - p)^n` assumes that they are lost one by one, and overstates the risk of a
gang by 2 to 12 times on public traces. Here the gang is observed as a whole, so nothing is assumed about its nodes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kgwe.scaling.spot.run_rates import TYPICAL, RunHistory

if TYPE_CHECKING:
    from kgwe.scaling.spot.run_rates import RunRates

#: A pool changes within days, so gangs are judged by the last ones. Other pools count as one hour.
HALF_LIFE_H = 48.0
PRIOR_HOURS = 1.0


@dataclass(slots=True)
class GangRisk:
    """Observations of one pool for gangs of `size` nodes."""

    size: int
    prior: RunRates = TYPICAL
    history: RunHistory = field(default_factory=lambda: RunHistory(HALF_LIFE_H))

    def observe(self, nodes: int, hours: float) -> None:
        """Add an observation: the pool held this many nodes for the next `hours`."""
        self.history.observe(is_available=nodes >= self.size, hours=hours)

    def estimate_break(self, ahead_h: float, age_h: float | None = None) -> float:
        """Return the probability that a gang which runs since `age_h` hours breaks within `ahead_h` hours.

        Without an age it is the gang observed last.
        """
        rates = self.history.estimate_rates(self.prior, PRIOR_HOURS)
        if age_h is None:
            age_h = self.history.age_h if self.history.is_available else 0.0
        return 1.0 - rates.estimate_survival(age_h, ahead_h)
