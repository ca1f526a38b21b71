"""Whether a waiting workload is delayed mainly by workloads of its own namespace whose end is not known.

A reservation keeps GPUs free for a workload that waits for others to end. A namespace could declare short run times,
let its workloads run on, and keep the GPUs beside them idle for as long. So a workload gets no reservation where most
of the GPUs in use are held by its own namespace, by workloads without a run time or past their p95. Its namespace can
end these workloads itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from kgwe.placement.fleet.snapshot import Snapshot
    from kgwe.placement.queue.workloads import RunningWorkload, RunningWorkloads

_MOST: Final = 0.5


def is_delayed_by_own(
    namespace: str, nodes: frozenset[str], running: RunningWorkloads, snapshot: Snapshot, now_s: float
) -> bool:
    """Whether most GPUs in use on the nodes are held by workloads of the namespace without a known end."""
    chosen = [snapshot.index[name] for name in nodes if name in snapshot.index]
    total = sum(snapshot.nodes[each].shape.gpu_count for each in chosen)
    used = total - int(np.bitwise_count(snapshot.free[chosen]).sum())
    if not used:
        return False
    places = frozenset(chosen)
    own = sum(
        grant.gpu_mask.bit_count()
        for workload in running.list_of_namespace(namespace)
        if _has_no_known_end(workload, now_s)
        for grant in running.grants_of(workload.key)
        if grant.node in places
    )
    return own > _MOST * used


def _has_no_known_end(workload: RunningWorkload, now_s: float) -> bool:
    return workload.run_time is None or now_s - workload.started_s > workload.run_time.p95_s
