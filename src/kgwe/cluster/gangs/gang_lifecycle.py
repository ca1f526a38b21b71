"""The life of an externally created gang: its phases, and the only transitions between them.

COLLECTING   pods are missing, or their request cannot be read; nothing is reserved for pods without a seat
QUEUED       all pods exist and none has a place: the planner has the request for the whole gang
PARTIAL      some pods have places and others do not: the planner has the request for the missing ones
PLACED       every pod has a seat or a node
AWAITING     seats are reserved for pods that their owner creates again (recovery, drain)
RELEASED     its pods were not bound in time: their seats were released, and it is not planned before a retry
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final

from kgwe import errors

if TYPE_CHECKING:
    from collections.abc import Mapping


class GangPhase(enum.StrEnum):
    COLLECTING = "Collecting"
    QUEUED = "Queued"
    PARTIAL = "Partial"
    PLACED = "Placed"
    AWAITING = "Awaiting"
    RELEASED = "Released"


class GangEvent(enum.StrEnum):
    #: pods are missing, or what they ask for cannot be planned
    FOUND_INCOMPLETE = "FoundIncomplete"
    #: a plan for the whole gang was requested
    WHOLE_REQUESTED = "WholeRequested"
    #: a plan for the pods without a place was requested
    REST_REQUESTED = "RestRequested"
    #: no pod lacks a place
    FOUND_PLACED = "FoundPlaced"
    #: the planner reserved seats, and its pods have them
    PLAN_ASSIGNED = "PlanAssigned"
    #: the plan could not be carried out; its seats were given back
    PLAN_FAILED = "PlanFailed"
    #: seats are reserved for pods to come: they were moved by recovery, or their pods were drained
    SEATS_KEPT = "SeatsKept"
    #: no pods came for the reserved seats
    SEATS_GIVEN_UP = "SeatsGivenUp"
    #: seats of unbound pods were released
    SEATS_RELEASED = "SeatsReleased"
    #: it may be planned again
    RETRIED = "Retried"


# What a look at its pods may find, whatever was found before, and what may happen to its seats.
_PLANNED: Final[Mapping[GangEvent, GangPhase]] = {
    GangEvent.FOUND_INCOMPLETE: GangPhase.COLLECTING,
    GangEvent.WHOLE_REQUESTED: GangPhase.QUEUED,
    GangEvent.REST_REQUESTED: GangPhase.PARTIAL,
    GangEvent.FOUND_PLACED: GangPhase.PLACED,
    GangEvent.PLAN_ASSIGNED: GangPhase.PLACED,
    GangEvent.PLAN_FAILED: GangPhase.COLLECTING,
    GangEvent.SEATS_KEPT: GangPhase.AWAITING,
    GangEvent.SEATS_RELEASED: GangPhase.RELEASED,
}

TRANSITIONS: Final[Mapping[GangPhase, Mapping[GangEvent, GangPhase]]] = {
    GangPhase.COLLECTING: {**_PLANNED, GangEvent.SEATS_GIVEN_UP: GangPhase.COLLECTING},
    GangPhase.QUEUED: {**_PLANNED, GangEvent.SEATS_GIVEN_UP: GangPhase.QUEUED},
    GangPhase.PARTIAL: {**_PLANNED, GangEvent.SEATS_GIVEN_UP: GangPhase.PARTIAL},
    GangPhase.PLACED: {**_PLANNED, GangEvent.SEATS_GIVEN_UP: GangPhase.PLACED},
    GangPhase.AWAITING: {**_PLANNED, GangEvent.SEATS_GIVEN_UP: GangPhase.PLACED},
    # Neither planned nor queued before a retry; seats of its bound pods may still be moved or kept.
    GangPhase.RELEASED: {
        GangEvent.SEATS_KEPT: GangPhase.RELEASED,
        GangEvent.SEATS_GIVEN_UP: GangPhase.RELEASED,
        GangEvent.SEATS_RELEASED: GangPhase.RELEASED,
        GangEvent.RETRIED: GangPhase.COLLECTING,
    },
}


def next_phase(phase: GangPhase, event: GangEvent) -> GangPhase:
    """The phase after the event; InvariantBroken if the event cannot happen in this phase."""
    following = TRANSITIONS[phase].get(event)
    if following is None:
        raise errors.InvariantBroken(f"a gang in phase {phase} cannot take {event}")
    return following
