"""The engine's rules as a plain loop over nodes: the baseline for speed, and a check of the engine.

It is written independently of the engine, on Python numbers, from the documented rules. Only the best GPU set for a
mask comes from the shared tables; without them the loop would be slower.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from kgwe.placement.fleet.node import GPU_MILLI, Preference
from kgwe.placement.gpuset import gpu_tables
from kgwe.placement.gpuset.topology_score import LATENCY_POINTS, TOP

if TYPE_CHECKING:
    from kgwe.model.gpu.topology import Wiring
    from kgwe.placement.fleet.node import Node, Request, Shape
    from kgwe.placement.fleet.snapshot import Snapshot

_GB_IN_MIB = 1e9 / 2**20


class Loop:
    """Finds the node with the best score by the default weights, by scoring each node."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._free: list[int] = snapshot.free.tolist()
        self._cpu: list[int] = snapshot.cpu_milli.tolist()
        self._memory: list[int] = snapshot.memory_bytes.tolist()
        self._pods: list[int] = snapshot.pods.tolist()
        self._milli: list[list[int]] = snapshot.milli.tolist()
        self._mib: list[list[int]] = snapshot.share_mib.tolist()
        self._limits: dict[tuple[int, Preference], tuple[int, float]] = {}
        self._islands = {
            id(shape): gpu_tables.find_islands(gpu_tables.read_links(shape.wiring)) for shape in snapshot.shapes
        }

    def refresh(self, node: int) -> None:
        """Update the copy of a node after a booking."""
        snapshot = self._snapshot
        self._free[node] = int(snapshot.free[node])
        self._cpu[node] = int(snapshot.cpu_milli[node])
        self._memory[node] = int(snapshot.memory_bytes[node])
        self._pods[node] = int(snapshot.pods[node])
        self._milli[node] = snapshot.milli[node].tolist()
        self._mib[node] = snapshot.share_mib[node].tolist()

    def prepare(self, request: Request) -> None:
        """Compute the reference values for the score of a request."""
        gpus = request.gpus
        key = (gpus.count or 1, request.preference)
        if (gpus.count or gpus.milli) and key not in self._limits:
            most, fastest = 1, 1.0
            for shape in self._snapshot.shapes:
                table = gpu_tables.build_table(shape.wiring, request.preference)
                sets, rates = table.best_sets(key[0]).tolist(), table.gb_per_s(key[0]).tolist()
                most = max(most, *(self._count_broken(shape, mask, taken) for mask, taken in enumerate(sets)))
                fastest = max(fastest, *rates)
            self._limits[key] = (most, fastest)

    def decide(self, request: Request) -> int | None:
        """Return the first of the best nodes; None if the pod fits on no node."""
        self.prepare(request)
        best, best_rank = None, -1.0
        for number, node in enumerate(self._snapshot.nodes):
            if self._fits(request, number, node):
                rank = self._rank(request, number, node)
                if rank > best_rank:
                    best, best_rank = number, rank
        return best

    # --- rules ------------------------------------------------------------------------------------------

    def _fits(self, request: Request, number: int, node: Node) -> bool:
        return (
            node.ready
            and self._pods[number] >= 1
            and self._cpu[number] >= request.cpu_milli
            and self._memory[number] >= request.memory_bytes
            and self._has_cards(request, number, node)
            and _matches_model(request, node.shape)
            and _tolerates(request, node)
        )

    def _has_cards(self, request: Request, number: int, node: Node) -> bool:
        gpus = request.gpus
        if gpus.count:
            if self._free[number].bit_count() < gpus.count:
                return False
            table = gpu_tables.build_table(node.shape.wiring, request.preference)
            return table.choose(self._free[number], gpus.count, request.min_bandwidth_gbps) is not None
        if gpus.milli:
            pairs = zip(self._milli[number], self._mib[number], strict=True)
            return any(milli >= gpus.milli and mib >= gpus.share_mib for milli, mib in pairs)
        if gpus.slices:
            return self._slices(number, gpus.profile) >= gpus.slices
        return True

    def _slices(self, number: int, profile: str) -> int:
        free = self._snapshot.free_slices
        cut = self._snapshot.nodes[number].cut
        return sum(each.profile.name == profile for card in cut for each in free.get((number, card), ()))

    def _rank(self, request: Request, number: int, node: Node) -> float:
        cpu = (self._cpu[number] - request.cpu_milli) / max(node.cpu_milli, 1)
        memory = (self._memory[number] - request.memory_bytes) / max(node.memory_bytes, 1)
        cards = (node.shape.all_gpus & node.healthy).bit_count()
        gpu = (
            (self._count_leftover(number, node) - self._count_wanted(request, node)) / (cards * GPU_MILLI)
            if cards
            else 0.0
        )
        gpus = request.gpus
        filled = gpu if gpus.count or gpus.milli or gpus.slices else (cpu + memory) / 2
        balance = 100 * (1 - max(gpu - min(cpu, memory), 0.0))
        points, broken = self._topology(request, number, node)
        score = 0.4 * points + 0.35 * (100 * (1 - filled)) + 0.25 * balance
        return score + 1000 if (gpus.count == 1 or gpus.milli) and not broken else score

    def _count_leftover(self, number: int, node: Node) -> float:
        left: float = sum(self._milli[number])
        if node.cut and node.shape.geometry is not None:
            units = node.shape.geometry.units
            for profile in self._snapshot.slices:
                if count := self._slices(number, profile):
                    left += count * (GPU_MILLI * node.shape.geometry.profile(profile).units / units)
        return left

    @staticmethod
    def _count_wanted(request: Request, node: Node) -> float:
        gpus, geometry = request.gpus, node.shape.geometry
        if gpus.slices and geometry is not None:
            return gpus.slices * (GPU_MILLI * geometry.profile(gpus.profile).units / geometry.units)
        return gpus.count * GPU_MILLI + gpus.milli

    def _topology(self, request: Request, number: int, node: Node) -> tuple[float, int]:
        gpus, shape = request.gpus, node.shape
        if not gpus.count and not gpus.milli:
            return 50.0, 0
        if gpus.milli and any(
            gpus.milli <= milli < GPU_MILLI and mib >= gpus.share_mib
            for milli, mib in zip(self._milli[number], self._mib[number], strict=True)
        ):
            return 100.0, 0
        count = gpus.count or 1
        choice = gpu_tables.build_table(shape.wiring, request.preference).choose(self._free[number], count)
        if choice is None:
            return 0.0, 0
        most, fastest = self._limits[count, request.preference]
        broken = self._count_broken(shape, self._free[number], choice.mask)
        kept = 1 - broken / most
        if count == 1:
            return 50 + 50 * kept, broken
        if not choice.gb_per_s:
            return 50.0, broken
        if request.preference is Preference.NONE:
            return 50 + 10 * kept, broken
        points = 50 * choice.gb_per_s / fastest + _latency(shape.wiring, choice.gpus) + 10 * kept
        return 50 + (TOP[request.preference] - 50) * points / 80, broken

    def _count_broken(self, shape: Shape, free: int, taken: int) -> int:
        return sum(
            island.bit_count()
            for island in self._islands[id(shape)]
            if island & free == island and island & taken and island & ~taken
        )


def _latency(wiring: Wiring, cards: tuple[int, ...]) -> float:
    return min(LATENCY_POINTS.get(wiring.relation(a, b), 0.0) for a, b in itertools.combinations(cards, 2))


def _matches_model(request: Request, shape: Shape) -> bool:
    if (shape.memory_mib or 0) < request.min_memory_gb * _GB_IN_MIB:
        return False
    if request.architecture and request.architecture.lower() != (shape.architecture or "").lower():
        return False
    return _list_labels(request.model) <= _list_labels(shape.model)


def _list_labels(text: str) -> set[str]:
    return set(text.upper().replace("-", " ").replace("_", " ").split())


def _tolerates(request: Request, node: Node) -> bool:
    limits = request.constraints
    for taint in node.taints:
        is_hard = taint.effect in {"NoSchedule", "NoExecute"}
        if is_hard and not any(each.tolerates(taint) for each in limits.tolerations):
            return False
    if any(node.labels.get(key) != value for key, value in limits.selector) or node.name in limits.avoid:
        return False
    return limits.affinity is None or any(
        term and all(line.matches(node.name, node.labels) for line in term) for term in limits.affinity
    )
