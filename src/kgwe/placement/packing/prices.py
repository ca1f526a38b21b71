"""Prices of free GPUs beyond their share worth: for their model, their free neighbours, and the CPU beside them.

Prices are in the unit of share worth (milli) and follow from demand and supply for the load still expected.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from kgwe.placement.packing.fleet import GPU_MILLI

if TYPE_CHECKING:
    from kgwe.placement.packing.fleet import Demand, Fleet, FloatArray, IntArray
    from kgwe.placement.packing.policy import Mix

# How sharply demands with a choice of models avoid an expensive one. From 0.1 to 1 results move by about 0.1 points; at
# 0.01 a list with a third of its pods bound to a model loses a whole point.
_MODEL_TEMPERATURE = 0.1
_MODEL_STEP = 0.5
_MODEL_FIRST_ROUNDS = 50
_MODEL_ROUNDS = 3
# Three times its worth: a model whose whole supply is needed by demands that can use no other.
_MODEL_DEAREST = 3.0
# Share of a group's milli that breaking it costs when as many are expected as there are. Nothing at all lets single
# pods break every group early; much more than this makes them take worse GPUs than necessary.
_GROUP_SHARE = 0.01


class ModelRent:
    """Per node, the price of a milli beyond its worth, because some demands can use no other model.

    The expected load is spread over the free GPUs of the models it may use; demands with a choice avoid expensive
    models. Prices are right when every model gets as much load as it has free.
    """

    def __init__(self, fleet: Fleet, mix: Mix, before: ModelRent | None = None) -> None:
        """`before`: the rents under an earlier mix of the same fleet, a good start."""
        load: Counter[tuple[bool, ...]] = Counter()
        for demand, count in zip(mix.demands, mix.counts.tolist(), strict=True):
            if demand.num_gpu:
                load[tuple(fleet.allowed_models(demand).tolist())] += count * demand.total_milli
        self._fleet = fleet
        self._allowed: FloatArray = np.array(list(load), dtype=np.float64)
        self._share: FloatArray = np.array(list(load.values())) / max(load.total(), 1)
        self._rent: FloatArray = np.zeros(len(fleet.models)) if before is None else before._rent  # noqa: SLF001
        self._is_settled = False
        self.rent: FloatArray = np.zeros(len(fleet))

    def update(self) -> None:
        if len(self._share) < 2 and self._allowed.all():  # noqa: PLR2004 -- all demands may use all models
            return
        fleet = self._fleet
        free = np.bincount(fleet.model, weights=fleet.gpu_free, minlength=len(fleet.models)) + 1
        for _ in range(_MODEL_ROUNDS if self._is_settled else _MODEL_FIRST_ROUNDS):
            drawn = self._allowed * (free * np.exp(-self._rent / _MODEL_TEMPERATURE) + 1e-12)
            used = (self._share * free.sum()) @ (drawn / np.maximum(drawn.sum(axis=1, keepdims=True), 1e-12))
            rent = self._rent + _MODEL_STEP * _MODEL_TEMPERATURE * np.log((used + 1) / free)
            self._rent = np.minimum(rent - rent.min(), _MODEL_DEAREST)
        self._is_settled = True
        self.rent = self._rent[fleet.model]


class GroupRent:
    """The price of breaking the last nodes on which pods with several GPUs can run.

    For every such demand m of the mix a node has room for q(m) = min(whole GPUs / GPUs of m, CPU / CPU of m) pods.
    Losing one costs its milli times a share that grows with (pods of m to come / room left in the fleet) squared:
    next to nothing while there is plenty.
    """

    def __init__(self, fleet: Fleet, mix: Mix) -> None:
        self._fleet = fleet
        counted = zip(mix.demands, mix.counts.tolist(), strict=True)
        load = sum(count * demand.total_milli for demand, count in counted)
        self._demands = [demand for demand in mix.demands if demand.num_gpu > 1]
        self._per_milli = [
            count / max(load, 1)
            for demand, count in zip(mix.demands, mix.counts.tolist(), strict=True)
            if demand.num_gpu > 1
        ]
        self._room: list[IntArray] = []
        self._price: list[float] = []

    def update(self, coming_milli: float) -> None:
        fleet = self._fleet
        everywhere = np.arange(len(fleet))
        self._room = [self._room_for(m, everywhere, fleet.whole, fleet.cpu_free) for m in self._demands]
        self._price = [
            _GROUP_SHARE * m.total_milli * min(1.0, per_milli * coming_milli / max(int(room.sum()), 1)) ** 2
            for m, per_milli, room in zip(self._demands, self._per_milli, self._room, strict=True)
        ]

    def price_losses(self, nodes: IntArray, whole_after: IntArray, cpu_after: IntArray) -> FloatArray:
        """For each of the nodes, the price of the room lost if it is left with that many whole GPUs and that CPU."""
        losses: FloatArray = np.zeros(len(nodes))
        for m, room, price in zip(self._demands, self._room, self._price, strict=True):
            losses += price * (room[nodes] - self._room_for(m, nodes, whole_after, cpu_after))
        return losses

    def refresh(self, nodes: IntArray) -> None:
        """Count the room of these nodes again."""
        fleet = self._fleet
        for m, room in zip(self._demands, self._room, strict=True):
            room[nodes] = self._room_for(m, nodes, fleet.whole[nodes], fleet.cpu_free[nodes])

    def _room_for(self, demand: Demand, nodes: IntArray, whole: IntArray, cpu: IntArray) -> IntArray:
        room = np.minimum(whole // demand.num_gpu, cpu // max(demand.cpu_milli, 1))
        return np.where(self._fleet.allowed_nodes(demand)[nodes], room, 0) if demand.gpu_spec else room


class CpuReach:
    """The part of a node's free GPUs that its free CPU can serve.

    A demand that takes d milli-CPU per GPU can use min(1, rho / d) of a node that has rho milli-CPU per free GPU. Its
    mean over the mix, weighted by load, is what one random pod could use. A node waits for several pods and loses only
    if none of `_DRAWS` fits.
    """

    # Few: CPU outweighs the fit of the GPU. Many: nodes run out of CPU, waiting for small demands that never come.
    # The most sensitive number here: the default list gives 96.25 at 3, 96.1 at 2.5 and at 4, 95.4 at 10.
    _DRAWS = 3
    _STEP = 10  # milli-CPU per GPU between entries of the table
    _MOST = 128_000

    def __init__(self, mix: Mix) -> None:
        density = np.arange(0, self._MOST + 1, self._STEP, dtype=np.float64)
        reach, load = np.zeros_like(density), 0
        for demand, count in zip(mix.demands, mix.counts.tolist(), strict=True):
            if demand.num_gpu:
                milli = count * demand.total_milli
                per_gpu = max(demand.cpu_milli * GPU_MILLI / demand.total_milli, 1)
                reach += milli * np.minimum(1, density / per_gpu)
                load += milli
        self._table: FloatArray = 1 - (1 - reach / max(load, 1)) ** self._DRAWS

    def usable_worth(self, worth: FloatArray, cpu: IntArray, gpu_worth: float) -> FloatArray:
        """The part of `worth` that can be used with that much CPU beside it."""
        density = cpu * (gpu_worth / self._STEP) / np.maximum(worth, 1e-6)
        usable: FloatArray = worth * self._table[np.minimum(density, len(self._table) - 1).astype(np.int64)]
        return usable
