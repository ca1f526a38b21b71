"""What pods and seats hold on a node, and what is booked for them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kgwe.placement.fleet.snapshot import Grant

Slices = tuple[tuple[int, int], ...]
"""(GPU, start) of MIG slices."""


@dataclass(frozen=True, slots=True)
class Holding:
    """What one pod, or one seat, holds on a node."""

    node: str
    amounts: Mapping[str, int] = field(default_factory=dict)
    #: mask of whole GPUs it is known, or planned, to have; 0: not known
    gpus: int = 0
    #: slices it is known, or planned, to have
    slices: Slices = ()
    #: the devices are reported by the kubelet, not planned
    observed: bool = False

    @property
    def trust(self) -> int:
        """0: guessed, 1: planned, 2: observed."""
        return (1 + self.observed) if self.gpus or self.slices else 0


@dataclass(slots=True)
class Holder:
    holding: Holding
    #: what is booked for it; empty while its node is unknown
    grants: tuple[Grant, ...] = ()
    #: it holds more devices than the node could give
    short: bool = False
    #: GPUs it had when last booked
    last: int = 0

    @property
    def booked_gpus(self) -> int:
        """Mask of the GPUs that are booked for it, whole or shared."""
        mask = 0
        for grant in self.grants:
            mask |= grant.whole_or_shared
        return mask

    @property
    def booked_slices(self) -> Slices:
        return tuple((gpu, placed.start) for grant in self.grants for gpu, placed in grant.slices)

    @property
    def is_misbooked(self) -> bool:
        """Whether GPUs that the kubelet reports are not booked for it."""
        return self.holding.observed and bool(self.holding.gpus & ~self.booked_gpus)

    def is_recorded(self, new: Holding) -> bool:
        """Whether `new` is recorded already; unknown devices change nothing."""
        known = self.holding
        if (known.node, known.amounts, known.observed) != (new.node, new.amounts, new.observed):
            return False
        if new.gpus in (0, known.gpus) and new.slices in ((), known.slices):
            return True
        return new.gpus in (0, self.last) and new.slices in ((), self.booked_slices)
