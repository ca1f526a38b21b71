"""GB/s between GPUs: of a pair by the class of its link, and of a set by its best ring.

Two ways of counting are in use, and both are here, never mixed:

- *data sheet*: both directions together, at line rate. An H100 behind NVSwitch has 900 GB/s, and that is the
  GPU's, not the pair's: it never gets more, whatever its peer. `spec.minBandwidthGBps` is in this one.
- *bus*: one direction, as nccl-tests print busbw. What a ring all-reduce really reaches: 371 for the same GPU.

A set of GPUs is as fast as the worst link of its best ring. A ring uses every GPU once in each direction, so
behind an NVSwitch a ring of eight runs at the same 900 as a ring of two; nothing is multiplied by pairs.
One GPU has no link to wait for: its ring is infinitely fast.

`UNKNOWN_GB_PER_S` stands where the path between two GPUs is not known. It is smaller than every real figure, so
it satisfies no limit and wins no comparison, and no real figure equals it.

Calibration (GB/s, bus). The measured figures are nccl-tests all_reduce averages over 1-8 GB messages and
p2pBandwidthLatencyTest, as published in NVIDIA/nccl and nccl-tests issues and in cluster reports:

    path                        measured        ours
    4 NVLinks 3 of an A40       47.5            45      14.06 GB/s a link
    12 NVLinks 3, NVSwitch A100 222; 230        240     nccl-tests#149: "240 effective, about 230 reached"
    18 NVLinks 4, NVSwitch H100 376             371     nccl#1264; 370 by nccl-tests#212
    NODE, 2 A40 over the host   3.9             3.9
    SYS, 4 A40 over the host    1.4             1.4
    host path, 4 A100           5.2             5.2     taken for PHB
    12 NVLinks 4, H100 bridge   116             247     nccl-tests#194, an open complaint: not followed

What NVLink reaches of its line rate is what NCCL itself counts with (src/graph/topo.h: 20 GB/s a link for Volta
and Ampere, 20.6 Hopper, 40.1 Blackwell). PIX is NCCL's figure for a PCIe 3 x16 slot, 12, in proportion to the
slot where that is known; PXB is set a sixth lower, for the link between switches is shared. Paths over the host
are what was measured with peer-to-peer off, the worst case: whether it is on, no tool's table says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from kgwe import errors
from kgwe.model.gpu.catalog import NVLINK_GB_PER_S
from kgwe.model.gpu.topology import Relation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from numpy.typing import NDArray

    from kgwe.model.gpu.topology import Wiring

UNKNOWN_GB_PER_S: Final = 0.0

#: a table over all sets of GPUs has 2**16 rows
MAX_TABLED_GPUS: Final = 16

#: GB/s of one NVLink, one direction, as NCCL counts with
NVLINK_BUS_GB_PER_S: Final[Mapping[int, float]] = {2: 20.0, 3: 20.0, 4: 20.6, 5: 40.1}

#: GB/s of the paths without NVLink, one direction
PATH_BUS_GB_PER_S: Final[Mapping[Relation, float]] = {
    Relation.PIX: 12.0,
    Relation.PXB: 10.0,
    Relation.PHB: 5.2,
    Relation.NODE: 3.9,
    Relation.SYS: 1.4,
    Relation.UNKNOWN: UNKNOWN_GB_PER_S,
}

# Paths that never leave PCIe are as fast as the slots; the figures above are for a PCIe 3 x16 slot.
_SLOT_BOUND: Final = frozenset({Relation.PIX, Relation.PXB})
_PCIE3_X16_GB_PER_S: Final = 15.75

_BITS_PER_BYTE: Final = 8


# --- pairs ----------------------------------------------------------------------------------------------


def link_gb_per_s(wiring: Wiring) -> float:
    """Line rate of one NVLink in one direction; for an unknown generation, that of the slowest."""
    return wiring.link_gb_per_s or float(NVLINK_GB_PER_S.get(wiring.nvlink_version, min(NVLINK_GB_PER_S.values())))


def pair_gb_per_s(wiring: Wiring, a: int, b: int) -> float:
    """Between two GPUs that have each other to themselves; data-sheet figures, both directions."""
    if links := wiring.nvlinks(a, b):
        return 2 * links * link_gb_per_s(wiring)
    return 2 * _path_bus_gb_per_s(wiring, a, b)


def pair_bus_gb_per_s(wiring: Wiring, a: int, b: int) -> float:
    """Between two GPUs, one direction, as nccl-tests would measure it."""
    if links := wiring.nvlinks(a, b):
        return links * link_gb_per_s(wiring) * _nvlink_yield(wiring.nvlink_version)
    return _path_bus_gb_per_s(wiring, a, b)


def _nvlink_yield(version: int) -> float:
    """Part of the line rate that arrives."""
    if version in NVLINK_BUS_GB_PER_S:
        return NVLINK_BUS_GB_PER_S[version] / NVLINK_GB_PER_S[version]
    return min(NVLINK_BUS_GB_PER_S[v] / NVLINK_GB_PER_S[v] for v in NVLINK_BUS_GB_PER_S)


def _path_bus_gb_per_s(wiring: Wiring, a: int, b: int) -> float:
    relation = wiring.pcie_relation(a, b)
    rate = PATH_BUS_GB_PER_S[relation]
    if relation in _SLOT_BOUND and wiring.pcie_gb_per_s:
        return rate * wiring.pcie_gb_per_s / _PCIE3_X16_GB_PER_S
    return rate


def build_matrix(
    wiring: Wiring, pair: Callable[[Wiring, int, int], float] = pair_gb_per_s, gpus: Iterable[int] | None = None
) -> NDArray[np.float64]:
    """GB/s of every pair of the GPUs (all of them when left out); the diagonal is infinite."""
    chosen = list(range(len(wiring.slots))) if gpus is None else list(gpus)
    out = np.full((len(chosen), len(chosen)), np.inf)
    for i, a in enumerate(chosen):
        for j in range(i):
            out[i, j] = out[j, i] = pair(wiring, a, chosen[j])
    return out


# --- sets -----------------------------------------------------------------------------------------------


def set_gb_per_s(wiring: Wiring, gpus: Iterable[int]) -> float:
    """Of a set of GPUs: its best ring, data-sheet figures."""
    return _find_best_ring(wiring, gpus, pair_gb_per_s)


def set_bus_gb_per_s(wiring: Wiring, gpus: Iterable[int]) -> float:
    """Of a set of GPUs: its best ring, one direction, as nccl-tests would measure it."""
    return _find_best_ring(wiring, gpus, pair_bus_gb_per_s)


def _find_best_ring(wiring: Wiring, gpus: Iterable[int], pair: Callable[[Wiring, int, int], float]) -> float:
    chosen = sorted(set(gpus))
    if not chosen or not 0 <= chosen[0] <= chosen[-1] < len(wiring.slots):
        raise errors.Permanent(f"GPUs {chosen} of a machine with {len(wiring.slots)} GPUs")
    return float(build_ring_table(build_matrix(wiring, pair, chosen))[-1])


def build_ring_table(weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """For every set of GPUs, as a bit mask, the weight of the worst link of its best ring.

    `weights` is symmetric, its diagonal is not read. Held and Karp's recurrence with the smallest link in place
    of the sum: the best path from the lowest GPU of a set through all of it to GPU v ends with a step u -> v
    after the best path through the others to u. Weights are replaced by their ranks, so that the table has one
    byte per entry. 16 GPUs: 65,536 sets, a third of a second.
    """
    n = len(weights)
    if n > MAX_TABLED_GPUS:
        raise errors.Permanent(f"{n} GPUs in one node: sets are tabled for at most {MAX_TABLED_GPUS}")
    values = np.unique(weights[~np.eye(n, dtype=bool)])
    rank = (np.searchsorted(values, weights) + 1).astype(np.uint8)
    np.fill_diagonal(rank, 0)

    masks = np.arange(1 << n, dtype=np.int64)
    sizes = np.bitwise_count(masks)
    path = np.zeros((1 << n, n), dtype=np.uint8)
    path[1 << np.arange(n), np.arange(n)] = _NO_LINK_YET
    for size in range(2, n + 1):
        layer = masks[sizes == size]
        for v in range(1, n):
            # v ends the path, so it is in the set and not its lowest GPU.
            ends = layer[(layer >> v & 1 == 1) & (layer & (1 << v) - 1 != 0)]
            path[ends, v] = np.minimum(path[ends ^ (1 << v)], rank[v]).max(axis=1)

    table = np.zeros(1 << n)
    many = masks[sizes > 1]
    lowest = np.bitwise_count((many & -many) - 1)
    if len(many):
        table[many] = values[np.minimum(path[many], rank[lowest]).max(axis=1) - 1]
    table[masks[sizes == 1]] = np.inf
    return table


_NO_LINK_YET: Final = 255


# --- NICs --------------------------------------------------------------------------------------

_NEAREST_FIRST: Final = (Relation.PIX, Relation.PXB, Relation.PHB, Relation.NODE, Relation.SYS)


def find_nearest_nics(wiring: Wiring, gpu: int) -> tuple[int, ...]:
    """The NICs nearest to a GPU, all of the same distance; none when no distance is known."""
    relations = [wiring.nic_relation(nic, gpu) for nic in range(len(wiring.nics))]
    for relation in _NEAREST_FIRST:
        if found := tuple(nic for nic, seen in enumerate(relations) if seen is relation):
            return found
    return ()


def network_gb_per_s(wiring: Wiring, gpus: Iterable[int]) -> float:
    """What the GPUs can send beyond the node, one direction at line rate: their nearest NICs together.

    A NIC counts once however many GPUs share it. 0 when a rate or a distance is not known.
    """
    used = {nic for gpu in gpus for nic in find_nearest_nics(wiring, gpu)}
    rates = [wiring.nics[nic].gbit_per_s for nic in used]
    return sum(rates) / _BITS_PER_BYTE if rates and all(rates) else UNKNOWN_GB_PER_S
