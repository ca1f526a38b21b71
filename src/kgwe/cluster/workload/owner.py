"""Owners of seats and reservations, and the text under which the ledger, the planner and annotations know them.

Only this module writes and parses the text. Other code uses the types.

    WorkloadOwner       <uid>                          seats of a workload
    PodOwner            <uid>                          a plain pod
    ExternalGangOwner   gang:<namespace>/<kind>/<name> seats of an externally created gang
    Replacement         lost:<owner>                   the request of an owner for members it lost
    Reservation         claim:<owner>                  room that is cleared for an owner
    Nomination          nominated:<uid>                room that kube-scheduler clears for a pod
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kgwe.kube.dialects import Key

_GANG: Final = "gang:"
_REPLACEMENT: Final = "lost:"
_RESERVATION: Final = "claim:"
_NOMINATION: Final = "nominated:"
_DEVICES: Final = "claim/"


@dataclass(frozen=True, slots=True)
class WorkloadOwner:
    """A GPUWorkload of either API group."""

    uid: str

    @property
    def text(self) -> str:
        return self.uid


@dataclass(frozen=True, slots=True)
class PodOwner:
    """A pod that belongs neither to a workload nor to a gang."""

    uid: str

    @property
    def text(self) -> str:
        return self.uid


@dataclass(frozen=True, slots=True)
class ExternalGangOwner:
    """A gang, or a queued pod, that KGWE did not create."""

    gang: Key

    @property
    def text(self) -> str:
        return f"{_GANG}{self.gang.namespace}/{self.gang.kind}/{self.gang.name}"


Owner = WorkloadOwner | ExternalGangOwner | PodOwner


@dataclass(frozen=True, slots=True)
class Replacement:
    """The request of an owner for places of members it lost."""

    owner: str

    @property
    def text(self) -> str:
        return f"{_REPLACEMENT}{self.owner}"


@dataclass(frozen=True, slots=True)
class Reservation:
    """Room that preemption or recovery clears for an owner."""

    owner: str

    @property
    def text(self) -> str:
        return f"{_RESERVATION}{self.owner}"


@dataclass(frozen=True, slots=True)
class Nomination:
    """Room that kube-scheduler clears for a pod."""

    pod: str

    @property
    def text(self) -> str:
        return f"{_NOMINATION}{self.pod}"


def parse_gang(text: str) -> ExternalGangOwner | None:
    """The gang of this text; None: it is another kind of owner."""
    if not text.startswith(_GANG):
        return None
    namespace, _, rest = text.removeprefix(_GANG).partition("/")
    kind, _, name = rest.partition("/")
    return ExternalGangOwner(Key(namespace, kind, name))


def parse_replacement(text: str) -> Replacement | None:
    """The replacement of this text; None: it is no replacement."""
    return Replacement(text.removeprefix(_REPLACEMENT)) if text.startswith(_REPLACEMENT) else None


def requester_of(text: str) -> str:
    """Text of the owner for which a request is made: the owner itself, or the one that lost members."""
    replacement = parse_replacement(text)
    return text if replacement is None else replacement.owner


def owner_of_holder(text: str) -> str:
    """Text of the owner of a holder of resources: for `<owner>/<number>`, a seat, its owner; else the text."""
    owner, slash, number = text.rpartition("/")
    return owner if slash and number.isdigit() else text


def device_claim_text(uid: str) -> str:
    """The holder of the devices of a ResourceClaim."""
    return f"{_DEVICES}{uid}"
