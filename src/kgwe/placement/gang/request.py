"""What a gang asks for: pods that run together or not at all, and how near to each other they must be.

    GangRequest.of(request, 16, required="spine", preferred="leaf", segments=(Segment(4, NVLINK),))

Levels are those of the network tree (`kgwe.model.network.domains`), with two more below them, `node`, one machine, and
`nvlink`, one NVLink domain; and `cluster` above. A required level is never crossed. A preferred one is left upwards,
level by level, when nothing there holds the gang.

Ranks are numbered role by role in the order of `roles`. A segment is a group of that many consecutive ranks of a role,
counted from its first, that has to lie inside one domain of a level: a tensor-parallel group inside an NVLink domain,
say, while the groups may be anywhere the gang may be. Several segments of a role nest: 4 ranks to a node, 16 to a leaf.
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
#: one NVLink domain; a node that is in none that is known is a domain by itself
NVLINK: Final = "nvlink"
#: everything
CLUSTER: Final = "cluster"


class Strategy(enum.StrEnum):
    """How near to each other the pods of a gang go."""

    CONSOLIDATED = "Consolidated"
    """The lowest domain that holds it, the fewest leaves of that, and of those as few pairs apart as can be."""
    BALANCED = "Balanced"
    """The lowest leaf or above that holds it, evenly over all its nodes."""
    DISTRIBUTED = "Distributed"
    """Over as many domains as there are: what one failure takes away is least. For inference."""
    PACK = "Pack"
    """Into the smallest holes, wherever they are: for pods that do not talk to each other."""


class Hardware(enum.StrEnum):
    """Whether the cards of a gang are of one model."""

    PREFER_SAME = "PreferSame"
    """Of one model if any holds it, else mixed. Pods that do not talk (Pack, Distributed) are mixed at once."""
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
    """Least number it can start with; 0: all of them."""
    segments: tuple[Segment, ...] = ()

    def __post_init__(self) -> None:
        if self.replicas < 1 or not 0 <= self.min_replicas <= self.replicas:
            raise errors.Permanent(
                f"role {self.name}: {self.min_replicas}..{self.replicas} replicas; ask for at least one, and no more "
                "at least than at most"
            )
        sizes = sorted(segment.size for segment in self.segments)
        if any(size < 1 for size in sizes):
            raise errors.Permanent(f"role {self.name}: a segment has at least one rank")
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
    """All its pods are placed, or none."""

    roles: tuple[Role, ...]
    required: str = ""
    """Level that one domain of must hold all; empty: the cluster."""
    preferred: str = ""
    strategy: Strategy = Strategy.CONSOLIDATED
    hardware: Hardware = Hardware.PREFER_SAME
    """Holds for roles that name no model themselves."""
    min_network_gb_per_s: float = 0.0
    """What each node must get to the farthest other node of the gang, one direction. Unknown is too little."""
    max_nodes_per_leaf: int = 0
    """0: as many as there are."""
    max_gpus_per_leaf: int = 0
    """Shares and slices count as parts of a card; 0: as many as there are."""
    max_pods_per_node: int = 0
    """1 is anti-affinity by host name; 0: as many as fit."""
    priority: int = 0
    name: str = ""
    exposed: bool = False
    """Large or long enough that a failure is likely to hit it: kept off unreliable nodes where that costs nothing."""

    def __post_init__(self) -> None:
        if not self.roles or len({role.name for role in self.roles}) != len(self.roles):
            raise errors.Permanent("a gang has at least one role, each of a name of its own")
        limits = (self.max_nodes_per_leaf, self.max_gpus_per_leaf, self.max_pods_per_node)
        if min(self.min_network_gb_per_s, *limits) < 0:
            raise errors.Permanent("limits of a gang are not negative")

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
    def is_elastic(self) -> bool:
        return any(role.required_replicas < role.replicas for role in self.roles)

    @property
    def without_name(self) -> GangRequest:
        """The same gang without what makes no difference to where it goes."""
        return dataclasses.replace(self, name="", priority=0)

    @property
    def named_levels(self) -> tuple[str, ...]:
        """Levels that must not be left out of account, the one that has to stay whole first.

        All of the gang is inside a domain of the required level and small segments are inside large ones, so where two
        levels cross, nothing is lost by cutting the later one at the borders of the earlier.
        """
        segments = sorted((each for role in self.roles for each in role.segments), key=lambda each: -each.size)
        named = (self.required, *[segment.level for segment in segments], self.preferred)
        return tuple(dict.fromkeys(level for level in named if level))

    def with_requests(self, **changes: Any) -> GangRequest:
        """The same gang with every pod's request changed so."""
        return dataclasses.replace(self, roles=tuple(self._change_requests(changes)))

    def _change_requests(self, changes: dict[str, Any]) -> Iterator[Role]:
        for role in self.roles:
            yield dataclasses.replace(role, request=dataclasses.replace(role.request, **changes))


@dataclass(frozen=True, slots=True)
class Intent:
    """Where a gang goes in the joint plan of all gangs that wait."""

    parts: tuple[tuple[str, int], ...]
    """Leaf -> pods."""
    tight: bool
    """Into the smallest holes of its leaves, instead of onto the fewest nodes."""
    reason: str


@dataclass(frozen=True, slots=True)
class Following:
    """Gangs whose turn comes later: those that wait, then such as usually come. Where a gang goes considers them."""

    kinds: tuple[GangRequest, ...] = ()
    order: tuple[int, ...] = ()
    """Numbers of `kinds`, in the order of their turns."""
    expected: int = 0
    """How many of them, the last ones, do not wait but usually come."""
    intent: Intent | None = None
    """Where the joint plan puts the gang that these follow; None: no joint plan includes it."""

    @classmethod
    def from_gangs(cls, gangs: Iterable[GangRequest]) -> Following:
        numbers: dict[GangRequest, int] = {}
        order = [numbers.setdefault(gang.without_name, len(numbers)) for gang in gangs]
        return cls(tuple(numbers), tuple(order))


#: no gang waits and none is expected
NONE_FOLLOW: Final = Following()
