"""The request of a gang: pods that run together or not at all, and how near to each other they must be.

    GangRequest.uniform(request, 16, required="spine", preferred="leaf", segments=(Segment(4, NVLINK),))

Levels are those of the network tree (`kgwe.model.network.domains`) and three more. `node` (one machine) and `nvlink`
(one NVLink domain) are below them, `cluster` is above. One domain of the required level must hold the gang. If no
domain of the preferred level does, the next higher level is tried.

Ranks are numbered role by role in the order of `roles`. A segment is a group of consecutive ranks of a role that must
lie inside one domain of a level. An example is a tensor-parallel group inside an NVLink domain. Different groups may be
in different domains. Several segments of a role nest: 4 ranks per node, 16 per leaf.
"""

from __future__ import annotations

import dataclasses
import enum
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kgwe import errors

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kgwe.placement.fleet.node import Request

#: one machine
NODE: Final = "node"
#: one NVLink domain; a node without a known NVLink domain is a domain by itself
NVLINK: Final = "nvlink"
#: all nodes
CLUSTER: Final = "cluster"


class Strategy(enum.StrEnum):
    """How near to each other the pods of a gang are placed."""

    CONSOLIDATED = "Consolidated"
    """The lowest domain that holds it, on the fewest leaves, with the fewest pairs of pods in different leaves."""
    BALANCED = "Balanced"
    """The lowest domain from the leaf up that holds it, evenly over all its nodes."""
    DISTRIBUTED = "Distributed"
    """Over as many domains as possible, so that one failure takes the fewest pods. For inference."""
    PACK = "Pack"
    """Into the smallest free capacity anywhere. For pods that do not communicate."""


class Hardware(enum.StrEnum):
    """Whether the GPUs of a gang are of one model."""

    PREFER_SAME = "PreferSame"
    """One model if any has room, else several. Pods that do not communicate (Pack, Distributed) may use several."""
    SAME = "Same"
    ANY = "Any"


@dataclass(frozen=True, slots=True)
class Segment:
    """Groups of `size` consecutive ranks, each inside one domain of the level."""

    size: int
    level: str


@dataclass(frozen=True, slots=True)
class Role:
    """Pods of one template."""

    name: str
    request: Request
    replicas: int
    min_replicas: int = 0
    """The least number it can start with; 0: all of them."""
    segments: tuple[Segment, ...] = ()

    def __post_init__(self) -> None:
        if self.replicas < 1 or not 0 <= self.min_replicas <= self.replicas:
            raise errors.Permanent(
                f"role {self.name}: {self.replicas} replicas, minimum {self.min_replicas}; "
                "replicas must be at least 1, and the minimum between 0 and replicas"
            )
        sizes = sorted(segment.size for segment in self.segments)
        if any(size < 1 for size in sizes):
            raise errors.Permanent(f"role {self.name}: a segment must have at least one rank")
        for size, larger in itertools.pairwise([*sizes, self.replicas]):
            if larger % size or self.required_replicas % size:
                raise errors.Permanent(
                    f"role {self.name}: segments of {size} ranks do not divide {larger} "
                    f"(at least {self.required_replicas}); make the numbers multiples of each other"
                )

    @property
    def required_replicas(self) -> int:
        """Pods that it needs to start."""
        return self.min_replicas or self.replicas

    @property
    def replica_step(self) -> int:
        """Replicas come in multiples of the largest segment."""
        return max((segment.size for segment in self.segments), default=1)


@dataclass(frozen=True, slots=True)
class GangRequest:
    """The request of one gang: all its pods are placed, or none."""

    roles: tuple[Role, ...]
    required: str = ""
    """The level of which one domain must hold all pods; empty: the cluster."""
    preferred: str = ""
    strategy: Strategy = Strategy.CONSOLIDATED
    hardware: Hardware = Hardware.PREFER_SAME
    """Applies to roles that name no model themselves."""
    min_network_gb_per_s: float = 0.0
    """The least bandwidth of each node to the farthest other node of the gang, one direction. Unknown is too little."""
    max_nodes_per_leaf: int = 0
    """0: no limit."""
    max_gpus_per_leaf: int = 0
    """Shares and slices count as parts of a GPU; 0: no limit."""
    max_pods_per_node: int = 0
    """1 is anti-affinity by host name; 0: no limit."""
    priority: int = 0
    name: str = ""
    exposed: bool = False
    """Large or long enough that a failure is likely; it avoids unreliable nodes if that costs nothing."""

    def __post_init__(self) -> None:
        if not self.roles or len({role.name for role in self.roles}) != len(self.roles):
            raise errors.Permanent("a gang must have at least one role, and the names of its roles must differ")
        limits = (self.max_nodes_per_leaf, self.max_gpus_per_leaf, self.max_pods_per_node)
        if min(self.min_network_gb_per_s, *limits) < 0:
            raise errors.Permanent("limits of a gang must not be negative")

    @classmethod
    def uniform(
        cls,
        request: Request,
        replicas: int,
        *,
        min_replicas: int = 0,
        segments: tuple[Segment, ...] = (),
        role: str = "worker",
        **limits: Any,
    ) -> GangRequest:
        """A gang of equal pods."""
        return cls((Role(role, request, replicas, min_replicas, segments),), **limits)

    @property
    def replicas(self) -> int:
        return sum(role.replicas for role in self.roles)

    @property
    def communicates(self) -> bool:
        """Whether its pods communicate, so that the bandwidth between them counts."""
        return self.strategy in (Strategy.CONSOLIDATED, Strategy.BALANCED)

    @property
    def is_elastic(self) -> bool:
        return any(role.required_replicas < role.replicas for role in self.roles)

    @property
    def without_name(self) -> GangRequest:
        """The same gang without name and priority, which do not affect its place."""
        return dataclasses.replace(self, name="", priority=0)

    @property
    def named_levels(self) -> tuple[str, ...]:
        """Levels that the gang names, the outermost first: required, segments from the largest, preferred.

        The gang is inside one domain of the required level, and small segments are inside large ones. So where two
        levels cross, the domains of the later one may be cut at the borders of the earlier one.
        """
        segments = sorted((each for role in self.roles for each in role.segments), key=lambda each: -each.size)
        named = (self.required, *[segment.level for segment in segments], self.preferred)
        return tuple(dict.fromkeys(level for level in named if level))

    def with_requests(self, **changes: Any) -> GangRequest:
        """The same gang with these fields of every pod's request changed."""
        return dataclasses.replace(self, roles=tuple(self._change_requests(changes)))

    def _change_requests(self, changes: dict[str, Any]) -> Iterator[Role]:
        for role in self.roles:
            yield dataclasses.replace(role, request=dataclasses.replace(role.request, **changes))


@dataclass(frozen=True, slots=True)
class Intent:
    """The place of a gang in the joint plan of all waiting gangs."""

    parts: tuple[tuple[str, int], ...]
    """Leaf -> pods."""
    tight: bool
    """Whether pods fill the nodes with the least room first, instead of using the fewest nodes."""
    reason: str


@dataclass(frozen=True, slots=True)
class Following:
    """Gangs whose turn comes later, considered in the choice of a place: waiting gangs, then expected ones."""

    kinds: tuple[GangRequest, ...] = ()
    order: tuple[int, ...] = ()
    """Numbers of `kinds`, in the order of their turns."""
    expected: int = 0
    """How many at the end of `order` are expected but do not wait yet."""
    intent: Intent | None = None
    """The place that the joint plan gives to the gang being placed; None: no joint plan includes it."""

    @classmethod
    def from_gangs(cls, gangs: Iterable[GangRequest]) -> Following:
        numbers: dict[GangRequest, int] = {}
        order = [numbers.setdefault(gang.without_name, len(numbers)) for gang in gangs]
        return cls(tuple(numbers), tuple(order))


#: no gang waits and none is expected
NONE_FOLLOW: Final = Following()
