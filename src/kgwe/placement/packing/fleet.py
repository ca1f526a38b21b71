"""The fleet as packing policies see it: free CPU, memory and GPU shares of every node, as flat arrays.

One column per node, one row per GPU. A GPU is 1000 milli; nodes with fewer GPUs than the widest have rows that are
never free. Pods neither leave nor move: `place` is the only change, and it refuses to oversubscribe.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from kgwe import errors

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    IntArray = NDArray[np.int64]
    FloatArray = NDArray[np.float64]
    BoolArray = NDArray[np.bool_]

#: a whole GPU
GPU_MILLI = 1000
#: the kubelet's limit in the published experiment
PODS_PER_NODE = 1001


class Demand(NamedTuple):
    """What a pod requests, as far as prices are concerned: pods of equal demand are interchangeable."""

    cpu_milli: int
    gpu_milli: int  # per GPU
    num_gpu: int
    gpu_spec: str = ""  # allowed models, joined by "|"; empty: any

    @property
    def is_share(self) -> bool:
        return self.num_gpu == 1 and self.gpu_milli < GPU_MILLI

    @property
    def total_milli(self) -> int:
        return self.gpu_milli * self.num_gpu

    def allows(self, model: str) -> bool:
        return self.num_gpu == 0 or not self.gpu_spec or model in self.gpu_spec.split("|")


class Pod(NamedTuple):
    demand: Demand
    memory_mib: int


@dataclass(frozen=True, slots=True)
class NodeSpec:
    name: str
    cpu_milli: int
    memory_mib: int
    gpus: int
    model: str


class Fleet:
    """Free amounts per node; `place` keeps the derived arrays consistent."""

    def __init__(self, nodes: Sequence[NodeSpec]) -> None:
        count, width = len(nodes), max(node.gpus for node in nodes)
        self.models = tuple(sorted({node.model for node in nodes}))
        self.model: IntArray = np.array([self.models.index(node.model) for node in nodes])
        self.gpu_count: IntArray = np.array([node.gpus for node in nodes])
        self.cpu_free: IntArray = np.array([node.cpu_milli for node in nodes])
        self.memory_free: IntArray = np.array([node.memory_mib for node in nodes])
        self.pods: IntArray = np.zeros(count, dtype=np.int64)
        self.gpus: IntArray = np.where(np.arange(width)[:, None] < self.gpu_count, GPU_MILLI, 0)
        self.largest: IntArray = self.gpus.max(axis=0)
        self.whole: IntArray = (self.gpus == GPU_MILLI).sum(axis=0)
        self.gpu_free: IntArray = self.gpus.sum(axis=0)
        self.capacity = int(self.gpu_free.sum())
        self._allowed: dict[str, BoolArray] = {}

    def __len__(self) -> int:
        return len(self.model)

    def allowed_models(self, demand: Demand) -> BoolArray:
        """For each of `models`, whether the demand may use it."""
        return np.array([demand.allows(model) for model in self.models])

    def allowed_nodes(self, demand: Demand) -> BoolArray:
        """For each node, whether the demand may use its model."""
        spec = demand.gpu_spec if demand.num_gpu else ""
        if spec not in self._allowed:
            self._allowed[spec] = self.allowed_models(demand)[self.model]
        return self._allowed[spec]

    def fits(self, pod: Pod) -> BoolArray:
        """For each node, whether the pod fits now."""
        demand = pod.demand
        fits: BoolArray = (self.cpu_free >= demand.cpu_milli) & (self.memory_free >= pod.memory_mib)
        fits &= self.pods < PODS_PER_NODE
        if demand.num_gpu == 0:
            return fits
        if demand.gpu_spec:
            fits &= self.allowed_nodes(demand)
        if demand.num_gpu == 1:
            return fits & (self.largest >= demand.gpu_milli)
        if demand.gpu_milli == GPU_MILLI:
            return fits & (self.whole >= demand.num_gpu)
        fits &= (self.gpus >= demand.gpu_milli).sum(axis=0) >= demand.num_gpu
        return fits

    def find_whole_gpus(self, node: int, count: int) -> tuple[int, ...]:
        """The `count` unused GPUs of a node with the lowest numbers."""
        return tuple(int(gpu) for gpu in np.flatnonzero(self.gpus[:, node] == GPU_MILLI)[:count])

    def find_tightest_gpus(self, node: int, demand: Demand) -> tuple[int, ...]:
        """The GPUs with the smallest free share that holds the demand; ties go to the lowest number."""
        free = self.gpus[:, node]
        order = np.argsort(free, kind="stable")
        return tuple(int(gpu) for gpu in order if free[gpu] >= demand.gpu_milli)[: demand.num_gpu]

    def place(self, pod: Pod, node: int, gpus: Sequence[int]) -> None:
        """Book the pod; InvariantBroken, with nothing changed, if it does not fit."""
        demand = pod.demand
        chosen = self.gpus[list(gpus), node]
        if (
            len(set(gpus)) != demand.num_gpu
            or (chosen < demand.gpu_milli).any()
            or self.cpu_free[node] < demand.cpu_milli
            or self.memory_free[node] < pod.memory_mib
        ):
            raise errors.InvariantBroken(f"node {node} cannot give {pod} on GPUs {tuple(gpus)}")
        self.pods[node] += 1
        self.cpu_free[node] -= demand.cpu_milli
        self.memory_free[node] -= pod.memory_mib
        if demand.num_gpu:
            self.gpus[list(gpus), node] -= demand.gpu_milli
            column = self.gpus[:, node]
            self.largest[node] = column.max()
            self.whole[node] = (column == GPU_MILLI).sum()
            self.gpu_free[node] = column.sum()
