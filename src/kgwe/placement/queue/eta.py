"""Estimated start times of waiting workloads: the median (p50) and the 90th percentile (p90).

The queue is played out many times, each time with other run times, drawn from what is known of each workload. A
workload starts when enough GPUs are free in a domain that fits it and no workload behind it took them; it then holds
them for its own run time. Whole GPUs are counted, on nodes that fit the pods if nothing runs there
(`kgwe.placement.queue.playout`).

Unknown values are not estimated. A workload with an unknown run time stays forever, and those that wait for its GPUs
have no estimate.

Two things are left out: backfill, which lets some start earlier, and later workloads that go ahead, which let others
start later. Both show in how earlier estimates came true: the estimator corrects its figures by recent errors.

The samples are deterministic: run times follow from the workload's key, so estimates do not flicker, and one more
workload ahead moves them in one direction.
"""

from __future__ import annotations

import collections
import math
from typing import TYPE_CHECKING, Final

import numpy as np

from kgwe.placement.fleet.node import GPU_MILLI
from kgwe.placement.gang.levels import LevelTables
from kgwe.placement.gang.request import CLUSTER, NODE, NVLINK, GangRequest
from kgwe.placement.pod.fit import Fitter
from kgwe.placement.pod.fit_status import FitStatus
from kgwe.placement.queue.playout import (
    FIRST_S,
    NOT_KNOWN,
    SAMPLES,
    Eta,
    Kind,
    Need,
    Playout,
    draw_run_times,
    draw_uniform,
)
from kgwe.placement.queue.workloads import remaining_s

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from kgwe.placement.fleet.node import Request
    from kgwe.placement.gang.levels import LevelTable
    from kgwe.placement.live.scratch import Source
    from kgwe.placement.queue.workloads import QueuedWorkload, RunningWorkloads

    Floats = NDArray[np.float32]

__all__ = ["Estimator", "Eta"]

# With more groups of nodes than this, a higher level is used, unless a workload requires a lower one.
_MOST_GROUPS: Final = 64
# Past estimates by which new ones are corrected; fewer than `_FEWEST` correct nothing.
_COUNTED: Final = 200
_FEWEST: Final = 20
# Waiting workloads whose first estimate is remembered; the oldest are forgotten first.
_REMEMBERED: Final = 10_000


class Estimator:
    """Estimates over one fleet and its running workloads."""

    def __init__(self, source: Source, running: RunningWorkloads) -> None:
        self._source = source
        self._running = running
        self._level_tables = LevelTables(source.tree, source.snapshot)
        self._fitter = Fitter(source.snapshot)
        # Equal kinds are one object, which is faster to look up than its bytes are to compare.
        self._kinds: dict[Kind, Kind] = {}
        # Key -> time and value of its first estimate.
        self._first_estimates: dict[str, tuple[float, Eta]] = {}
        # Real waits over estimated ones, of p50 and of p90.
        self._ratios = tuple(collections.deque[float](maxlen=_COUNTED) for _ in range(2))

    def estimate(self, workloads: Sequence[QueuedWorkload], now_s: float) -> dict[str, Eta]:
        """Estimate starts; workloads come in queue order, those with a reservation first."""
        found = self._build_playout(workloads, now_s)
        for key, eta in found.items():
            self._first_estimates.setdefault(key, (now_s, eta))
        while len(self._first_estimates) > _REMEMBERED:
            del self._first_estimates[next(iter(self._first_estimates))]
        return {key: self._apply_correction(eta, now_s) for key, eta in found.items()}

    # --- correction -------------------------------------------------------------------------------------

    def record_start(self, key: str, now_s: float) -> None:
        """Compare the start of a workload with its estimate."""
        estimated_s, eta = self._first_estimates.pop(key, (now_s, NOT_KNOWN))
        for estimate_s, ratios in zip((eta.p50_s, eta.p90_s), self._ratios, strict=True):
            if estimate_s is not None:
                ratios.append((now_s - estimated_s + FIRST_S) / (estimate_s - estimated_s + FIRST_S))

    def forget(self, key: str) -> None:
        """Forget a workload that will not start."""
        self._first_estimates.pop(key, None)

    def _apply_correction(self, eta: Eta, now_s: float) -> Eta:
        corrected = []
        for at_s, ratios, part in zip((eta.p50_s, eta.p90_s), self._ratios, (0.5, 0.9), strict=True):
            by = float(np.quantile(ratios, part)) if len(ratios) >= _FEWEST else 1.0
            corrected.append(None if at_s is None else now_s + max(0.0, (at_s - now_s + FIRST_S) * by - FIRST_S))
        p50_s, p90_s = corrected
        return Eta(p50_s, p90_s if p50_s is None or p90_s is None else max(p50_s, p90_s))

    # --- the playout ------------------------------------------------------------------------------------

    def _build_playout(self, workloads: Sequence[QueuedWorkload], now_s: float) -> dict[str, Eta]:
        if self._level_tables.snapshot is not self._source.snapshot or self._level_tables.tree is not self._source.tree:
            self._level_tables = LevelTables(self._source.tree, self._source.snapshot)
            self._fitter = Fitter(self._source.snapshot)
            self._kinds.clear()
        needs = {workload.key: self._to_need(workload.request) for workload in workloads}
        wanted = [need for need in needs.values() if need is not None]
        table, level = self._choose_group_level(wanted)
        forward = Playout(
            table, level, self._sample_free_times(now_s), list(dict.fromkeys(need.kind for need in wanted))
        )
        run_s = draw_run_times(workloads)
        return {
            workload.key: NOT_KNOWN
            if (need := needs[workload.key]) is None
            else forward.start_workload(need, lasts_s, now_s)
            for workload, lasts_s in zip(workloads, run_s, strict=True)
        }

    def _to_need(self, request: Request | GangRequest) -> Need | None:
        """The request in whole GPUs; None: it asks for something else, or fits nowhere."""
        if not isinstance(request, GangRequest):
            return self._to_pods_need(request, 1, "", one_per_node=False)
        largest = max(request.roles, key=lambda role: role.required_replicas * role.request.gpus.count)
        pods, pod = largest.required_replicas, largest.request
        together = max((s.size for s in largest.segments if s.level == NODE), default=1)
        if request.required == NODE:
            together = pods
        if together > 1 and pod.gpus.count:
            need = self._to_pods_need(pod, 1, request.required, one_per_node=False)
            if need is None:
                return None
            kind = need.kind._replace(gpus=need.kind.gpus * together)
            return need._replace(kind=self._kinds.setdefault(kind, kind), pods=pods // together)
        return self._to_pods_need(pod, pods, request.required, one_per_node=request.max_pods_per_node == 1)

    def _to_pods_need(self, pod: Request, pods: int, level: str, *, one_per_node: bool) -> Need | None:
        gpus = pod.gpus
        if not gpus.count and not gpus.milli:
            return None
        able = self._fitter.check_empty_nodes(pod) == FitStatus.FITS
        per_pod = gpus.count or 1
        if gpus.milli:
            pods = math.ceil(pods / (GPU_MILLI // gpus.milli))
        inside = "" if level in (NODE, CLUSTER) else level
        if inside and inside not in self._level_names():
            return None
        kind = Kind(per_pod, one_per_node, able.tobytes())
        return Need(self._kinds.setdefault(kind, kind), pods, inside)

    def _choose_group_level(self, needs: Iterable[Need]) -> tuple[LevelTable, int]:
        """The level whose domains are counted separately: the lowest required one, else leaves if few."""
        levels = {need.level for need in needs}
        table = self._level_tables.for_levels(tuple(name for name in self._level_names() if name in levels))
        level = table.leaf_level
        while level < table.top and len(table.levels[level]) > _MOST_GROUPS:
            level += 1
        named = [number for number, each in enumerate(table.levels) if each.name in levels]
        return table, min([level, *named])

    def _level_names(self) -> list[str]:
        """Names of the levels a gang can require, the outermost first."""
        return [*(level.name for level in reversed(self._source.tree.levels)), NVLINK]

    def _sample_free_times(self, now_s: float) -> Floats:
        """Sample, node, GPU -> seconds until it is free, sorted."""
        snapshot = self._source.snapshot
        listed, (started, p50, p95) = self._running.list_timed()
        parts = draw_uniform([workload.key for workload in listed])
        left = remaining_s(p50[:, None], p95[:, None], (now_s - started)[:, None], parts)
        ends = np.concatenate((left, np.zeros((1, SAMPLES)), np.full((1, SAMPLES), np.inf))).astype(np.float32)
        free, never = len(listed), len(listed) + 1
        gpus = np.arange(snapshot.milli.shape[1])
        who = np.where(snapshot.free[:, None] >> gpus & 1, free, never)
        shares: dict[tuple[int, int], list[tuple[int, int]]] = {}
        whole: list[tuple[int, int, int]] = []
        for number, workload in enumerate(listed):
            for grant in self._running.grants_of(workload.key):
                if grant.gpus:
                    whole.append((number, grant.node, grant.gpus))
                elif grant.share is not None:
                    shares.setdefault((grant.node, grant.share[0]), []).append((number, grant.share[1]))
        numbers, nodes, masks = np.array(whole, np.int64).reshape(-1, 3).T
        row, column = np.nonzero(masks[:, None] >> gpus & 1)
        who[nodes[row], column] = numbers[row]
        found: Floats = ends[who].transpose(2, 0, 1)
        for (node, gpu), held in shares.items():
            if int(snapshot.milli[node, gpu]) + sum(milli for _, milli in held) == GPU_MILLI:
                found[:, node, gpu] = ends[[number for number, _ in held]].max(axis=0)
        return np.sort(found, axis=2)
