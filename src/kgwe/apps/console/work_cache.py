"""Rows of all workloads, made again at most once a second, and what a user may see of them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable

    from kgwe.apps.console.cluster_watch import ClusterWatch
    from kgwe.apps.console.scope import Scope
    from kgwe.apps.console.work_rows import WorkRow, WorkRows

_KEEP_S: Final = 1.0


class WorkCache:
    """The rows at the last look."""

    def __init__(
        self,
        watch: ClusterWatch,
        rows: WorkRows,
        *,
        keep_s: float = _KEEP_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._watch = watch
        self._rows = rows
        self._keep_s = keep_s
        self._clock = clock
        self._known: list[WorkRow] = []
        self._version = -1
        self._made_s = 0.0

    def list_rows(self, scope: Scope) -> list[WorkRow]:
        """Return the rows that a user may see. Without rights on nodes they have no prices."""
        now = self._clock()
        if self._version != self._watch.version and (self._version < 0 or now >= self._made_s + self._keep_s):
            self._version, self._made_s = self._watch.version, now
            self._known = self._rows.make_rows()
        return [
            self._restrict(row, scope) for row in self._known if scope.covers_work(row.kind, row.group, row.namespace)
        ]

    @staticmethod
    def _restrict(row: WorkRow, scope: Scope) -> WorkRow:
        """Leave out what only pods or nodes show."""
        sees_pods = scope.pods.covers(row.namespace) and scope.jobs.covers(row.namespace)
        if scope.nodes and scope.gpu_nodes and sees_pods:
            return row
        changes: dict[str, object] = {"rate_per_hour": None, "gpus_held": 0.0}
        if not sees_pods and row.kind != "Pod":
            # The pods of a workload are found by its Job.
            changes["node_names"] = ()
        return msgspec.structs.replace(row, **changes)
