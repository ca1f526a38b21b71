"""Sets of GPUs as bit masks: GPU i is bit i, and a table over all sets of n GPUs is an array of 2**n."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray


def list_gpus(mask: int) -> tuple[int, ...]:
    """The GPUs of a set, ascending."""
    return tuple(gpu for gpu in range(mask.bit_length()) if mask >> gpu & 1)


def make_mask(gpus: Sequence[int]) -> int:
    """The mask of these GPUs."""
    mask = 0
    for gpu in gpus:
        mask |= 1 << gpu
    return mask


def take_lowest(mask: int, count: int) -> int:
    """The `count` GPUs of a set with the lowest numbers."""
    return make_mask(list_gpus(mask)[:count])


def iter_splits(gpus: Sequence[int], size: int) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Every set of `size` of the GPUs, each with all sets of the other GPUs (none of them included).

    The sets of the others grow GPU by GPU on the way down, so all of them together cost little more than the
    last step: 3**n pairs, not 4**n.
    """
    if size <= len(gpus):
        yield from _iter_splits_from(gpus, 0, size, 0, np.zeros(1, np.int64))


def _iter_splits_from(
    gpus: Sequence[int], at: int, size: int, chosen: int, others: NDArray[np.int64]
) -> Iterator[tuple[int, NDArray[np.int64]]]:
    if at == len(gpus):
        yield chosen, others
        return
    bit = 1 << gpus[at]
    if size:
        yield from _iter_splits_from(gpus, at + 1, size - 1, chosen | bit, others)
    if len(gpus) - at > size:
        yield from _iter_splits_from(gpus, at + 1, size, chosen, np.concatenate((others, others | bit)))


def find_cliques(neighbours: Sequence[int]) -> NDArray[np.bool_]:
    """For every set, whether all its GPUs are neighbours of each other; true for one GPU alone.

    `neighbours[i]` is the mask of GPU i's neighbours.
    """
    n = len(neighbours)
    table = np.ones(1 << n, np.bool_)
    for gpu in reversed(range(n)):
        rest = np.arange(1 << n - gpu - 1, dtype=np.int64) << gpu + 1
        table[rest | 1 << gpu] = table[rest] & (rest & ~neighbours[gpu] == 0)
    return table


def find_components(neighbours: Sequence[int]) -> list[int]:
    """Masks of the connected components."""
    left = (1 << len(neighbours)) - 1
    found = []
    while left:
        part, edge = 0, left & -left
        while edge:
            part |= edge
            reached = 0
            for gpu in list_gpus(edge):
                reached |= neighbours[gpu]
            edge = reached & ~part
        found.append(part)
        left &= ~part
    return found


def mirror_masks(n: int) -> NDArray[np.int64]:
    """Every mask with its bits reversed: of two sets of one size, the larger has the lower first GPU."""
    masks = np.arange(1 << n, dtype=np.int64)
    out = np.zeros(1 << n, np.int64)
    for gpu in range(n):
        out |= (masks >> gpu & 1) << n - 1 - gpu
    return out
