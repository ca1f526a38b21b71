"""Nodes and requests as the placement engine sees them: frozen, in whole units, unknown kept apart from zero."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from kgwe.model.units.limits import MAX_GPUS_PER_NODE
from kgwe.placement.fleet.constraints import ANYWHERE, Constraints

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kgwe.model.gpu.mig import Geometry, Placement
    from kgwe.model.gpu.topology import Wiring
    from kgwe.placement.fleet.taints import Taint

#: a whole GPU in the unit of shares
GPU_MILLI = 1000


class Preference(enum.StrEnum):
    """How the GPUs of one pod should be wired, in the words of `topology.preference`."""

    NONE = "None"
    NVLINK_OPTIMAL = "NVLinkOptimal"
    NVLINK_REQUIRED = "NVLinkRequired"
    SAME_NUMA = "SameNUMA"
    SAME_PCIE_SWITCH = "SamePCIeSwitch"


#: required preference -> what to ask for instead, the nearest first; the last one is always satisfied
SOFTER: Final = {
    Preference.NVLINK_REQUIRED: (Preference.NVLINK_OPTIMAL,),
    Preference.SAME_NUMA: (Preference.NVLINK_OPTIMAL,),
    Preference.SAME_PCIE_SWITCH: (Preference.SAME_NUMA, Preference.NVLINK_OPTIMAL),
}
_REQUIRED: Final = frozenset(SOFTER)


class SpotPolicy(enum.StrEnum):
    """Whether a pod runs on spot nodes, which their provider may take back at any time."""

    AVOID = "Avoid"
    """Only where no other node will do."""
    ALLOW = "Allow"
    """As on any other node."""
    REQUIRE = "Require"
    """Nowhere else."""


@dataclass(frozen=True)
class Shape:
    """What equal nodes share: their GPUs and the wiring between them."""

    wiring: Wiring
    model: str
    memory_mib: int | None = None
    architecture: str | None = None
    #: how MIG can cut the GPUs; None: not at all
    geometry: Geometry | None = field(default=None, hash=False)

    @property
    def gpu_count(self) -> int:
        return len(self.wiring.slots)

    @property
    def all_gpus(self) -> int:
        """The mask of every GPU."""
        return (1 << self.gpu_count) - 1


@dataclass(frozen=True)
class Node:
    """One node when nothing runs on it."""

    name: str
    shape: Shape
    cpu_milli: int
    memory_bytes: int
    pods: int = 110
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    ready: bool = True
    #: mask of GPUs that may be given work
    healthy: int = -1
    #: GPU -> the slices it is cut into; a GPU that is cut is never given whole or shared
    cut: Mapping[int, tuple[Placement, ...]] = field(default_factory=dict)
    price_micro_per_hour: int | None = None
    #: its provider may take it back at any time
    spot: bool = False
    #: its operator declared it cheap
    cheap: bool = False
    #: 0..1; 1: no trouble is known (`kgwe.model.health.reliability`)
    reliability: float = 1.0
    #: 0..1: how well workloads ended in its network domain; 1: no loss is known (`kgwe.model.network.outcomes`)
    history: float = 1.0
    #: equal shares that each of its GPUs is offered as; 0: whole GPUs only; None: whole, or any share
    shares_per_gpu: int | None = None
    #: not `ready` only because it is cordoned
    cordoned: bool = False

    @property
    def usable(self) -> int:
        """Mask of healthy GPUs that are not cut; of more than MOST_CARDS, only the first so many."""
        mask = self.shape.all_gpus & self.healthy & (1 << MAX_GPUS_PER_NODE) - 1
        for gpu in self.cut:
            mask &= ~(1 << gpu)
        return mask

    @property
    def whole_gpus(self) -> int:
        """Number of GPUs that it offers whole, healthy or not."""
        return 0 if self.shares_per_gpu else min(self.shape.gpu_count - len(self.cut), MAX_GPUS_PER_NODE)


def share_milli(shares_per_gpu: int) -> int:
    """One of so many equal shares of a GPU."""
    return GPU_MILLI // shares_per_gpu


@dataclass(frozen=True, slots=True)
class Gpus:
    """What one pod wants of GPUs: whole GPUs, a share of one GPU, or MIG slices. Exactly one of the three."""

    count: int = 0
    milli: int = 0
    share_mib: int = 0
    profile: str = ""
    slices: int = 0

    def __post_init__(self) -> None:
        kinds = (self.count > 0) + (self.milli > 0) + (self.slices > 0)
        if kinds > 1 or not 0 <= self.milli < GPU_MILLI or min(self.count, self.slices, self.share_mib) < 0:
            raise ValueError(f"ask for whole GPUs, a share below {GPU_MILLI} milli, or slices: {self}")
        if bool(self.profile) != bool(self.slices):
            raise ValueError(f"slices and their profile go together: {self}")


class _HashedOnce:
    """Room for the hash of a frozen dataclass that every decision looks up in several caches."""

    __slots__ = ("_hash",)
    _hash: int


@dataclass(frozen=True, slots=True)
class Request(_HashedOnce):
    """One pod. Pods of one template are equal requests: whatever is worked out for one holds for all."""

    gpus: Gpus
    cpu_milli: int = 0
    memory_bytes: int = 0
    preference: Preference = Preference.NONE
    #: GB/s between the GPUs, both directions, as data sheets count
    min_bandwidth_gbps: float = 0.0
    min_memory_gb: int = 0
    model: str = ""
    architecture: str = ""
    constraints: Constraints = ANYWHERE
    spot: SpotPolicy = SpotPolicy.ALLOW

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash(self._values()))

    @property
    def connection_fields(self) -> tuple[str, ...]:
        """Fields of `topology` that require a connection between the GPUs of the pod."""
        preference = ("preference",) if self.preference in _REQUIRED else ()
        return (*preference, "minBandwidthGBps") if self.min_bandwidth_gbps else preference

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[type[Request], tuple[object, ...]]:
        """Copies in other processes, where texts have other hashes, are hashed there."""
        return Request, self._values()

    def _values(self) -> tuple[object, ...]:
        return (
            self.gpus, self.cpu_milli, self.memory_bytes, self.preference, self.min_bandwidth_gbps, self.min_memory_gb,
            self.model, self.architecture, self.constraints, self.spot,
        )  # fmt: skip
