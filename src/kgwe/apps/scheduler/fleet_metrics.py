"""How full the fleet is, by domain, as gauges that are computed at each scrape."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from kgwe.placement.fleet.node import GPU_MILLI
from kgwe.placement.gpuset import topology_score

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from kgwe.apps.scheduler.metrics import Metrics, Sample
    from kgwe.cluster.state.cluster_state import ClusterState


class FleetGauges:
    """Over one state; the scheduler registers it once."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._nearness: dict[tuple[int, int], float] = {}  # (shape, free cards) -> score
        self._of = -1  # generation of the fleet whose shapes these are

    def register(self, metrics: Metrics) -> None:
        metrics.add_gauge(
            "kgwe_active_workloads", "Workloads not finished", ("namespace", "workload_type"), self._list_active
        )
        metrics.add_gauge("kgwe_gpu_count", "GPUs by node and model", ("node", "model"), self._list_gpus)
        metrics.add_gauge(
            "kgwe_topology_score",
            "How near the free GPUs of a node are to each other, 50 (across sockets) to 100 (NVLink); 0: none is free",
            ("node",),
            self._list_topology,
        )
        metrics.add_gauge(
            "topology_domain_utilization_ratio",
            "Share of a domain's healthy GPUs that is in use or reserved",
            ("level", "domain"),
            self._list_domains,
        )
        metrics.add_gauge(
            "topology_gpu_allocation_ratio",
            "Share of all healthy GPUs that is in use or reserved",
            (),
            self._list_allocation,
        )
        metrics.add_gauge(
            "topology_domain_fragmentation_ratio",
            "Share of a domain's free GPUs that lies on nodes which are partly used",
            ("level", "domain"),
            self._list_fragments,
        )

    def _list_active(self) -> Iterator[Sample]:
        return (
            (labels, float(count)) for labels, count in Counter(self._state.workload_registry.list_active()).items()
        )

    def _list_gpus(self) -> Iterator[Sample]:
        for node in self._state.fleet.snapshot.nodes:
            yield (node.name, node.shape.model), float(node.shape.gpu_count)

    def _list_topology(self) -> Iterator[Sample]:
        fleet = self._state.fleet
        snapshot = fleet.snapshot
        if self._of != fleet.generation:
            self._nearness, self._of = {}, fleet.generation
        for node, shape, free in zip(snapshot.nodes, snapshot.shape.tolist(), snapshot.free.tolist(), strict=True):
            if (shape, free) not in self._nearness:
                self._nearness[shape, free] = topology_score.score_nearness(node.shape.wiring, free)
            yield (node.name,), self._nearness[shape, free]

    def _count_gpus(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Per place of the tree, in thousandths of a GPU: healthy, free, and free on nodes that are partly used."""
        fleet = self._state.fleet
        snapshot, tree = fleet.snapshot, fleet.tree
        usable = np.array([node.usable.bit_count() * GPU_MILLI for node in snapshot.nodes], np.int64)
        free = snapshot.milli.sum(axis=1, dtype=np.int64)
        order = np.array([snapshot.index[name] for name in tree.nodes], np.intp)
        partly = np.where(free < usable, free, 0)
        return usable[order], free[order], partly[order]

    def _list_domains(self) -> Iterator[Sample]:
        usable, free, _ = self._count_gpus()
        yield from self._by_domain(usable - free, usable)

    def _list_fragments(self) -> Iterator[Sample]:
        _, free, partly = self._count_gpus()
        yield from self._by_domain(partly, free)

    def _by_domain(self, part: NDArray[np.int64], whole: NDArray[np.int64]) -> Iterator[Sample]:
        for level in self._state.fleet.tree.levels:
            parts, wholes = level.sums(part).tolist(), level.sums(whole).tolist()
            for name, known, one, all_of_it in zip(level.names, level.known.tolist(), parts, wholes, strict=True):
                if known and all_of_it:
                    yield (level.name, name), one / all_of_it

    def _list_allocation(self) -> Iterator[Sample]:
        usable, free, _ = self._count_gpus()
        total = int(usable.sum())
        yield (), 1.0 - int(free.sum()) / total if total else 0.0
