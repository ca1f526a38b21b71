"""What the reconciler remembers of a workload between two calls."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from kgwe.cluster.workload.effective_request import SmallerRequest
    from kgwe.placement.planning.ask import Ask
    from kgwe.placement.planning.plan import Plan

Result = Literal["done", "waiting", "retry"]
"""What a call of the reconciler came to, for the metrics."""


#: a Job that the watch has not shown this long after its creation is created again
WATCH_LAG_S: Final = 10.0


@dataclass
class Attempt:
    """One attempt to run a workload; losing it in a crash does no harm."""

    generation: int = 0
    ask: Ask | None = None
    # what `ask` was read from: excluded nodes, claims, priority, decision about the request
    basis: tuple[frozenset[str], bool, int, SmallerRequest | None] | None = None
    plan: Plan | None = None  # where it was placed, until the API shows its run
    limited_to: int | None = None  # the priority that was last reported to count instead of the one asked for
    held_at: float | None = None  # since when it waits without room
    told_at: float = 0.0  # when its waiting message was last written
    warn_at: float = 0.0  # when the next Warning is due, while it waits without room
    retry_at: float = 0.0  # not before this time
    created_at: float | None = None  # when a Job was created that the watch has not shown yet
    job_uid: str = ""
    job_seen_at: float = 0.0
    settle_s: float = 0.0  # how long after that its status may wait for it to run
    unplaced_at: float | None = None  # since when pods of the Job have no place, for one reason
    unplaced_for: str = ""  # that reason
    creation_error: str = ""  # why the API server refused pods of the Job
    error_read_at: float | None = None  # when that was last read
    suspended: bool = False  # its Job was suspended after it last ran
    taken_back: str = ""  # uid of a Job that was deleted so that the workload is planned again
    refusals: int = 0  # failed placements in a row
    volume: str = ""  # the PersistentVolumeClaim whose absence made the last placement fail
    avoid: dict[str, float] = field(default_factory=dict)  # node -> until when

    def note_unplaced(self, now: float, reason: str) -> None:
        """Count the time since this reason came up; empty: all pods have their places.

        The last pods of a large gang are created minutes after the first, so a node that refuses one of them gets the
        full time, too.
        """
        if not reason:
            self.unplaced_at = None
        elif self.unplaced_at is None or self.unplaced_for != reason:
            self.unplaced_at = now
        self.unplaced_for = reason
