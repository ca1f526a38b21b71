"""MixFit: our packing policy. A pod goes where it costs the fleet's future least.

All prices are in milli of GPU that the expected mix could have used:

- on the GPU: the worth of the free share before and after (`value.ShareWorth`, cutting-stock prices);
- on the node: free GPUs are worth only what the CPU beside them can serve (`prices.CpuReach`). So demands with much CPU
  go where CPU is plentiful, small ones fill nodes with little CPU, and pods without GPUs go where no GPU is free;
- in the fleet: models that some pods cannot do without (`prices.ModelRent`), and nodes with several whole GPUs that
  large pods need (`prices.GroupRent`).

The policy knows the state of the fleet and the mix, not the order of arrivals. It assumes that pods keep coming until
the fleet is full and a little longer. Prices are updated every few pods; nothing else is remembered, so it can start on
any half-full fleet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kgwe.placement.packing.prices import CpuReach, GroupRent, ModelRent
from kgwe.placement.packing.value import GRID, LEVELS, ShareWorth, to_level

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kgwe.placement.packing.fleet import Demand, Fleet, FloatArray, IntArray
    from kgwe.placement.packing.policy import Mix

# Load expected beyond what is free, as a share of capacity: small pods still come when whole GPUs are gone.
_OVERRUN = 0.03
# Pods between two updates of the prices; at 2 the results are the same.
_UPDATE_EVERY = 10


class MixFit:
    def __init__(self, fleet: Fleet, mix: Mix, rng: np.random.Generator | None = None) -> None:
        del rng
        self._fleet = fleet
        self._shares = ShareWorth(mix)
        self._reach = CpuReach(mix)
        self._models = ModelRent(fleet, mix)
        self._groups = GroupRent(fleet, mix)
        self._levels: IntArray = fleet.gpus // GRID
        self._worth: FloatArray = np.zeros(len(fleet))
        self._usable: FloatArray = np.zeros(len(fleet))
        self._losses: dict[int, FloatArray] = {}
        self._asked = 0
        # Only to break ties: of equally good nodes the fuller one, by less than any real difference.
        self._full_gpu = max(int(fleet.gpu_free.max()), 1)
        self._full_cpu = max(int(fleet.cpu_free.max()), 1)

    def learn(self, mix: Mix) -> None:
        """Continue with another mix; the new prices start from the present ones."""
        self._shares = ShareWorth(mix, before=self._shares)
        self._reach = CpuReach(mix)
        self._models = ModelRent(self._fleet, mix, before=self._models)
        self._groups = GroupRent(self._fleet, mix)
        self._levels = self._fleet.gpus // GRID
        self._update()
        self._asked = 1

    def scores(self, demand: Demand, nodes: IntArray) -> FloatArray:
        if self._asked % _UPDATE_EVERY == 0:
            self._update()
        self._asked += 1
        fleet = self._fleet
        lost, whole_after = self._value_taken(demand, nodes)
        cpu_after = fleet.cpu_free[nodes] - demand.cpu_milli
        usable_after = self._reach.usable_worth(self._worth[nodes] - lost, cpu_after, self._gpu_worth)
        cost = self._usable[nodes] - usable_after
        cost += self._models.rent[nodes] * lost
        cost += self._groups.price_losses(nodes, whole_after, cpu_after)
        cost += fleet.gpu_free[nodes] / self._full_gpu + fleet.cpu_free[nodes] / self._full_cpu
        return -cost

    def choose_gpus(self, demand: Demand, node: int) -> tuple[int, ...]:
        if not demand.is_share:
            return self._fleet.find_whole_gpus(node, demand.num_gpu)
        # By milli: a GPU with a part of a step more than the demand fits, although its level is below.
        fitting = np.flatnonzero(self._fleet.gpus[:, node] >= demand.gpu_milli)
        return (self.choose_gpu(demand, node, fitting.tolist()),)

    def choose_gpu(self, demand: Demand, node: int, gpus: Iterable[int]) -> int:
        """Of these GPUs of the node, the one where a share costs least; the fullest on ties."""
        levels, losses = self._levels[:, node], self._find_losses(demand)
        return min(gpus, key=lambda gpu: (losses[levels[gpu]], levels[gpu]))

    def on_place(self, demand: Demand, node: int, gpus: tuple[int, ...]) -> None:
        del demand, gpus
        self.refresh(np.array([node]))

    def refresh(self, nodes: IntArray) -> None:
        """Price these nodes again: the fleet changed there."""
        fleet = self._fleet
        self._levels[:, nodes] = fleet.gpus[:, nodes] // GRID
        self._worth[nodes] = self._shares.worth[self._levels[:, nodes]].sum(axis=0)
        self._usable[nodes] = self._reach.usable_worth(self._worth[nodes], fleet.cpu_free[nodes], self._gpu_worth)
        self._groups.refresh(nodes)

    @property
    def _gpu_worth(self) -> float:
        return float(self._shares.worth[LEVELS])

    def _value_taken(self, demand: Demand, nodes: IntArray) -> tuple[FloatArray | float, IntArray]:
        """Worth of the GPUs the demand would take on each node, and the whole GPUs left there."""
        whole = self._fleet.whole[nodes]
        if not demand.is_share:
            return self._gpu_worth * demand.num_gpu, whole - demand.num_gpu
        losses, levels = self._find_losses(demand), self._levels[:, nodes]
        lost = losses[levels].min(axis=0)
        # A demand that fits by less than a step takes the whole rest of its GPU.
        lost = np.where(np.isinf(lost), self._shares.worth[levels].max(axis=0), lost)
        return lost, whole - (lost >= losses[LEVELS])

    def _find_losses(self, demand: Demand) -> FloatArray:
        size = to_level(demand.gpu_milli)
        if size not in self._losses:
            self._losses[size] = self._shares.losses(size)
        return self._losses[size]

    def _update(self) -> None:
        fleet = self._fleet
        coming = float(fleet.gpu_free.sum()) + _OVERRUN * fleet.capacity
        self._shares.update(self._levels, coming)
        self._losses.clear()
        self._models.update()
        self._groups.update(coming)
        self._worth = self._shares.worth[self._levels].sum(axis=0)
        self._usable = self._reach.usable_worth(self._worth, fleet.cpu_free, self._gpu_worth)
