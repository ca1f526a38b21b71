"""The topology score of the GPUs a pod would get, 0..100, as a table over the masks of free GPUs.

    preference                    base       factors
    None                          50         affinity
    NVLinkOptimal, NVLinkRequired 50..100    bandwidth, latency, affinity
    SameNUMA                      50..90     the same
    SamePCIeSwitch                50..80     the same

    bandwidth  0..50  the ring through the GPUs, in proportion to the fastest such ring the fleet's shapes have
    latency    0..20  the worst path between two of the GPUs: NVLink 20, PIX 16, PXB 12, PHB 8, NODE 4, SYS 0
    affinity   0..10  islands left whole: 10 when no free island is broken, 0 when as many as possible are

The three add up to at most 80 and are scaled to the range of the preference: 50 + (top - 50) * sum / 80. Preference
None ignores links: 50 + affinity. A set with an unknown link gets no factor at all.

One GPU has no links, so only the islands that remain count: 50 + 50 * (1 - broken / most that can be broken).
An island (`kgwe.placement.gpuset.leftover`) is broken when all of it was free and some of it, not all, is taken; it
counts with its GPUs, so the loss of a large one costs more.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

import numpy as np

from kgwe.model.gpu.bandwidth import UNKNOWN_GB_PER_S
from kgwe.model.gpu.topology import Relation
from kgwe.placement.fleet.node import Preference
from kgwe.placement.gpuset import bitmask, gpu_tables

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from kgwe.model.gpu.topology import Wiring

_Number = TypeVar("_Number", np.int32, np.float64)

BASE: Final = 50.0
BANDWIDTH_POINTS: Final = 50.0
AFFINITY_POINTS: Final = 10.0
LATENCY_POINTS: Final[Mapping[Relation, float]] = {
    Relation.NVLINK: 20.0,
    Relation.PIX: 16.0,
    Relation.PXB: 12.0,
    Relation.PHB: 8.0,
    Relation.NODE: 4.0,
    Relation.SYS: 0.0,
}
#: the score of the best wiring under each preference
TOP: Final[Mapping[Preference, float]] = {
    Preference.NVLINK_OPTIMAL: 100.0,
    Preference.NVLINK_REQUIRED: 100.0,
    Preference.SAME_NUMA: 90.0,
    Preference.SAME_PCIE_SWITCH: 80.0,
}
_ALL_POINTS: Final = BANDWIDTH_POINTS + max(LATENCY_POINTS.values()) + AFFINITY_POINTS


@dataclass(frozen=True, slots=True)
class TopologyPoints:
    """Tables over the rows of `gpu_tables.ShapeTables`; rows without a set have no meaning."""

    points: NDArray[np.float64]
    """0..100."""
    broken: NDArray[np.int32]
    """GPUs in whole islands that the pod would break."""


def score_sets(
    tables: gpu_tables.ShapeTables, wirings: tuple[Wiring, ...], count: int, preference: Preference
) -> TopologyPoints:
    """The tables for pods that request `count` GPUs of shapes wired like this."""
    best = tables.best_sets(count, preference)
    broken = _apply_per_shape(tables, wirings, best, _count_broken, np.int32)
    worst = max(int(broken.max(initial=0)), 1)
    kept = 1 - broken / worst
    if count == 1:
        return TopologyPoints(BASE + (100 - BASE) * kept, broken)
    rate = tables.gb_per_s(count, preference).astype(np.float64)
    known = rate > UNKNOWN_GB_PER_S
    affinity = np.where(known, AFFINITY_POINTS * kept, 0.0)
    if preference is Preference.NONE:
        return TopologyPoints(BASE + affinity, broken)
    fastest = max(float(rate.max(initial=0.0)), 1.0)
    speed = np.where(known, BANDWIDTH_POINTS * rate / fastest, 0.0)
    latency = np.where(known, _apply_per_shape(tables, wirings, best, _score_latency, np.float64), 0.0)
    return TopologyPoints(BASE + (TOP[preference] - BASE) * (speed + latency + affinity) / _ALL_POINTS, broken)


def _apply_per_shape(
    tables: gpu_tables.ShapeTables,
    wirings: tuple[Wiring, ...],
    best: NDArray[np.uint16],
    rule: Callable[[Wiring, NDArray[np.int64]], NDArray[_Number]],
    kind: type[_Number],
) -> NDArray[_Number]:
    """Apply a rule to each shape, on (wiring, set for every free mask); 0 for shapes without tables."""
    out = np.zeros(len(best), kind)
    for wiring, mine in zip(wirings, tables.rows_of_shape, strict=True):
        if not gpu_tables.is_wide(wiring):
            out[mine] = rule(wiring, best[mine].astype(np.int64))
    return out


def _count_broken(wiring: Wiring, chosen: NDArray[np.int64]) -> NDArray[np.int32]:
    masks = np.arange(len(chosen), dtype=np.int64)
    whole = np.zeros(len(chosen), np.int32)
    for island in gpu_tables.find_islands(gpu_tables.read_links(wiring)):
        whole[masks & island == island] += island.bit_count()
    # Islands that the pod takes completely are used, not broken.
    lost: NDArray[np.int32] = whole - whole[masks ^ chosen] - whole[chosen]
    return lost


def _score_latency(wiring: Wiring, chosen: NDArray[np.int64]) -> NDArray[np.float64]:
    gpus = range(len(wiring.slots))
    points = np.zeros(len(chosen))
    near: list[int] = [0] * len(wiring.slots)
    # From the best class down: each set gets the points of the first class that covers all its paths.
    for relation, worth in LATENCY_POINTS.items():
        for a in gpus:
            near[a] |= bitmask.make_mask([b for b in gpus if b != a and wiring.relation(a, b) is relation])
        np.maximum(points, np.where(bitmask.find_cliques(near), worth, 0.0), out=points)
    return points[chosen]


def score_nearness(wiring: Wiring, gpus: int) -> float:
    """How near the GPUs of a mask are to each other, 50..100: the mean latency points of their pairs.

    100 for one GPU, 0 for none. Cheap, unlike the tables.
    """
    chosen = tuple(gpu for gpu in range(len(wiring.slots)) if gpus >> gpu & 1)
    if not chosen:
        return 0.0
    pairs = tuple(itertools.combinations(chosen, 2))
    if not pairs:
        return 100.0
    points = sum(LATENCY_POINTS.get(wiring.relation(a, b), 0.0) for a, b in pairs)
    return BASE + (100.0 - BASE) * points / (len(pairs) * max(LATENCY_POINTS.values()))
