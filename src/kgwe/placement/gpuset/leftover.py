"""What a set of free GPUs is worth to work that comes later.

Of two ways to serve a request equally well, the better one leaves more behind. Two things count, in this order:

1. *Intact islands*: groups of GPUs that belong together (joined by links of one class or better, on one NUMA
   node, below one PCIe switch) and are all still free, each counted with its GPUs. So a single GPU is taken
   from an island that is already broken as long as there is one, and a small island is broken before a large one.
2. *Packings*: how much bandwidth the set still offers to jobs of 2, of 4, of 8 and of 16 GPUs, if as many as
   fit are packed into it as well as possible: sum over the jobs of GPUs times bandwidth of the best ring.

Links that are not known are worth nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from kgwe.placement.gpuset import bitmask

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

#: sizes jobs come in
JOB_SIZES: Final = (2, 4, 8, 16)

# Above every packing: 16 GPUs at 10 TB/s in MB/s, for each of the job sizes.
_ISLAND: Final = 1 << 40


def value_sets(ring: NDArray[np.int64], islands: Iterable[int]) -> NDArray[np.int64]:
    """For every set of GPUs, what it is worth; only the order matters.

    `ring` is the bandwidth of every set in MB/s, `islands` the masks of GPUs that belong together.
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
    """For every set, the most that disjoint jobs of `size` GPUs inside it add up to, each GPUs times bandwidth.

    The lowest GPU of a set is either left out or in one of the jobs: sets are worked through from the highest
    lowest GPU down.
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
    """GPUs that belong together: joined by pairs of one bandwidth or better, or in one of the given groups."""
    n = len(pairs)
    found = {group for group in groups if group.bit_count() > 1}
    for least in {pairs[a][b] for a in range(n) for b in range(a)} - {0}:
        near = [bitmask.make_mask([b for b in range(n) if b != a and pairs[a][b] >= least]) for a in range(n)]
        found |= {part for part in bitmask.find_components(near) if part.bit_count() > 1}
    return frozenset(found)
