"""The score of a node for a pod that fits there: 0..100 from three parts, each 0..100, higher is better.

    topology  40 %  the wiring of the GPUs it would get and the islands it would leave whole
                    (`kgwe.placement.gpuset.topology_score`); 50 for slices and for pods without GPUs
    resource  35 %  how full the node's GPUs are with the pod: full nodes are filled first, and empty nodes stay empty
                    for workloads that need a whole one. Counted in milli-GPUs, so eight GPUs count eight times as much
                    as one; for pods without GPUs the mean of CPU and memory
    balance   25 %  how evenly CPU and memory remain beside the GPUs: 100 minus the percentage points by which the share
                    of CPU or memory left is below the share of GPUs left. A node that runs out of CPU first strands its
                    GPUs. Spare CPU beside full GPUs costs nothing: to punish it would keep nodes from being filled

    score = (40 * topology + 35 * resource + 25 * balance) / 100 + hint, clipped to 0..100

The weights may be any that add up to 100. A hint is a forecast for a node, clipped to -10..+10 points; NaN is no hint.

All arithmetic is element by element in 64-bit floats and in one order, so a score is the same number for one node or
for all, and equal nodes tie exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from kgwe import errors
from kgwe.placement.fleet.node import GPU_MILLI
from kgwe.placement.gpuset import topology_score

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kgwe.placement.fleet.node import Gpus, Preference, Request
    from kgwe.placement.gpuset.topology_score import TopologyPoints
    from kgwe.placement.pod.fit import Fitter

    Floats = NDArray[np.float64]

HIGHEST: Final = 100.0
HINT_LIMIT: Final = 10.0


@dataclass(frozen=True, slots=True)
class Weights:
    """Percent of each part."""

    topology: float = 40.0
    resource: float = 35.0
    balance: float = 25.0

    def __post_init__(self) -> None:
        parts = (self.topology, self.resource, self.balance)
        if not all(0 <= part <= HIGHEST for part in parts) or abs(sum(parts) - HIGHEST) > _ROUNDING:
            raise errors.Permanent(
                f"weights topology {self.topology:g}, resource {self.resource:g}, balance {self.balance:g} add up to"
                f" {sum(parts):g}: none may be negative and together they must be 100"
            )


_ROUNDING: Final = 1e-6


class ScoreParts(NamedTuple):
    """Per node, the three parts; without meaning where the pod does not fit."""

    topology: Floats
    resource: Floats
    balance: Floats
    #: GPUs of islands the pod would break
    broken: NDArray[np.int32]


def bound_hint(hint: Floats) -> Floats:
    """The points of a forecast, clipped to the limits; NaN counts as 0."""
    return np.clip(np.nan_to_num(hint, nan=0.0), -HINT_LIMIT, HINT_LIMIT)


class Scorer:
    """Scores over the snapshot of a fitter; totals and tables are computed once."""

    def __init__(self, fitter: Fitter, weights: Weights = Weights()) -> None:  # noqa: B008 - frozen
        self.weights = weights
        self._shares = (weights.topology / HIGHEST, weights.resource / HIGHEST, weights.balance / HIGHEST)
        self._fitter = fitter
        self._snapshot = snapshot = fitter.snapshot
        self._wirings = tuple(shape.wiring for shape in snapshot.shapes)
        nodes = snapshot.nodes
        self._cpu = np.array([max(node.cpu_milli, 1) for node in nodes], np.float64)
        self._memory = np.array([max(node.memory_bytes, 1) for node in nodes], np.float64)
        healthy = [(node.shape.all_gpus & node.healthy).bit_count() for node in nodes]
        self._gpu = np.array([max(count * GPU_MILLI, 1) for count in healthy], np.float64)
        self._has_gpu = np.array([count > 0 for count in healthy], np.bool_)
        self._all_have_gpu = bool(self._has_gpu.all())
        self._is_cut = np.array([bool(node.cut) for node in nodes], np.bool_)
        self._left: Floats = np.zeros(len(nodes))
        self._seen = -1
        self._slice_milli: dict[str, Floats] = {}
        self._points_by_request: dict[tuple[int, Preference], TopologyPoints] = {}

    def score(self, parts: ScoreParts) -> Floats:
        """The weighted sum; 0..100 where the pod fits, apart from rounding."""
        topology, resource, balance = self._shares
        return topology * parts.topology + resource * parts.resource + balance * parts.balance

    def score_parts(self, request: Request, nodes: NDArray[np.intp]) -> ScoreParts:
        """The parts for these nodes, with the pod placed there now."""
        snapshot, gpus = self._snapshot, request.gpus
        cpu = (snapshot.cpu_milli[nodes] - request.cpu_milli) / self._cpu[nodes]
        memory = (snapshot.memory_bytes[nodes] - request.memory_bytes) / self._memory[nodes]
        gpu = (self.free_gpu_milli()[nodes] - self._wanted_milli(gpus, nodes)) / self._gpu[nodes]
        if not self._all_have_gpu:
            # Without GPUs nothing can be stranded.
            gpu = np.where(self._has_gpu[nodes], gpu, 0.0)
        if gpus.count or gpus.milli or gpus.slices:
            resource = HIGHEST * (1 - gpu)
        else:
            resource = HIGHEST * (1 - (cpu + memory) / 2)
        stranded = np.maximum(gpu - np.minimum(cpu, memory), 0.0)
        topology, broken = self._score_topology(request, nodes)
        return ScoreParts(topology, resource, HIGHEST * (1 - stranded), broken)

    def free_gpu_milli(self) -> Floats:
        """Node -> free milli-GPUs, slices counted by their part of a GPU; shared, do not write to it."""
        snapshot = self._snapshot
        if self._seen != snapshot.version:
            changed = snapshot.changed_since(self._seen)
            self._left[changed] = snapshot.milli[changed].sum(axis=1)
            for node in changed[self._is_cut[changed]].tolist():
                self._left[node] += sum(
                    int(counts[node]) * self._slice_milli_of(profile)[node]
                    for profile, counts in snapshot.slices.items()
                )
            self._seen = snapshot.version
        return self._left

    def _wanted_milli(self, gpus: Gpus, nodes: NDArray[np.intp]) -> float | Floats:
        if gpus.slices:
            return gpus.slices * self._slice_milli_of(gpus.profile)[nodes]
        return gpus.count * GPU_MILLI + gpus.milli

    def _slice_milli_of(self, profile: str) -> Floats:
        """Node -> milli-GPUs of one slice of the profile."""
        if profile not in self._slice_milli:
            per_shape = np.zeros(len(self._snapshot.shapes))
            for number, shape in enumerate(self._snapshot.shapes):
                if shape.geometry is not None and profile in shape.geometry.profiles:
                    per_shape[number] = GPU_MILLI * shape.geometry.profile(profile).units / shape.geometry.units
            self._slice_milli[profile] = per_shape[self._snapshot.shape]
        return self._slice_milli[profile]

    # --- topology ---------------------------------------------------------------------------------------

    def _score_topology(self, request: Request, nodes: NDArray[np.intp]) -> tuple[Floats, NDArray[np.int32]]:
        gpus, snapshot = request.gpus, self._snapshot
        if not gpus.count and not gpus.milli:
            return np.full(len(nodes), topology_score.BASE), np.zeros(len(nodes), np.int32)
        tables = self._topology_points(gpus.count or 1, request.preference)
        at = self._fitter.table_rows(nodes)
        points, broken = tables.points[at], tables.broken[at]
        if gpus.milli:
            # A GPU with a used share is in no whole island.
            milli = snapshot.milli[nodes]
            shared = (milli >= gpus.milli) & (milli < GPU_MILLI) & (snapshot.share_mib[nodes] >= gpus.share_mib)
            opened = shared.any(axis=1)
            points, broken = np.where(opened, HIGHEST, points), np.where(opened, 0, broken)
        return points, broken

    def _topology_points(self, count: int, preference: Preference) -> TopologyPoints:
        key = (count, preference)
        if key not in self._points_by_request:
            self._points_by_request[key] = topology_score.score_sets(
                self._fitter.tables, self._wirings, count, preference
            )
        return self._points_by_request[key]
