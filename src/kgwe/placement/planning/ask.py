"""The ask: a request to place one pod or many, all or none."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from kgwe.placement.gang.request import NONE_FOLLOW, Following, Hardware
from kgwe.placement.planning.fields import WORKLOAD_FIELDS, Fields

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kgwe.placement.disruption.partial_gang import PartialGang
    from kgwe.placement.fleet.node import Request
    from kgwe.placement.gang.request import GangRequest, Segment


@dataclass(frozen=True, slots=True)
class TopologyRequest:
    """How near to each other the pods must be; see `kgwe.placement.gang.request`."""

    required: str = ""
    preferred: str = ""
    segments: tuple[Segment, ...] = ()
    hardware: Hardware = Hardware.PREFER_SAME
    min_network_gb_per_s: float = 0.0
    max_nodes_per_leaf: int = 0
    max_gpus_per_leaf: int = 0
    max_pods_per_node: int = 0


@dataclass(frozen=True, slots=True)
class Ask:
    """A request for a place; `amounts` is what each of its pods takes of a node."""

    owner: str
    request: Request
    amounts: Mapping[str, int] = field(default_factory=dict)
    pods: int = 1
    #: whether `pods` (then 1) may become more where no node has that many GPUs
    divisible: bool = False
    #: ranks that are divided equally over the pods; 0: none
    ranks: int = 0
    nearness: TopologyRequest = TopologyRequest()
    strategy: str = ""
    priority: int = 0
    preemptible: bool = False
    #: creation time as the API writes it: sorts as text
    since: str = ""
    namespace: str = ""
    name: str = ""
    #: expected run time in seconds
    expected_s: float | None = None
    #: it had a place and lost it: it comes before all others of its priority
    first_claim: bool = False
    #: its pods are replicas of a service: several are spread, so that one failure hits few of them
    serves: bool = False
    #: the service that it is one replica of; replicas go to different domains where there is room
    service: str = ""
    #: roles of unequal pods; None: `pods` equal ones
    gang: GangRequest | None = None
    #: the same gang with what it prefers required: tried first
    first: GangRequest | None = None
    #: the gang it is a part of, when other pods of the gang are placed already
    partial: PartialGang | None = None
    #: node -> points of a forecast, for one pod alone; not part of the request
    hint: Mapping[str, float] = field(default_factory=dict, compare=False)
    #: gangs whose turn comes later; not part of the request
    following: Following = field(default=NONE_FOLLOW, compare=False)
    #: names of the fields it was written in, for advice what to change; not part of the request
    fields: Fields = field(default=WORKLOAD_FIELDS, compare=False)

    def sort_key(self) -> tuple[int, str, str]:
        """Queue order: higher priority, then older, then by owner so that the order is total."""
        return (-self.priority, self.since, self.owner)

    def without_identity(self) -> Ask:
        """Only what decides where it fits: of two that are equal in this, both find room or neither."""
        gang = None if self.gang is None else replace(self.gang, name="", priority=0)
        first = None if self.first is None else replace(self.first, name="", priority=0)
        return replace(
            self, owner="", since="", namespace="", name="", priority=0, preemptible=False, expected_s=None,
            first_claim=False, amounts={}, gang=gang, first=first, hint={}, following=NONE_FOLLOW,
            fields=WORKLOAD_FIELDS, service="",
        )  # fmt: skip

    def __hash__(self) -> int:
        return hash((self.owner, self.request, self.pods, self.nearness, self.strategy))
