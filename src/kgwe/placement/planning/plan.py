"""The plan: a seat for every pod of an ask, and what can be planned on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from kgwe.model.units import amounts as resources

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kgwe.model.network.domains import Tree
    from kgwe.placement.fleet.snapshot import Grant, Snapshot
    from kgwe.placement.gang.plan import GangPlan
    from kgwe.placement.planning.ask import Ask
    from kgwe.placement.planning.gang_planner import GangPlanner
    from kgwe.placement.pod.engine import Engine
    from kgwe.placement.pod.fit import Fitter


@dataclass(frozen=True, slots=True)
class Seat:
    """The node and the devices of one pod."""

    node: str
    #: mask of whole GPUs, or of the one it has a share of
    gpus: int = 0
    #: (GPU, start) of MIG slices
    slices: tuple[tuple[int, int], ...] = ()

    @classmethod
    def from_grant(cls, node: str, grant: Grant) -> Seat:
        return cls(node, grant.whole_or_shared, tuple((gpu, placed.start) for gpu, placed in grant.slices))


@dataclass(frozen=True)
class Plan:
    """Every pod has a seat, by rank; nothing is booked."""

    ask: Ask
    seats: tuple[Seat, ...]
    grants: tuple[Grant, ...]
    #: what each pod takes of its node, after dividing
    amounts: Mapping[str, int]
    score: float
    parts: Mapping[str, float]
    #: predicted ring through its GPUs; None when there is nothing to join, 0 when not known
    gb_per_s: float | None
    level: str = ""
    domain: str = ""
    #: whether the preferred level holds
    preferred_met: bool = True
    #: why it is there, for people
    message: str = ""
    gang: GangPlan | None = None
    #: number of its first seat; more than 0 when it completes a gang that has some already
    start: int = 0
    #: where pods differ: seat by seat what each takes; empty: `amounts`
    by_seat: tuple[Mapping[str, int], ...] = ()
    #: whose the seats are, where only some pods of a gang get one
    pods: tuple[str, ...] = ()

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(seat.node for seat in self.seats))

    @property
    def amounts_by_seat(self) -> list[Mapping[str, int]]:
        """Seat by seat what the pod takes of its node."""
        return [*self.by_seat] if self.by_seat else [self.amounts] * len(self.seats)

    @property
    def gpus_per_pod(self) -> int:
        return self.amounts.get(resources.GPU, 0)


class FleetView(Protocol):
    """What can be planned on: the live fleet, or a scratch copy of it."""

    @property
    def snapshot(self) -> Snapshot: ...
    @property
    def fitter(self) -> Fitter: ...
    @property
    def engine(self) -> Engine: ...
    @property
    def gangs(self) -> GangPlanner: ...
    @property
    def tree(self) -> Tree: ...
