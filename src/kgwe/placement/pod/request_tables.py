"""Tables for requests of whole GPUs: for every set of free GPUs the status, the GPUs to take, and how many pods fit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

import numpy as np

from kgwe.placement.pod.fit_status import FitStatus

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kgwe.placement.fleet.node import Preference, Request
    from kgwe.placement.gpuset.gpu_tables import ShapeTables

    Codes = NDArray[np.uint8]

# Faster than any link, and small enough to compare with the 32-bit floats of the tables.
_FASTEST_GB_PER_S: Final = 1e30
# Tables kept, the oldest forgotten first: a shape of 16 GPUs takes half a megabyte for each required bandwidth.
_KEPT: Final = 128

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class RequestTable:
    """Tables over the rows of `ShapeTables` for requests with the same count, preference and bandwidth."""

    codes: Codes
    """FITS, GPUS_TAKEN or WIRING."""
    best: NDArray[np.uint16]
    """The set to take; 0: none."""
    room: NDArray[np.int32]
    """How many such pods fit, one after the other."""


class RequestTables:
    """The tables of one fleet; each is built on first use."""

    def __init__(self, tables: ShapeTables, most_gpus: int) -> None:
        """`most_gpus`: the GPUs of the largest node."""
        self._tables = tables
        # Requests for more GPUs than the largest node has are refused alike: one table serves them all.
        self._too_many = most_gpus + 1
        self._known: dict[tuple[int, Preference, float], RequestTable] = {}

    def find(self, request: Request) -> RequestTable:
        """The table for the request."""
        key = (
            min(request.gpus.count, self._too_many),
            request.preference,
            min(request.min_bandwidth_gbps, _FASTEST_GB_PER_S),
        )
        known = self._known.get(key)
        if known is None:
            forget_oldest(self._known, _KEPT)
            known = self._known[key] = self._build(*key)
        return known

    def _build(self, count: int, preference: Preference, min_gb_per_s: float) -> RequestTable:
        tables = self._tables
        best = tables.best_sets(count, preference).copy()
        if min_gb_per_s:
            # The best set is the fastest: where it is too slow, all are.
            best[~(tables.gb_per_s(count, preference) >= min_gb_per_s)] = 0
        codes = np.where(best > 0, FitStatus.FITS, FitStatus.WIRING).astype(np.uint8)
        room = np.zeros(len(best), np.int32)
        for part, wide in zip(tables.rows_of_shape, tables.wide.tolist(), strict=True):
            rows = np.arange(part.stop - part.start)
            free = rows if wide else np.bitwise_count(rows)
            codes[part][free < count] = FitStatus.GPUS_TAKEN
            room[part] = np.where(best[part] > 0, free // count, 0) if wide else _count_sets(best[part], rows)
        return RequestTable(codes, best, room)


def _count_sets(best: NDArray[np.uint16], masks: NDArray[np.int64]) -> NDArray[np.int32]:
    """Mask -> how many sets can be taken one after the other."""
    room = np.zeros(len(best), np.int32)
    left, taken = masks, best
    while taken.any():
        room += taken > 0
        left = left ^ taken
        taken = best[left]
    return room


def forget_oldest(remembered: dict[_Key, _Value], most: int) -> None:
    """Make room for one more entry."""
    if len(remembered) >= most:
        del remembered[next(iter(remembered))]
