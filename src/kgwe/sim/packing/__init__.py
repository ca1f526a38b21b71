"""Packing experiments: published policies and MixFit, replayed on the published traces.

Used by the simulator, the benchmarks and the command line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kgwe.placement.packing.mixfit import MixFit
from kgwe.sim.packing import baselines
from kgwe.sim.packing.fgd import Fgd

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kgwe.placement.packing.policy import PolicyFactory

#: by their names in the published results, and ours
POLICIES: Mapping[str, PolicyFactory] = {
    "Random": baselines.Random,
    "DotProd": baselines.DotProd,
    "GpuClustering": baselines.GpuClustering,
    "GpuPacking": baselines.GpuPacking,
    "BestFit": baselines.BestFit,
    "FGD": Fgd,
    "MixFit": MixFit,
}
