"""The objects that the informers of the MIG controller hold."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kgwe.apps.mig.claims import Claims

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kgwe.kube.api import core
    from kgwe.kube.api.kgwe.gpunode import GPUNode
    from kgwe.kube.api.kgwe.gpuworkload import GPUWorkload
    from kgwe.kube.api.kgwe.migstrategy import MIGStrategy


@dataclass(frozen=True)
class Stores:
    """The objects of all informers, by key."""

    strategies: Mapping[str, MIGStrategy]
    nodes: Mapping[str, core.Node]
    gpu_nodes: Mapping[str, GPUNode]
    pods: Mapping[str, core.Pod]
    workloads: Mapping[str, GPUWorkload]
    claims: Claims = field(default_factory=Claims)

    def copy(self, gpu_nodes: Mapping[str, GPUNode]) -> Stores:
        """Return a copy that does not change, with these GPUNodes."""
        return Stores(
            dict(self.strategies),
            dict(self.nodes),
            dict(gpu_nodes),
            dict(self.pods),
            dict(self.workloads),
            self.claims.copy(),
        )
