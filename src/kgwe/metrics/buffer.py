"""The raw samples of the last minutes, in memory. Windows with any steps are made from them."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from kgwe.metrics.fields import Field, Rejected, merge_rejected
from kgwe.metrics.grid import Samples, aggregate_samples, make_usage_window

if TYPE_CHECKING:
    from collections.abc import Callable

    from kgwe.metrics.exposition import Scrape
    from kgwe.metrics.grid import Steps
    from kgwe.model.usage.window import Device, DeviceKey, UsageWindow

# Scrapes are small; they are joined so that a window reads few arrays.
_JOIN_AT: Final = 256
_COMPACT_AT: Final = 4096


@dataclass(frozen=True, slots=True)
class _Block:
    samples: Samples
    first_s: float
    last_s: float


class SampleBuffer:
    """Samples of devices for at least `keep_s` seconds. Not thread-safe."""

    def __init__(self, keep_s: float) -> None:
        self._keep_s = keep_s
        self._rows: dict[DeviceKey, int] = {}
        self._devices: list[Device] = []
        self._blocks: deque[_Block] = deque()
        self._fresh: list[_Block] = []
        self._rejected: dict[int, Rejected] = {}
        """Second -> samples that were skipped: bounded, however many scrapes there are."""

    @property
    def newest_s(self) -> float | None:
        """Time of the newest sample; None if there is none."""
        return max((block.last_s for block in (*self._blocks, *self._fresh)), default=None)

    def add(self, scrape: Scrape, at_s: float) -> None:
        """Add the samples of a scrape at its time."""
        self.count_rejected(scrape.rejected, at_s)
        if scrape.devices:
            rows = np.array([self._find_row(device) for device in scrape.devices], dtype=np.int64)
            times_s = np.full(rows.size, at_s, dtype=np.float64)
            self._fresh.append(_Block(Samples(rows, times_s, scrape.values), at_s, at_s))
        if len(self._fresh) >= _JOIN_AT:
            self._join()

    def count_rejected(self, rejected: Rejected, at_s: float) -> None:
        """Count samples that were skipped at a time."""
        if rejected:
            second = math.ceil(at_s)
            self._rejected[second] = merge_rejected(self._rejected.get(second, {}), rejected)

    def forget_after(self, at_s: float) -> int:
        """Remove samples that are later than a time, because the clock was set back; return how many."""
        self._join()
        kept: deque[_Block] = deque()
        removed = 0
        for block in self._blocks:
            keep = block.samples.times_s <= at_s
            removed += int((~keep).sum())
            if keep.any():
                kept.append(block if keep.all() else _select(block, keep))
        self._blocks = kept
        return removed

    def forget_before(self, now_s: float) -> None:
        """Remove samples that are older than the buffer keeps."""
        oldest_s = now_s - self._keep_s
        while self._blocks and self._blocks[0].last_s < oldest_s:
            self._blocks.popleft()
        self._rejected = {second: counts for second, counts in self._rejected.items() if second >= oldest_s}
        if len(self._devices) > _COMPACT_AT:
            self._compact()

    def prepare_window(self, steps: Steps) -> Callable[[], UsageWindow]:
        """Return a function that makes the window; it may run in another thread."""
        self._join()
        end_s = steps.start_s + steps.step_s * steps.count
        blocks = [block for block in self._blocks if block.last_s > steps.start_s and block.first_s <= end_s]
        rejected = merge_rejected(*(counts for at_s, counts in self._rejected.items() if steps.start_s < at_s <= end_s))
        devices = list(self._devices)
        return lambda: _make_window(blocks, devices, steps, rejected)

    def _find_row(self, device: Device) -> int:
        row = self._rows.get(device.key)
        if row is None:
            row = self._rows[device.key] = len(self._devices)
            self._devices.append(device)
        elif self._devices[row] is not device:
            self._devices[row] = device  # its model or profile may have changed
        return row

    def _join(self) -> None:
        if self._fresh:
            self._blocks.append(_join_blocks(self._fresh))
            self._fresh = []

    def _compact(self) -> None:
        """Drop devices without samples: pods come and go."""
        self._join()
        live = np.unique(np.concatenate([block.samples.rows for block in self._blocks] or [np.zeros(0, np.int64)]))
        if live.size * 2 > len(self._devices):
            return
        numbers = np.zeros(len(self._devices), dtype=np.int64)
        numbers[live] = np.arange(live.size)
        self._devices = [self._devices[row] for row in live.tolist()]
        self._rows = {device.key: row for row, device in enumerate(self._devices)}
        self._blocks = deque(
            _Block(Samples(numbers[b.samples.rows], b.samples.times_s, b.samples.values), b.first_s, b.last_s)
            for b in self._blocks
        )


def _join_blocks(blocks: list[_Block]) -> _Block:
    samples = Samples(
        np.concatenate([block.samples.rows for block in blocks]),
        np.concatenate([block.samples.times_s for block in blocks]),
        np.concatenate([block.samples.values for block in blocks]),
    )
    return _Block(samples, min(block.first_s for block in blocks), max(block.last_s for block in blocks))


def _select(block: _Block, keep: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> _Block:
    old = block.samples
    samples = Samples(old.rows[keep], old.times_s[keep], old.values[keep])
    return _Block(samples, float(samples.times_s.min()), float(samples.times_s.max()))


def _make_window(blocks: list[_Block], devices: list[Device], steps: Steps, rejected: Rejected) -> UsageWindow:
    empty = Samples(np.zeros(0, np.int64), np.zeros(0, np.float64), np.zeros((0, len(Field)), np.float32))
    samples = _join_blocks(blocks).samples if blocks else empty
    live, rows = np.unique(samples.rows, return_inverse=True)
    renumbered = Samples(rows.astype(np.int64), samples.times_s, samples.values)
    fields = aggregate_samples(renumbered, steps, live.size)
    return make_usage_window([devices[row] for row in live.tolist()], fields, steps, rejected)
