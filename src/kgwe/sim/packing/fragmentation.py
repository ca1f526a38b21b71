"""How much of the free GPU a mix of demands cannot use, and why.

FGD (USENIX ATC'23) asks, for every demand m of the mix: could m run on this node, and if so, which free card shares
are too small for it? The expected answer over the mix is the node's fragment F. Every free milli is either usable for
m or lost to exactly one cause, so the causes and the usable part sum to the idle amount, exactly: sums are kept as
whole numbers (milli x count of the mix) and divided last.

`Fragmentation` is for the fleets of packing experiments, which know cards and CPU only.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kgwe.placement.packing.fleet import BoolArray, Fleet, FloatArray, IntArray
    from kgwe.placement.packing.policy import Mix

# Above this many states, equal ones are evaluated once: fresh nodes are alike.
_WORTH_GROUPING = 512


class Cause(enum.StrEnum):
    """Where idle GPU goes for the next pod of the mix; the first that applies."""

    USABLE = "Usable"
    UNHEALTHY = "Unhealthy"  # the card may not be given work
    RESERVED = "Reserved"  # kept for work that has not come yet
    MIG_HOLE = "MIGHole"  # free on a cut card, but no slice can be there
    NO_GPU_WANTED = "NoGPUWanted"  # the pod asks for CPU only
    NOT_READY = "NotReady"
    NOT_ALLOWED = "NotAllowed"  # selector, affinity or taints keep the pod away
    WRONG_MODEL = "WrongModel"  # the pod names other GPU models, or more memory
    CUT = "Cut"  # the pod wants cards, this one is cut into slices
    NOT_CUT = "NotCut"  # the pod wants slices, this is not cut
    OTHER_SLICES = "OtherSlices"  # the pod wants slices of another size
    REMAINDER = "Remainder"  # the share left on the card is too small for the pod
    TOO_FEW_GPUS = "TooFewCards"  # the card would do, but the pod wants more of them on one node
    WIRING = "Wiring"  # cards enough, but not wired as the pod requires
    SHORT_OF_CPU = "ShortOfCPU"  # cards enough, CPU not
    SHORT_OF_MEMORY = "ShortOfMemory"
    TOO_MANY_PODS = "TooManyPods"
    WRONG_DOMAIN = "WrongDomain"  # the node would do, but no domain it is in holds the pod's whole gang


class Fragmentation:
    """F for states of nodes of one fleet, under one mix."""

    def __init__(self, fleet: Fleet, mix: Mix) -> None:
        demands = mix.demands
        self._fleet = fleet
        self._mix = mix
        self._cpu: IntArray = np.array([demand.cpu_milli for demand in demands])[:, None]
        self._milli: IntArray = np.array([demand.gpu_milli for demand in demands])[:, None]
        self._num: IntArray = np.array([demand.num_gpu for demand in demands])[:, None]
        # Whether demand m wants a GPU and may use model g: m in rows, g in columns.
        self._allowed: BoolArray = np.stack([fleet.allowed_models(demand) for demand in demands])
        self._suits: BoolArray = self._allowed & (self._num > 0)

    def of_nodes(self, nodes: IntArray) -> FloatArray:
        """F of these nodes as they are, in milli."""
        fleet = self._fleet
        return self.of_states(fleet.cpu_free[nodes], fleet.gpus[:, nodes], fleet.model[nodes])

    def of_states(self, cpu_free: IntArray, cards: IntArray, model: IntArray) -> FloatArray:
        """F of imagined nodes, one per column."""
        if len(model) > _WORTH_GROUPING:
            rows = np.concatenate([model[None], cpu_free[None], np.sort(cards, axis=0)]).T
            distinct, where = np.unique(rows, axis=0, return_inverse=True)
            model, cpu_free, cards = distinct[:, 0], distinct[:, 1], distinct[:, 2:].T
            fragment: FloatArray = self._evaluate(cpu_free, cards, model)[where]
            return fragment
        return self._evaluate(cpu_free, cards, model)

    def _evaluate(self, cpu_free: IntArray, cards: IntArray, model: IntArray) -> FloatArray:
        idle = cards.sum(axis=0)
        holds = cards[:, None, :] >= self._milli  # card, demand, state
        runs = (holds.sum(axis=0) >= self._num) & (cpu_free >= self._cpu) & self._suits[:, model]
        usable = np.einsum("cds,cs->ds", holds, cards)
        fragment: FloatArray = idle - self._mix.weights @ np.where(runs, usable, 0)
        return fragment

    def by_cause(self, nodes: IntArray) -> Mapping[Cause, int]:
        """Idle milli of these nodes x the mix's total count, by cause; the values sum to idle x total exactly."""
        fleet = self._fleet
        cpu_free, cards, model = fleet.cpu_free[nodes], fleet.gpus[:, nodes], fleet.model[nodes]
        holds = cards[:, None, :] >= self._milli  # card, demand, state
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
    """Share of the fleet's capacity, in percent, that is idle for each cause."""
    amounts = Fragmentation(fleet, mix).by_cause(np.arange(len(fleet)))
    return {cause: 100 * amount / (mix.total * fleet.capacity) for cause, amount in amounts.items()}
