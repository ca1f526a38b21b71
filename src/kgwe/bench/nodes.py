"""The nodes a cluster benchmark fills: those of a fleet model, or plain ones that differ in nothing but their name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kgwe.bench.load import spread
from kgwe.kube import resources
from kgwe.local import fleet, models
from kgwe.model import amounts, inventory

if TYPE_CHECKING:
    from collections.abc import Callable

    from kgwe.kube.api import core
    from kgwe.kube.client import KubeClient


@dataclass(frozen=True, slots=True)
class NodeSet:
    count: int
    # A fleet model by name or path; its nodes come with labels and a GPUNode each.
    model: str
    # Plain nodes with that many GPUs instead of the model's.
    plain_gpus: int | None = None

    def gpus(self) -> list[int]:
        """How many GPUs each node will offer."""
        if self.plain_gpus is not None:
            return [self.plain_gpus] * self.count
        nodes = inventory.expand(models.load(self.model), self.count)
        return [int(node.allocatable().get(amounts.GPU, 0)) for node in nodes]

    async def create(self, client: KubeClient, progress: Callable[[int, int], None]) -> None:
        """Create them all; `progress(done, total)` is told now and then. They need not be ready afterwards."""
        if self.plain_gpus is None:
            await fleet.apply_fleet(client, models.load(self.model), self.count, wait=False, progress=progress)
        else:
            await spread(range(self.count), lambda index: self._create_plain(client, index))
            progress(self.count, self.count)

    async def _create_plain(self, client: KubeClient, index: int) -> None:
        name = f"node-{index:05d}"
        room = {"cpu": "128", "memory": "2048Gi", "pods": "110", amounts.GPU: str(self.plain_gpus)}
        meta = {
            "name": name,
            "annotations": {"kwok.x-k8s.io/node": "fake"},
            "labels": {"kubernetes.io/hostname": name, "type": "kwok"},
        }
        status = {"capacity": room, "allocatable": room}
        await client.create(resources.NODE, {"apiVersion": "v1", "kind": "Node", "metadata": meta, "status": status})


def offered(node: core.Node) -> int:
    """GPUs that pods can be given on a node."""
    return int(node.status.allocatable.get(amounts.GPU, "0"))


def slots(gpus: list[int], per_pod: int) -> int:
    """How many pods of one size fit on nodes with so many GPUs."""
    return sum(each // per_pod for each in gpus)


def round_robin(gpus: dict[str, int], per_pod: int, count: int) -> list[str]:
    """A node for each of `count` pods: one more on every node that has room, round after round."""
    chosen: list[str] = []
    left = {name: each // per_pod for name, each in gpus.items()}
    while len(chosen) < count and (left := {name: each for name, each in left.items() if each}):
        chosen += left
        left = {name: each - 1 for name, each in left.items()}
    return chosen[:count]
