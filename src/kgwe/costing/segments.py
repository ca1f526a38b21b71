"""Segments. A cost segment is what one holder, or no holder, cost on one piece of a node at one rate for a time.

The segments of a node cover each moment completely: those of pods and those without a pod sum to the node's own
segment. A segment that was cut in two costs the same.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from kgwe.costing.money import MICROS

PPM: Final = MICROS
MILLI: Final = 1000


class Bucket(enum.IntEnum):
    """Which line of the books a segment belongs to. The numbers are stored in the ledger and never change."""

    FLEET = 0
    """What the node costs as a whole; all other buckets sum to it."""
    ALLOCATED = 1
    """Held by a pod."""
    OVERHEAD = 2
    """Held by a pod of the system: a DaemonSet."""
    UNALLOCATED = 3
    """Held by no pod."""
    RESERVED_IDLE = 4
    """Held by no pod, on a node that was paid for in advance."""
    QUOTA_HELD = 5
    """The part of unallocated that quota keeps for a namespace. No cost of its own, so no part of the balance."""

    BILLED_ONLY = 6
    """Billed, and not metered. Only in restated reports, never stored."""


#: The buckets of pods. Their cost is divided further into used, idle and unmeasured.
HELD: Final = frozenset({Bucket.ALLOCATED, Bucket.OVERHEAD})


class Part(enum.IntEnum):
    """What kind of piece a segment is about. The numbers are stored in the ledger and never change."""

    NODE = 0
    GPU = 1
    SLICE = 2
    SHARE = 3
    HOST = 4
    """CPUs and memory."""


@dataclass(frozen=True, slots=True)
class Account:
    """The names by which a cost is attributed. Empty: not stated."""

    namespace: str = ""
    team: str = ""
    project: str = ""
    cost_center: str = ""
    experiment: str = ""
    user: str = ""


@dataclass(frozen=True, slots=True)
class Holder:
    """A pod that holds something."""

    uid: str
    pod: str
    """Its name; the namespace is that of the account."""
    workload: str
    """Kind and name of what created it: `Job/train`."""
    account: Account
    is_overhead: bool = False


class Piece(NamedTuple):
    """A part of a node that is held and paid for as one."""

    node: str
    part: Part
    gpu: str = ""
    """UUID of the GPU; empty for the host and for the node."""
    place: str = ""
    """`3g.40gb@4` of a slice; empty otherwise."""
    model: str = ""
    capacity: str = ""
    instance_type: str = ""


class SegmentKey(NamedTuple):
    """What makes a segment the same segment when it is written again."""

    start_s: int
    bucket: Bucket
    holder: str
    piece: Piece


@dataclass(frozen=True, slots=True)
class Segment:
    """A constant cost from `start_s` until before `end_s`."""

    start_s: int
    end_s: int
    bucket: Bucket
    piece: Piece
    rate: int
    """Micro-dollars per hour."""
    ppm: int = 0
    """Millionths of a GPU; a million on a whole GPU."""
    holder: Holder | None = None
    price: str = ""
    """The version of the price; empty if the node is unpriced."""
    measured_s: int = 0
    """Seconds for which the use of the GPU is known."""
    busy_ms: int = 0
    """Use of the GPU summed over these seconds: a second at 100 % adds 1,000."""

    @property
    def key(self) -> SegmentKey:
        return SegmentKey(self.start_s, self.bucket, self.holder.uid if self.holder else "", self.piece)

    @property
    def seconds(self) -> int:
        return self.end_s - self.start_s

    @property
    def ticks(self) -> int:
        return self.rate * self.seconds

    @property
    def idle_ticks(self) -> int:
        """The part of the cost that was held, and measured not to be used."""
        return self.rate * (self.measured_s * MILLI - self.busy_ms) // MILLI

    @property
    def measured_ticks(self) -> int:
        """The part of the cost for which the use is known."""
        return self.rate * self.measured_s

    def clip(self, start_s: int, end_s: int) -> Slice:
        """Return the part of the segment within a window. The parts of adjacent windows sum to the whole."""
        first, last = max(start_s, self.start_s), min(end_s, self.end_s)
        if first >= last:
            return Slice(0, 0, 0, 0)
        return Slice(
            self.rate * (last - first),
            self._share(self.idle_ticks, first, last),
            self._share(self.measured_ticks, first, last),
            self.ppm * (last - first),
        )

    def cut(self, at_s: int) -> tuple[Segment, Segment]:
        """Return the parts before and after a time. Use that was measured is divided in proportion."""
        known = self._share(self.measured_s, self.start_s, at_s)
        busy = min(self._share(self.busy_ms, self.start_s, at_s), known * MILLI)
        first = replace(self, end_s=at_s, measured_s=known, busy_ms=busy)
        rest = replace(self, start_s=at_s, measured_s=self.measured_s - known, busy_ms=self.busy_ms - busy)
        return first, rest

    def _share(self, amount: int, first: int, last: int) -> int:
        """Spread an amount evenly, and return what is between two times: differences of one rounded running sum."""
        length = self.seconds
        return amount * (last - self.start_s) // length - amount * (first - self.start_s) // length


class Slice(NamedTuple):
    """What a segment contributes to a window."""

    ticks: int
    idle_ticks: int
    measured_ticks: int
    ppm_s: int
