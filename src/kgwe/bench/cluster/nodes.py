"""The nodes of a cluster benchmark: plain nodes in leaves and spines, or those of a fleet model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kgwe.bench.cluster.load import run_concurrently
from kgwe.kube.api import resources
from kgwe.local.fleet import apply, models
from kgwe.model.simfleet import inventory
from kgwe.model.units import amounts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from kgwe.kube.api import core
    from kgwe.kube.client.client import KubeClient


LEAF_LABEL = "fabric.topograph.run/tier-0"
_SPINE_LABEL = "fabric.topograph.run/tier-1"
_LEAVES_PER_SPINE = 4


@dataclass(frozen=True, slots=True)
class NodeSet:
    count: int
    gpus_per_node: int = 8
    # Nodes per leaf.
    leaf: int = 16
    # A fleet model by name or path. Its nodes have their own labels and a GPUNode each.
    model: str | None = None

    def gpus(self) -> list[int]:
        """Return the number of GPUs of each node."""
        if self.model is None:
            return [self.gpus_per_node] * self.count
        nodes = inventory.expand_fleet(models.load(self.model), self.count)
        return [int(node.allocatable().get(amounts.GPU, 0)) for node in nodes]

    async def create(self, client: KubeClient, progress: Callable[[int, int], None]) -> None:
        """Create all nodes and call `progress(done, total)` from time to time. They need not be ready afterwards."""
        if self.model is not None:
            await apply.apply_fleet(client, models.load(self.model), self.count, wait=False, progress=progress)
        else:
            await run_concurrently(range(self.count), lambda index: self._create_plain(client, index))
            progress(self.count, self.count)

    async def _create_plain(self, client: KubeClient, index: int) -> None:
        name = f"node-{index:05d}"
        room = {"cpu": "128", "memory": "2048Gi", "pods": "110", amounts.GPU: str(self.gpus_per_node)}
        leaf = index // self.leaf
        labels = {
            "kubernetes.io/hostname": name,
            "type": "kwok",
            # Makes fault injection possible.
            inventory.FLEET_LABEL: "bench",
            LEAF_LABEL: f"leaf-{leaf:04d}",
            _SPINE_LABEL: f"spine-{leaf // _LEAVES_PER_SPINE:04d}",
        }
        meta = {"name": name, "annotations": {"kwok.x-k8s.io/node": "fake"}, "labels": labels}
        status = {"capacity": room, "allocatable": room}
        await client.create(resources.NODE, {"apiVersion": "v1", "kind": "Node", "metadata": meta, "status": status})


def read_gpu_count(node: core.Node) -> int:
    """Return the GPUs of a node that pods can use."""
    return int(node.status.allocatable.get(amounts.GPU, "0"))


def leaf_of(node: core.Node) -> str:
    """Return the leaf of a node. A node without a leaf label is its own leaf."""
    return node.metadata.labels.get(LEAF_LABEL, node.metadata.name)


def count_slots(gpus: Iterable[int], per_pod: int) -> int:
    """Return how many pods of one size fit on nodes with these GPUs."""
    return sum(each // per_pod for each in gpus)


def round_robin(gpus: Mapping[str, int], wanted: Iterable[int]) -> list[str | None]:
    """Return a node for each pod: the next one with room, round after round; None if no node has room."""
    free = dict(gpus)
    names = list(free)
    chosen: list[str | None] = []
    turn = 0
    for count in wanted:
        order = (names[(turn + step) % len(names)] for step in range(len(names)))
        node = next((name for name in order if free[name] >= count), None)
        chosen.append(node)
        if node is not None:
            free[node] -= count
            turn = names.index(node) + 1
    return chosen
