"""Run times of workloads, as the planning cycle uses them: predicted, within what the user declared.

Predictions arrive in the background. A planning pass only reads this table and never waits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kgwe.placement.queue.ask import combine_run_times, declared_run_time

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from kgwe.placement.queue.workloads import RunTime

# A change of less than this part does not change plans enough to plan again.
_NEWS: Final = 0.1


class RunTimes:
    """Owner -> its run time. Written by the event loop, read by the planning thread: every change is one assignment."""

    def __init__(self) -> None:
        self._predicted: Mapping[str, RunTime] = {}

    def find(self, owner: str, declared_s: float | None) -> RunTime | None:
        """Return the run time of an owner; None if it is neither predicted nor declared."""
        return combine_run_times(declared_run_time(declared_s), self._predicted.get(owner))

    def find_predicted(self, owner: str) -> RunTime | None:
        """Return what history alone says; None if nothing is predicted."""
        return self._predicted.get(owner)

    def replace_predictions(self, found: Mapping[str, RunTime]) -> Collection[str]:
        """Take over the predictions of all owners; return the owners whose run time changed noticeably."""
        before, self._predicted = self._predicted, dict(found)
        return [owner for owner in {**before, **found} if _is_news(before.get(owner), found.get(owner))]


def _is_news(before: RunTime | None, after: RunTime | None) -> bool:
    if before is None or after is None:
        return before is not after
    pairs = ((before.p50_s, after.p50_s), (before.p95_s, after.p95_s))
    return any(abs(new - old) > _NEWS * old for old, new in pairs)
