"""The worth of a set of free GPUs to later workloads.

Of two ways to serve a request equally well, the better one leaves more behind. Two things count, in this order:

1. *Intact islands*: groups of GPUs that are connected (by links of one class or better, on one NUMA node, or below one
   PCIe switch) and all free; each counts with its number of GPUs. So a single GPU is taken from an island that is
   already broken if there is one, and a small island is broken before a large one.
2. *Packings*: the bandwidth that the set still offers to jobs of 2, 4, 8 and 16 GPUs, if as many jobs as fit are packed
   into it as well as possible: the sum over the jobs of GPUs times bandwidth of the best ring.

Unknown links are worth nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from kgwe.placement.gpuset import bitmask

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

#: usual numbers of GPUs of a job
JOB_SIZES: Final = (2, 4, 8, 16)

# Above every packing: 16 GPUs at 10 TB/s in MB/s, for each of the job sizes.
_ISLAND: Final = 1 << 40


def value_sets(ring: NDArray[np.int64], islands: Iterable[int]) -> NDArray[np.int64]:
    """The worth of every set of GPUs; only the order matters.

    `ring` is the bandwidth of every set in MB/s, `islands` the masks of connected GPUs.
    """
    masks = np.arange(len(ring), dtype=np.int64)
    total = np.zeros(len(ring), np.int64)
    for island in islands:
        total[masks & island == island] += island.bit_count() * _ISLAND
    gpus = len(ring).bit_length() - 1
    for size in JOB_SIZES:
        if size <= gpus:
            total += value_packings(ring, size)
    return total


def value_packings(ring: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """For every set, the largest sum over disjoint jobs of `size` GPUs inside it, each GPUs times bandwidth.

    The lowest GPU of a set is either unused or in one of the jobs, so sets are computed in descending order of their
    lowest GPU.
    """
    n = len(ring).bit_length() - 1
    best = np.zeros(len(ring), np.int64)
    for low in reversed(range(n)):
        above = np.arange(1 << n - low - 1, dtype=np.int64) << low + 1
        best[above | 1 << low] = best[above]
        for others, left in bitmask.iter_splits(range(low + 1, n), size - 1):
            job = others | 1 << low
            whole = left | job
            best[whole] = np.maximum(best[whole], size * ring[job] + best[left])
    return best


def find_islands(pairs: Sequence[Sequence[int]], groups: Iterable[int]) -> frozenset[int]:
    """Masks of connected GPUs: joined by pairs of one bandwidth or better, or in one of the given groups."""
    n = len(pairs)
    found = {group for group in groups if group.bit_count() > 1}
    for least in {pairs[a][b] for a in range(n) for b in range(a)} - {0}:
        near = [bitmask.make_mask([b for b in range(n) if b != a and pairs[a][b] >= least]) for a in range(n)]
        found |= {part for part in bitmask.find_components(near) if part.bit_count() > 1}
    return frozenset(found)
