"""What was observed of one spot offer: how long its nodes stayed, gang by gang, and how long none could be bought.

Nodes of a pool are taken back together. So a loss of k of n nodes counts by the share of gangs that it breaks: a gang
of m nodes, drawn from the n, breaks with the probability 1 - C(n-k, m) / C(n, m). Nothing is assumed about single
nodes, and small losses of a large pool count a little for small gangs and fully for large ones.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import comb
from typing import Final

from kgwe.scaling.spot.run_rates import PIECES, TYPICAL, RunRates, find_piece, mix_rates

#: Sizes of gangs that are followed. Another size is judged by the next larger one.
SIZES: Final = (1, 4, 16, 64)
#: After so many hours an observation counts half.
_HALF_LIFE_H: Final = 300.0
_PRIOR_HOURS: Final = 3.0


def find_size(nodes: int) -> int:
    """Return the size by which a gang of so many nodes is judged."""
    return next((size for size in SIZES if nodes <= size), SIZES[-1])


def estimate_break_share(held: int, lost: int, gang: int) -> float:
    """Return the share of gangs of this size that a loss breaks. A gang as large as the pool breaks with any loss."""
    lost = min(lost, held)
    if lost <= 0:
        return 0.0
    gang = min(gang, held)
    return 1.0 - comb(held - lost, gang) / comb(held, gang)


@dataclass(slots=True)
class Runs:
    """Hours and ends of runs by age, and the age of the present run."""

    hours: list[float] = field(default_factory=lambda: [0.0] * PIECES)
    ends: list[float] = field(default_factory=lambda: [0.0] * PIECES)
    age_h: float = 0.0

    def fade(self, hours: float) -> None:
        """Let what lies back count less."""
        keep = 0.5 ** (hours / _HALF_LIFE_H)
        self.hours = [each * keep for each in self.hours]
        self.ends = [each * keep for each in self.ends]

    def go_on(self, hours: float) -> None:
        self.hours[find_piece(self.age_h)] += hours
        self.age_h += hours

    def end(self, share: float = 1.0) -> None:
        """Note that this share of the runs ended."""
        self.ends[find_piece(self.age_h)] += share
        self.age_h *= 1.0 - share


@dataclass(slots=True)
class ObservedOffer:
    """Observations of one offer: pool, instance type and zone."""

    gangs: dict[int, Runs] = field(default_factory=lambda: {size: Runs() for size in SIZES})
    away: Runs = field(default_factory=Runs)
    lost_s: float | None = None
    """When nodes were taken back last."""

    @property
    def is_known(self) -> bool:
        return any(any(runs.hours) for runs in (*self.gangs.values(), self.away))

    def observe_held(self, held: int, lost: int, hours: float) -> None:
        """Add a time: so many nodes were held, and so many of them were taken back at its end."""
        if held <= 0:
            for runs in self.gangs.values():
                runs.age_h = 0.0
            return
        for size, runs in self.gangs.items():
            runs.fade(hours)
            runs.go_on(hours)
            if share := estimate_break_share(held, lost, size):
                runs.end(share)

    def observe_refused(self, hours: float) -> None:
        """Add a time in which the provider had none."""
        self.away.fade(hours)
        self.away.go_on(hours)

    def observe_sold(self) -> None:
        """Note that the provider had some: a time without ended."""
        if self.away.age_h > 0:
            self.away.end()

    def estimate_rates(self, nodes: int, prior: RunRates = TYPICAL) -> RunRates:
        """Return rates at which gangs of so many nodes end, and at which capacity comes back."""
        runs = self.gangs[find_size(nodes)]
        return RunRates(
            mix_rates(runs.hours, runs.ends, prior.available, _PRIOR_HOURS),
            mix_rates(self.away.hours, self.away.ends, prior.away, _PRIOR_HOURS),
        )

    def find_age_h(self, nodes: int, *, is_available: bool) -> float:
        return self.gangs[find_size(nodes)].age_h if is_available else self.away.age_h
