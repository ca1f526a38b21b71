"""The free GPU capacity that a mix of requests cannot use, by cause.

For each demand m of the mix, FGD (USENIX ATC'23) checks whether m could run on a node, and which free shares are too
small for it. The expected value over the mix is the node's fragment F. Each free milli is either usable for m or lost
to exactly one cause, so the causes and the usable part sum to the idle amount. Sums are exact integers (milli x count
of the mix), divided last.

`Fragmentation` is for the fleets of packing experiments, which have GPUs and CPU only.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kgwe.placement.packing.fleet import BoolArray, Fleet, FloatArray, IntArray
    from kgwe.placement.packing.policy import Mix

# Above this number of states, equal ones are evaluated once: empty nodes are alike.
_WORTH_GROUPING = 512


class Cause(enum.StrEnum):
    """The cause for which idle GPU capacity cannot be used by the next pod of the mix; the first that applies."""

    USABLE = "Usable"
    UNHEALTHY = "Unhealthy"  # the GPU is out of service
    RESERVED = "Reserved"  # reserved for later workloads
    MIG_HOLE = "MIGHole"  # free on a partitioned GPU, but no slice fits there
    NO_GPU_WANTED = "NoGPUWanted"  # the pod requests CPU only
    NOT_READY = "NotReady"
    NOT_ALLOWED = "NotAllowed"  # selector, affinity or taints exclude the pod
    WRONG_MODEL = "WrongModel"  # the pod requests other GPU models, or more memory
    CUT = "Cut"  # the pod requests GPUs, this one is partitioned
    NOT_CUT = "NotCut"  # the pod requests slices, this GPU is not partitioned
    OTHER_SLICES = "OtherSlices"  # the pod requests slices of another size
    REMAINDER = "Remainder"  # the free share of the GPU is too small for the pod
    TOO_FEW_GPUS = "TooFewCards"  # the GPU fits, but the pod needs more of them on one node
    WIRING = "Wiring"  # enough GPUs, but without the required topology
    SHORT_OF_CPU = "ShortOfCPU"  # enough GPUs, but not enough CPU
    SHORT_OF_MEMORY = "ShortOfMemory"
    TOO_MANY_PODS = "TooManyPods"
    WRONG_DOMAIN = "WrongDomain"  # the node fits, but none of its domains holds the pod's whole gang


class Fragmentation:
    """Computes F for states of nodes of one fleet, with one mix."""

    def __init__(self, fleet: Fleet, mix: Mix) -> None:
        demands = mix.demands
        self._fleet = fleet
        self._mix = mix
        self._cpu: IntArray = np.array([demand.cpu_milli for demand in demands])[:, None]
        self._milli: IntArray = np.array([demand.gpu_milli for demand in demands])[:, None]
        self._num: IntArray = np.array([demand.num_gpu for demand in demands])[:, None]
        # Whether demand m requests a GPU and may use model g: m in rows, g in columns.
        self._allowed: BoolArray = np.stack([fleet.allowed_models(demand) for demand in demands])
        self._suits: BoolArray = self._allowed & (self._num > 0)

    def of_nodes(self, nodes: IntArray) -> FloatArray:
        """Return F of these nodes, in milli."""
        fleet = self._fleet
        return self.of_states(fleet.cpu_free[nodes], fleet.gpus[:, nodes], fleet.model[nodes])

    def of_states(self, cpu_free: IntArray, cards: IntArray, model: IntArray) -> FloatArray:
        """Return F of hypothetical nodes, one per column."""
        if len(model) > _WORTH_GROUPING:
            rows = np.concatenate([model[None], cpu_free[None], np.sort(cards, axis=0)]).T
            distinct, where = np.unique(rows, axis=0, return_inverse=True)
            model, cpu_free, cards = distinct[:, 0], distinct[:, 1], distinct[:, 2:].T
            fragment: FloatArray = self._evaluate(cpu_free, cards, model)[where]
            return fragment
        return self._evaluate(cpu_free, cards, model)

    def _evaluate(self, cpu_free: IntArray, cards: IntArray, model: IntArray) -> FloatArray:
        idle = cards.sum(axis=0)
        holds = cards[:, None, :] >= self._milli  # GPU, demand, state
        runs = (holds.sum(axis=0) >= self._num) & (cpu_free >= self._cpu) & self._suits[:, model]
        usable = np.einsum("cds,cs->ds", holds, cards)
        fragment: FloatArray = idle - self._mix.weights @ np.where(runs, usable, 0)
        return fragment

    def by_cause(self, nodes: IntArray) -> Mapping[Cause, int]:
        """Return idle milli of these nodes x the mix's total count, by cause; the sum is exactly idle x total."""
        fleet = self._fleet
        cpu_free, cards, model = fleet.cpu_free[nodes], fleet.gpus[:, nodes], fleet.model[nodes]
        holds = cards[:, None, :] >= self._milli  # GPU, demand, state
        idle = np.broadcast_to(cards.sum(axis=0), holds.shape[1:])
        large_enough = np.einsum("cds,cs->ds", holds, cards)
        wants = np.broadcast_to(self._num > 0, idle.shape)
        suits = self._allowed[:, model]
        has_cards = holds.sum(axis=0) >= self._num
        has_cpu = cpu_free >= self._cpu
        amounts = {
            Cause.NO_GPU_WANTED: np.where(wants, 0, idle),
            Cause.WRONG_MODEL: np.where(wants & ~suits, idle, 0),
            Cause.REMAINDER: np.where(wants & suits, idle - large_enough, 0),
            Cause.TOO_FEW_GPUS: np.where(wants & suits & ~has_cards, large_enough, 0),
            Cause.SHORT_OF_CPU: np.where(wants & suits & has_cards & ~has_cpu, large_enough, 0),
            Cause.USABLE: np.where(wants & suits & has_cards & has_cpu, large_enough, 0),
        }
        return {cause: int(self._mix.counts @ amount.sum(axis=1)) for cause, amount in amounts.items()}


def idle_by_cause(fleet: Fleet, mix: Mix) -> dict[Cause, float]:
    """Return the share of the fleet's capacity, in percent, that is idle for each cause."""
    amounts = Fragmentation(fleet, mix).by_cause(np.arange(len(fleet)))
    return {cause: 100 * amount / (mix.total * fleet.capacity) for cause, amount in amounts.items()}
