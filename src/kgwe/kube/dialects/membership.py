"""What a pod declares about the gang it belongs to, in any dialect."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from kgwe import errors

if TYPE_CHECKING:
    from kgwe.kube.api import core
    from kgwe.placement.gang.request import Hardware, Segment, Strategy

#: scheduling gate of pods that wait for the plan of their gang
PLAN_GATE: Final = "kgwe.nvidia.io/plan"

#: size of a segment that is all of its role: its pods lie inside one domain, wherever the other roles are
ALL: Final = 0


class Key(NamedTuple):
    """A gang. Two gangs of one name may exist, described in different kinds of objects."""

    namespace: str
    kind: str
    """What it is described by, with its API group: `PodGroup.scheduling.x-k8s.io`."""
    name: str

    @property
    def title(self) -> str:
        """The name for users, the same in every dialect."""
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a gang is not placed, and what to do about it."""

    words: str
    waits: bool = False
    """Whether an expected event solves it; otherwise a user has to change something."""


class Unreadable(errors.Permanent):
    """What the objects say cannot be read or done. Raised and caught inside this package: it becomes a Problem."""

    def __init__(self, words: str, *, waits: bool = False) -> None:
        super().__init__(words)
        self.problem = Problem(words, waits)


@dataclass(frozen=True, slots=True)
class Size:
    """How many pods a gang has."""

    least: int
    """The gang does not start with fewer."""
    most: int = 0
    """0: not specified; as many as there are."""


@dataclass(frozen=True, slots=True)
class TopologyRequest:
    """How close the pods should be to each other. Levels are those of this cluster's network."""

    required: str = ""
    preferred: str = ""
    segments: tuple[Segment, ...] = ()
    """Of the pod's role; see ALL."""
    strategy: Strategy | None = None
    hardware: Hardware | None = None
    min_network_gb_per_s: float = 0.0
    """One direction."""
    preferred_domain: str = ""
    """Name of a domain that is tried first."""
    exclusive: str = ""
    """Level at which no two such gangs share a domain. The pods also have an affinity that enforces it; a gang request
    cannot."""
    together: str = ""
    """Roles that name the same share the domain of an ALL segment."""


@dataclass(frozen=True, slots=True)
class Followers:
    """Pods that are created only once this one has a node."""

    count: int
    pod: core.Pod
    """One of them, as it will be."""
    role: str = ""
    """Empty: that of this one."""
    segments: tuple[Segment, ...] | None = None
    """None: those of this one."""


@dataclass(frozen=True, slots=True)
class Membership:
    """A pod's place in its gang."""

    key: Key
    dialect: str
    size: Size | None = None
    """None: not known (`problem` says why)."""
    roles: tuple[tuple[str, int], ...] = ()
    """Every role there is and the fewest pods of it, in the order of ranks; empty: not specified."""
    role: str = ""
    index: int | None = None
    """Its number within the role; None: by name."""
    block: str = ""
    """Which segment it belongs to, where segments have names; empty: by index."""
    wish: TopologyRequest = TopologyRequest()
    priority: int | None = None
    """Of the gang as such; None: that of its pods."""
    timeout_s: int | None = None
    """How long its pods may hold room while others of it do not."""
    followers: Followers | None = None
    done: int | None = None
    """Pods of the same owner that have succeeded and that `size` still counts; None: only pods can tell."""
    problem: Problem | None = None
