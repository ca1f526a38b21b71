"""What the leader does for externally created gangs; a standby does nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kgwe.cluster.registry.announcer import ignore

if TYPE_CHECKING:
    from collections.abc import Callable

    from kgwe.kube.api import core
    from kgwe.placement.planning.ask import Ask
    from kgwe.placement.refusal import Refusal


def _no_refusal(_owner: str) -> Refusal | None:
    return None


@dataclass(frozen=True, slots=True)
class LeaderActions:
    """Given to the gangs when a term of leadership begins."""

    #: plan this gang or pod
    request_plan: Callable[[Ask], None] = ignore
    #: the owner no longer needs a plan
    withdraw_request: Callable[[str], None] = ignore
    #: (owner, pod, number): write the seat on the pod
    assign_seat: Callable[[str, core.Pod, int], None] = ignore
    #: remove the gate of a pod that needs no seat
    remove_gate: Callable[[core.Pod], None] = ignore
    #: why the planner refuses the owner
    find_refusal: Callable[[str], Refusal | None] = _no_refusal
    #: call this in a moment
    call_soon: Callable[[Callable[[], None]], object] = ignore
    #: call this after so many seconds
    call_later: Callable[[float, Callable[[], None]], object] = ignore


STANDBY = LeaderActions()


class Leadership:
    """The actions of the present term, shared by the parts that handle gangs."""

    def __init__(self) -> None:
        self._actions = STANDBY

    @property
    def actions(self) -> LeaderActions:
        return self._actions

    def begin(self, actions: LeaderActions) -> None:
        """A term of leadership begins."""
        self._actions = actions

    def end(self) -> None:
        """This replica is a standby from now on."""
        self._actions = STANDBY
