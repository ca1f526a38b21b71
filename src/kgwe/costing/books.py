"""Sums of segments: the books of a window, and their attribution to namespaces, teams and other names."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kgwe.costing.segments import HELD, Bucket

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kgwe.costing.segments import Segment


class Dimension(enum.StrEnum):
    """What a report is grouped by."""

    NAMESPACE = "namespace"
    TEAM = "team"
    PROJECT = "project"
    COST_CENTER = "cost-center"
    EXPERIMENT = "experiment"
    USER = "user"
    WORKLOAD = "workload"
    POD = "pod"
    NODE = "node"
    MODEL = "model"


@dataclass(slots=True)
class Sums:
    """Ticks of one line of a report."""

    ticks: int = 0
    idle_ticks: int = 0
    measured_ticks: int = 0
    ppm_s: int = 0
    unpriced_ppm_s: int = 0

    def add(self, ticks: int, idle_ticks: int, measured_ticks: int, ppm_s: int) -> None:
        """Add what a segment contributes."""
        self.ticks += ticks
        self.idle_ticks += idle_ticks
        self.measured_ticks += measured_ticks
        self.ppm_s += ppm_s

    def merge(self, other: Sums) -> None:
        """Add another line."""
        self.add(other.ticks, other.idle_ticks, other.measured_ticks, other.ppm_s)
        self.unpriced_ppm_s += other.unpriced_ppm_s

    @property
    def used_ticks(self) -> int:
        """The cost weighted by the measured use."""
        return self.measured_ticks - self.idle_ticks


@dataclass(slots=True)
class Books:
    """The books of a window: sums by bucket, which balance."""

    by_bucket: dict[Bucket, Sums] = field(default_factory=dict)

    def sums(self, bucket: Bucket) -> Sums:
        """Return the line of a bucket."""
        return self.by_bucket.get(bucket) or Sums()

    def open_line(self, bucket: Bucket) -> Sums:
        """Return the line of a bucket, to add to it."""
        return self.by_bucket.setdefault(bucket, Sums())

    @property
    def fleet(self) -> int:
        """What all nodes cost."""
        return self.sums(Bucket.FLEET).ticks

    @property
    def idle(self) -> int:
        """Held by pods, and measured not to be used."""
        return sum(self.sums(bucket).idle_ticks for bucket in HELD)

    @property
    def allocated(self) -> int:
        """Held by pods, and used, or of unknown use: without what is idle."""
        return sum(self.sums(bucket).ticks for bucket in HELD) - self.idle

    @property
    def unallocated(self) -> int:
        return self.sums(Bucket.UNALLOCATED).ticks

    @property
    def reserved_idle(self) -> int:
        return self.sums(Bucket.RESERVED_IDLE).ticks

    @property
    def quota_held(self) -> int:
        """The part of unallocated that namespaces keep by quota that they do not use."""
        return self.sums(Bucket.QUOTA_HELD).ticks

    @property
    def billed_only(self) -> int:
        """Billed, and not metered; only in restated books."""
        return self.sums(Bucket.BILLED_ONLY).ticks

    @property
    def unbalanced(self) -> int:
        """What the lines miss of the fleet's cost, in ticks: 0, or the books are wrong."""
        parts = self.allocated + self.idle + self.unallocated + self.reserved_idle + self.billed_only
        return self.fleet - parts


def keep_books(segments: Iterable[Segment], start_s: int, end_s: int) -> Books:
    """Return the books of a window from raw segments."""
    books = Books()
    for segment in segments:
        clipped = segment.clip(start_s, end_s)
        sums = books.open_line(segment.bucket)
        sums.add(*clipped)
        if not segment.price:
            sums.unpriced_ppm_s += clipped.ppm_s
    return books


def attribute(segments: Iterable[Segment], start_s: int, end_s: int, by: Dimension) -> dict[str, Sums]:
    """Return what pods cost in a window, by a dimension. Empty: not stated."""
    found: dict[str, Sums] = {}
    for segment in segments:
        if segment.bucket not in HELD:
            continue
        clipped = segment.clip(start_s, end_s)
        if clipped.ticks or clipped.ppm_s:
            sums = found.setdefault(name_of(segment, by), Sums())
            sums.add(*clipped)
            if not segment.price:
                sums.unpriced_ppm_s += clipped.ppm_s
    return found


def name_of(segment: Segment, by: Dimension) -> str:
    """Return the name of a segment in a dimension."""
    if by is Dimension.NODE:
        return segment.piece.node
    if by is Dimension.MODEL:
        return segment.piece.model
    holder = segment.holder
    if holder is None:
        return ""
    account = holder.account
    if by is Dimension.WORKLOAD:
        return f"{account.namespace}/{holder.workload}"
    if by is Dimension.POD:
        return f"{account.namespace}/{holder.pod}"
    return str(getattr(account, by.value.replace("-", "_")))
