"""A simulation of the queue over a grid of times, for all samples of run times at once.

    GPU of a node free from …       sorted: the c-th is when c GPUs are free there
    pods that fit until …           counted over the grid, per group of nodes
    first time that all fit         one comparison, for all samples together

Workloads do not overtake within a group of nodes: once one starts in a group, the group is open to those behind it. So
room in a group only grows from then on, and one more workload ahead never makes a later one start earlier there.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from kgwe.placement.queue.workloads import remaining_s

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from kgwe.placement.gang.levels import LevelTable
    from kgwe.placement.queue.workloads import QueuedWorkload

    Floats = NDArray[np.float32]

SAMPLES: Final = 20
_TIMES: Final = 64
#: the first time of the grid after now, and the last: estimates are rounded up to the next, a seventh later at most
FIRST_S: Final = 60.0
HORIZON_S: Final = 7 * 86400.0
_P50: Final = math.ceil(0.5 * SAMPLES) - 1
_P90: Final = math.ceil(0.9 * SAMPLES) - 1
_GOLDEN: Final = 0x9E3779B97F4A7C15


@dataclass(frozen=True, slots=True)
class Eta:
    """Start times; None: not known, or beyond the horizon."""

    p50_s: float | None
    p90_s: float | None


NOT_KNOWN: Final = Eta(None, None)


class Kind(NamedTuple):
    """Pods that are counted alike."""

    gpus: int
    one_per_node: bool
    #: which nodes could hold one, as bytes
    nodes: bytes


class Need(NamedTuple):
    kind: Kind
    pods: int
    level: str


class Playout:
    """The state of the simulated queue, for all samples."""

    def __init__(self, table: LevelTable, group_level: int, gpus_free: Floats, kinds: Sequence[Kind]) -> None:
        """`gpus_free`: sample, node, GPU -> seconds until it is free, sorted along the GPUs."""
        self._table = table
        self._group_level = group_level
        self._gpus_per_node = gpus_free.shape[2]
        level = table.levels[group_level]
        self._groups = len(level)
        self._group = np.zeros(len(table.node), np.int64)
        self._group[table.node] = np.repeat(np.arange(len(level)), np.diff(level.starts))
        self._grid = np.append(0.0, np.geomspace(FIRST_S, HORIZON_S, _TIMES - 1)).astype(np.float32)
        self._times = np.arange(_TIMES)
        self._number = {kind: number for number, kind in enumerate(kinds)}
        self._able = [np.frombuffer(kind.nodes, np.bool_) for kind in kinds]
        free_at = np.searchsorted(self._grid, gpus_free.ravel()).reshape(gpus_free.shape)
        # Kind, sample, time, group -> pods of it that fit; none before those ahead have started there.
        self._fits = np.zeros((len(kinds), SAMPLES, _TIMES, self._groups), np.float32)
        for number, kind in enumerate(kinds):
            self._fits[number] = self._count_fits(kind, free_at)
        # Kind, kind -> pods of the second that a pod of the first takes the place of.
        self._parts = np.array(
            [[self._count_partial(one, other) for other in kinds] for one in kinds], np.float32
        ).reshape(len(kinds), len(kinds))
        self._possible: dict[Need, bool] = {}
        self._levels: dict[str, tuple[NDArray[np.int64], NDArray[np.int64]]] = {}
        # Kind and level -> the last one's pods, and when it began in the first sample to have it.
        self._last: dict[tuple[Kind, str], tuple[int, int]] = {}

    def _count_fits(self, kind: Kind, free_at: NDArray[np.intp]) -> NDArray[np.int64]:
        able, groups = self._able[self._number[kind]], self._groups
        bins = free_at[:, able, kind.gpus - 1 :: kind.gpus]
        if kind.one_per_node:
            bins = bins[:, :, :1]
        row = np.arange(SAMPLES)[:, None, None] * (_TIMES + 1) + bins
        cell = (row * groups + self._group[able][None, :, None]).ravel()
        counts = np.bincount(cell, minlength=SAMPLES * (_TIMES + 1) * groups)
        return counts.reshape(SAMPLES, _TIMES + 1, groups)[:, :_TIMES].cumsum(axis=1)

    def _count_partial(self, taken: Kind, of: Kind) -> float:
        ours, theirs = self._able[self._number[taken]], self._able[self._number[of]]
        common = int((ours & theirs).sum()) / max(int(ours.sum()), 1)
        return 1.0 if taken == of else common * taken.gpus / of.gpus

    def start_workload(self, need: Need, lasts_s: Floats, now_s: float) -> Eta:
        """Start the workload as early as possible; it then holds its GPUs for its run time."""
        if not self._is_possible(need):
            return NOT_KNOWN
        begins = self._find_start_times(need)
        never, at = begins == _TIMES, np.minimum(begins, _TIMES - 1)
        room = self._fits[self._number[need.kind]][np.arange(SAMPLES), at]
        starts, domain_of = self._domains(need.level)
        # Where it never fits it waits, and others behind it, in the domain that comes nearest.
        inside = domain_of == _sum_per_domain(room, starts).argmax(axis=1)[:, None]
        given = _fill_largest_first(np.where(inside, room, 0), need.pods)
        self._occupy(need.kind, given, (given > 0) | (inside & never[:, None]), begins, lasts_s)
        at_s = np.sort(np.where(never, np.inf, self._grid[at]))
        return Eta(*(now_s + float(each) if np.isfinite(each) else None for each in (at_s[_P50], at_s[_P90])))

    def _find_start_times(self, need: Need) -> NDArray[np.int64]:
        """Per sample the first time at which it fits in a domain. Room only grows once a group is open.

        It is no earlier than for one before it that needed no more: room at any time only shrinks from work to work.
        """
        pods, first = self._last.get((need.kind, need.level), (1, 0))
        low = first if pods <= need.pods else 0
        whole = _sum_per_domain(self._fits[self._number[need.kind], :, low:], self._domains(need.level)[0])
        found: NDArray[np.int64] = low + (whole.max(axis=2) < need.pods).sum(axis=1)
        self._last[need.kind, need.level] = need.pods, int(found.min())
        return found

    def _is_possible(self, need: Need) -> bool:
        """Whether it fits if nothing runs."""
        if need not in self._possible:
            able = self._able[self._number[need.kind]]
            each = 1 if need.kind.one_per_node else self._gpus_per_node // need.kind.gpus
            per_group = np.bincount(self._group[able], minlength=self._groups) * each
            starts, _ = self._domains(need.level)
            # `reduceat` takes no empty array: a fleet without nodes has no groups.
            most = np.add.reduceat(per_group, starts).max(initial=0) if self._groups else 0
            self._possible[need] = bool(most >= need.pods)
        return self._possible[need]

    def _domains(self, level: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The first group of each domain of a level, and the domain of each group; no level: one for all."""
        if level not in self._levels:
            starts = np.zeros(1, np.int64)
            if level:
                own, above = self._table.levels[self._group_level], self._table.levels[self._table.find_level(level)]
                starts = np.searchsorted(own.starts[:-1], above.starts[:-1])
            self._levels[level] = starts, np.repeat(np.arange(len(starts)), np.diff(np.append(starts, self._groups)))
        return self._levels[level]

    def _occupy(
        self,
        kind: Kind,
        given: Floats,
        touched: NDArray[np.bool_],
        begins: NDArray[np.int64],
        lasts_s: Floats,
    ) -> None:
        """Occupy its GPUs for its run time; workloads behind it start no earlier in these groups."""
        sample, group = np.nonzero(touched)
        ends = np.searchsorted(self._grid, self._grid[np.minimum(begins, _TIMES - 1)] + lasts_s)
        is_open = self._times >= begins[sample][:, None]
        taken = given[sample, group][:, None] * (self._times < ends[sample][:, None])
        parts = self._parts[self._number[kind]][:, None]
        # Pair of sample and group, kind, time. What a pod of another kind takes of one is a mean: it can be too much.
        left = self._fits[:, sample, :, group] - taken[:, None] * parts
        self._fits[:, sample, :, group] = np.maximum(left, 0, out=left) * (is_open[:, None] | (parts == 0))


def _sum_per_domain(room: Floats, starts: NDArray[np.int64]) -> Floats:
    """Groups, the last dimension, summed to domains."""
    if len(starts) == room.shape[-1]:
        return room
    if len(starts) == 1:
        whole: Floats = room.sum(axis=-1, keepdims=True)
        return whole
    return np.add.reduceat(room, starts, axis=-1)


def _fill_largest_first(room: Floats, pods: int) -> Floats:
    """Distribute pods over the groups with most room, per sample."""
    given = np.zeros_like(room)
    rows, largest = np.arange(len(room)), room.argmax(axis=1)
    if (room[rows, largest] >= pods).all():
        given[rows, largest] = pods
        return given
    order = np.argsort(-room, axis=1, kind="stable")
    sorted_room = np.take_along_axis(room, order, axis=1)
    before = np.cumsum(sorted_room, axis=1) - sorted_room
    np.put_along_axis(given, order, np.clip(pods - before, 0, sorted_room), axis=1)
    return given


def draw_run_times(workloads: Sequence[QueuedWorkload]) -> Floats:
    """Run time per workload and sample."""
    known = [(w.run_time.p50_s, w.run_time.p95_s) if w.run_time else (1.0, 1.0) for w in workloads]
    p50, p95 = np.array(known, np.float64).reshape(-1, 2).T
    lasts = remaining_s(
        p50[:, None], p95[:, None], np.zeros((len(workloads), 1)), draw_uniform([w.key for w in workloads])
    )
    lasts[[workload.run_time is None for workload in workloads]] = np.inf
    return lasts.astype(np.float32)


def draw_uniform(keys: Sequence[str]) -> NDArray[np.float64]:
    """Deterministic uniform numbers in (0, 1), one per key and sample."""
    seeds = np.array([zlib.crc32(key.encode()) for key in keys], np.uint64).reshape(-1, 1)
    mixed: Any = (seeds * np.uint64(SAMPLES) + np.arange(1, SAMPLES + 1, dtype=np.uint64)) * np.uint64(_GOLDEN)
    # splitmix64
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    mixed ^= mixed >> np.uint64(31)
    found: NDArray[np.float64] = ((mixed >> np.uint64(11)).astype(np.float64) + 0.5) / 2.0**53
    return found
