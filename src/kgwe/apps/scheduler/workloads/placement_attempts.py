"""Placements of a workload that fail one after another, and when it gets new attempts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kgwe.cluster.state import run_state
from kgwe.cluster.workload import scheduler_policy

if TYPE_CHECKING:
    from kgwe.cluster.state.cluster_state import ClusterState

EXHAUSTED: Final = run_state.ATTEMPTS_EXHAUSTED
#: a workload whose attempts are used up is tried again after this long even if no change was seen
PAUSE_S: Final = 300.0


class AttemptLimits:
    """Workloads whose attempts are used up; an edit of the spec gives new ones."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._exhausted: dict[str, int] = {}  # workload -> generation of the fleet when that happened

    def exhaust(self, uid: str, failed: int) -> int | None:
        """The limit, if a workload has reached it with so many failures in a row; None: it has not."""
        limit = scheduler_policy.max_attempts(self._state.config)
        if limit is None or failed < limit:
            return None
        self._exhausted[uid] = self._state.fleet.generation
        return limit

    def renew(self) -> list[str]:
        """Workloads that get new attempts, because nodes, network or settings have changed since."""
        if not self._exhausted:
            return []
        now = self._state.fleet.generation
        renewed = [uid for uid, then in self._exhausted.items() if then != now]
        for uid in renewed:
            del self._exhausted[uid]
        return renewed

    def forget(self, uid: str) -> None:
        self._exhausted.pop(uid, None)
