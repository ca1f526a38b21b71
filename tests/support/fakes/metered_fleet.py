"""A simulated fleet without a cluster: the real exporter application on real meters, with a clock that tests set."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from kgwe.hardware.dcgm import metrics
from kgwe.local.fleet import device_assignment, exporter, gpunodes, models
from kgwe.local.fleet.meter import NodeMeter
from kgwe.model.simfleet import inventory, usage

if TYPE_CHECKING:
    from collections.abc import Callable

    from kgwe.local.fleet.simulator import Simulator

NODES = {node.pool.name: node for node in inventory.expand_fleet(models.load("mixed"), 64)}
CONSTANT = "constant(util=0.8, mem=0.5, noise=0)"


class MeteredFleet:
    """Nodes of the mixed fleet. It has the part of the simulator that the exporter reads."""

    def __init__(self, *pools: str, now: Callable[[], float]) -> None:
        self.now = now
        self.down: set[str] = set()
        self._meters = {NODES[pool].name: NodeMeter(gpunodes.gpu_node(NODES[pool], "uid"), now()) for pool in pools}
        self._holders: dict[str, dict[tuple[int, int | None], device_assignment.Holder]] = {}

    @property
    def app(self) -> exporter.ExporterApp:
        return exporter.ExporterApp(cast("Simulator", self))

    def hold(self, node: str, unit: tuple[int, int | None], pod: str, profile: str = CONSTANT) -> None:
        """Give a GPU, a slice (its instance id) or a share (a negative number) to a pod."""
        owner = metrics.Owner("team", pod, "main")
        holder = device_assignment.Holder(owner, usage.parse_profile(profile), self.now() - 1000, 1)
        self._holders.setdefault(node, {})[unit] = holder
        self._meters[node].set_holders(self._holders[node])

    def release(self, node: str, unit: tuple[int, int | None]) -> None:
        del self._holders[node][unit]
        self._meters[node].set_holders(dict(self._holders[node]))

    # --- the part of the simulator ----------------------------------------------------------------------

    def node_names(self) -> list[str]:
        return sorted(self._meters)

    def node_labels(self, name: str) -> dict[str, str]:
        return {"kubernetes.io/hostname": name}

    def is_responding(self, name: str) -> bool:
        return name in self._meters and name not in self.down

    def rows(self, names: list[str]) -> list[metrics.Row]:
        return [row for name in names if self.is_responding(name) for row in self._meters[name].rows(self.now())]
