"""What `kgwe explain` says, as one value: the same in text, JSON and YAML."""

from __future__ import annotations

import msgspec


class _Said(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """Fields at their default are left out of JSON and YAML."""


class Seat(_Said, frozen=True):
    """One pod's place."""

    node: str
    cards: tuple[int, ...] = ()
    gpus: tuple[str, ...] = ()
    """UUIDs of the cards, or of the slices."""
    pod: str = ""
    phase: str = ""


class Placed(_Said, frozen=True):
    """Where it is, and why there."""

    seats: tuple[Seat, ...]
    domain: str = ""
    score: float | None = None
    parts: dict[str, float] = {}
    gb_per_s: float | None = None
    why: tuple[str, ...] = ()
    """Level by level, as it was found when it was placed."""


class NodeCount(_Said, frozen=True):
    """Nodes that refuse a pod for the same reason."""

    verdict: str
    count: int
    examples: tuple[str, ...] = ()
    role: str = ""
    text: str = ""
    """The cause, in the words of the condition."""


class Best(_Said, frozen=True):
    """The nearest place."""

    level: str
    domain: str
    room: int
    needed: int
    short: int


class Change(_Said, frozen=True):
    """One change that would start it."""

    kind: str
    text: str
    stops: tuple[str, ...] = ()


class Holder(_Said, frozen=True):
    """A workload that holds GPUs of the nearest place."""

    name: str
    gpus: float
    until: str = ""
    """When it is expected to end; empty: it declared no duration."""
    scarce: str = ""
    """What it holds of the resource that is short, if that is not GPUs: `30 cores`."""


class Waiting(_Said, frozen=True):
    """Why it has no place, planned on the cluster as it was just listed."""

    reason: str
    message: str
    binding: str = ""
    hopeless: bool = False
    """Whether it will not start by waiting."""
    fix: str = ""
    """What to change where no node meets a requirement."""
    best: Best | None = None
    levels: tuple[str, ...] = ()
    nodes: tuple[NodeCount, ...] = ()
    changes: tuple[Change, ...] = ()
    holders: tuple[Holder, ...] = ()
    """Workloads that hold GPUs of the nearest place, the largest first."""
    free_by: str = ""
    """When enough nodes of the nearest place are expected to be empty; empty: not known."""


class Turn(_Said, frozen=True):
    """Its position among waiting workloads that could start."""

    place: int
    of: int
    ahead: tuple[str, ...] = ()


class Gang(_Said, frozen=True):
    """The gang it belongs to."""

    name: str
    dialect: str
    members: int
    seated: int = 0
    missing: int = 0
    problem: str = ""
    waits_for: tuple[str, ...] = ()
    """Pods that have no seat yet."""


class Word(_Said, frozen=True):
    """A condition of the object."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    since: str = ""


class Happened(_Said, frozen=True):
    """An Event of the object."""

    type: str
    reason: str
    message: str
    count: int = 1
    last: str = ""


class Explanation(_Said, frozen=True):
    kind: str
    namespace: str
    name: str
    state: str
    """Waiting, Suspended, Placed, Running, Succeeded, Failed, or NotForKGWE."""
    summary: str
    asked: tuple[str, ...] = ()
    placed: Placed | None = None
    would_go: Placed | None = None
    """Where it would go if it were planned now."""
    waiting: Waiting | None = None
    cuts: tuple[str, ...] = ()
    """Cards that it may be waiting for: held back to be cut, or being cut."""
    gang: Gang | None = None
    turn: Turn | None = None
    estimated_start: tuple[str, str] | None = None
    """Half of such work starts by the first, nine of ten by the second."""
    said: tuple[Word, ...] = ()
    events: tuple[Happened, ...] = ()
    """Where nothing can be planned: what happened to it, oldest first."""
    problems: tuple[str, ...] = ()
    """What is wrong, and what to do about it."""
    warnings: tuple[str, ...] = ()
    """What could not be read."""


class Gpus(msgspec.Struct, frozen=True):
    """The whole GPUs of schedulable nodes."""

    nodes: int
    cards: int
    free: int


class WhatIf(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """The result of a what-if scenario."""

    changes: tuple[str, ...]
    """The assumptions."""
    gpus: Gpus
    """The GPUs with all changes, before anything is placed."""
    results: tuple[Explanation, ...]
    displaced: tuple[str, ...] = ()
    """Workloads on removed nodes."""
    ignored: tuple[str, ...] = ()
    """Objects that do not affect placement."""
    warnings: tuple[str, ...] = ()

    @property
    def all_start(self) -> bool:
        return all(each.would_go is not None for each in self.results)
