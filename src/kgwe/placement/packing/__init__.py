"""Online packing of GPU shares: pods arrive one by one, nothing moves, nothing is refused that fits.

`fleet` is the state (flat arrays, one column per node), `policy` the Protocol every rule follows, and each rule is a
module of its own: the five published baselines, FGD, and our MixFit. `limit` says how full a fleet can get at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kgwe.placement.packing.mixfit import MixFit
from kgwe.sim.packing import baselines
from kgwe.sim.packing.fgd import Fgd

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kgwe.placement.packing.policy import PolicyFactory

#: by the names the published results use, and ours
POLICIES: Mapping[str, PolicyFactory] = {
    "Random": baselines.Random,
    "DotProd": baselines.DotProd,
    "GpuClustering": baselines.GpuClustering,
    "GpuPacking": baselines.GpuPacking,
    "BestFit": baselines.BestFit,
    "FGD": Fgd,
    "MixFit": MixFit,
}
