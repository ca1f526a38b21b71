"""How long a workload is expected to run, and how long it runs at most, for the money it will spend.

What a user declares is a claim: where history says that such workloads run longer, history counts. A deadline that the
Job enforces bounds both, while it does: its owner may change it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from kgwe.costing.budgets.encumbrances import to_duration
from kgwe.placement.queue.ask import declared_run_time

if TYPE_CHECKING:
    from kgwe.placement.queue.workloads import RunTime

# Where z(0.90) is between z(0.50) = 0 and z(0.95), for run times that are log-normal.
_P90_OF_P95: Final = 1.2815515594 / 1.6448536270


class Durations(NamedTuple):
    """Whole seconds."""

    expected_s: int
    longest_s: int
    """With a probability of nine tenths it is over by then."""
    is_assumed: bool = False
    """Nothing is known about the run time."""

    def join(self, other: Durations) -> Durations:
        """Return the longer of both times."""
        return Durations(
            max(self.expected_s, other.expected_s),
            max(self.longest_s, other.longest_s),
            self.is_assumed or other.is_assumed,
        )

    def bound(self, deadline_s: int | None) -> Durations:
        """Return the durations of a workload that is stopped after a time."""
        if deadline_s is None:
            return self
        is_assumed = self.is_assumed and self.longest_s < deadline_s
        return Durations(min(self.expected_s, deadline_s), min(self.longest_s, deadline_s), is_assumed)


def estimate_durations(declared_s: float | None, predicted: RunTime | None, unknown_s: int) -> Durations:
    """Return the durations of a workload that ends by itself; `unknown_s` where nothing is known."""
    declared = declared_run_time(declared_s)
    known = predicted or declared
    if known is None:
        return Durations(unknown_s, unknown_s, is_assumed=True)
    longest_s = max(_find_p90(known), declared_s or 0.0)
    return Durations(to_duration(known.p50_s, unknown_s), to_duration(longest_s, unknown_s))


def _find_p90(run_time: RunTime) -> float:
    p50_s = max(run_time.p50_s, 1.0)
    return p50_s * float((max(run_time.p95_s, p50_s) / p50_s) ** _P90_OF_P95)
