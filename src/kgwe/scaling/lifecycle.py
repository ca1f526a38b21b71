"""The life of a node that is bought: an explicit table of stages and signals.

A stage follows from facts that outlive the process: the launch record, the cloud's list and the Node object. So
`advance(Stage.REQUESTED, facts)` finds the same stage after a restart that a process without a restart has reached.

    Requested ─► Launching ─► Joined ─► GPUReady ◄─► InUse
        │            │           │          └────┬─────┘
        ▼            └─► Broken ◄┘ ◄─────────────┤
       Gone ◄── Removing ◄──┴──────── Draining ◄─┘

A node is ready when its GPUs are: it offers what was promised, its MIG layout is applied and its start-up taint is
gone. Until then it counts as capacity that comes, so that nothing is bought twice.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kgwe import errors

if TYPE_CHECKING:
    from collections.abc import Mapping


class Stage(enum.StrEnum):
    """Where in its life a bought node is."""

    REQUESTED = "Requested"
    """The launch is written down. The cloud may not know of it yet."""
    LAUNCHING = "Launching"
    """The cloud has the instance. Its node has not joined."""
    JOINED = "Joined"
    """Its node exists and does not offer all GPUs yet."""
    GPU_READY = "GPUReady"
    IN_USE = "InUse"
    BROKEN = "Broken"
    """It did not join in time, its GPUs did not come in time, or GPUs failed. It is replaced."""
    DRAINING = "Draining"
    """It is cordoned, and its pods leave. This can be undone."""
    REMOVING = "Removing"
    """The cloud was asked to take it back. This cannot be undone."""
    GONE = "Gone"


class Signal(enum.StrEnum):
    """What happened to a node."""

    LISTED = "Listed"
    REFUSED = "Refused"
    REGISTERED = "Registered"
    UNREGISTERED = "Unregistered"
    COMPLETE = "Complete"
    INCOMPLETE = "Incomplete"
    OCCUPIED = "Occupied"
    EMPTIED = "Emptied"
    LATE = "Late"
    DEGRADED = "Degraded"
    DRAIN_ORDERED = "DrainOrdered"
    DRAIN_UNDONE = "DrainUndone"
    REMOVAL_ORDERED = "RemovalOrdered"
    VANISHED = "Vanished"


_S, _E = Stage, Signal
#: Every legal step. A pair that is missing never happens.
TRANSITIONS: Final[Mapping[tuple[Stage, Signal], Stage]] = {
    (_S.REQUESTED, _E.LISTED): _S.LAUNCHING,
    (_S.REQUESTED, _E.REFUSED): _S.GONE,
    (_S.REQUESTED, _E.VANISHED): _S.GONE,
    (_S.LAUNCHING, _E.REGISTERED): _S.JOINED,
    (_S.LAUNCHING, _E.LATE): _S.BROKEN,
    (_S.LAUNCHING, _E.REMOVAL_ORDERED): _S.REMOVING,
    (_S.LAUNCHING, _E.VANISHED): _S.GONE,
    (_S.JOINED, _E.UNREGISTERED): _S.LAUNCHING,
    (_S.JOINED, _E.COMPLETE): _S.GPU_READY,
    (_S.JOINED, _E.LATE): _S.BROKEN,
    (_S.JOINED, _E.DEGRADED): _S.BROKEN,
    (_S.JOINED, _E.DRAIN_ORDERED): _S.DRAINING,
    (_S.JOINED, _E.REMOVAL_ORDERED): _S.REMOVING,
    (_S.JOINED, _E.VANISHED): _S.GONE,
    (_S.GPU_READY, _E.UNREGISTERED): _S.LAUNCHING,
    (_S.GPU_READY, _E.INCOMPLETE): _S.JOINED,
    (_S.GPU_READY, _E.OCCUPIED): _S.IN_USE,
    (_S.GPU_READY, _E.LATE): _S.BROKEN,
    (_S.GPU_READY, _E.DEGRADED): _S.BROKEN,
    (_S.GPU_READY, _E.DRAIN_ORDERED): _S.DRAINING,
    (_S.GPU_READY, _E.REMOVAL_ORDERED): _S.REMOVING,
    (_S.GPU_READY, _E.VANISHED): _S.GONE,
    (_S.IN_USE, _E.UNREGISTERED): _S.LAUNCHING,
    (_S.IN_USE, _E.INCOMPLETE): _S.JOINED,
    (_S.IN_USE, _E.EMPTIED): _S.GPU_READY,
    (_S.IN_USE, _E.LATE): _S.BROKEN,
    (_S.IN_USE, _E.DEGRADED): _S.BROKEN,
    (_S.IN_USE, _E.DRAIN_ORDERED): _S.DRAINING,
    (_S.IN_USE, _E.REMOVAL_ORDERED): _S.REMOVING,
    (_S.IN_USE, _E.VANISHED): _S.GONE,
    (_S.BROKEN, _E.REGISTERED): _S.JOINED,
    (_S.BROKEN, _E.UNREGISTERED): _S.LAUNCHING,
    (_S.BROKEN, _E.COMPLETE): _S.GPU_READY,
    (_S.BROKEN, _E.DRAIN_ORDERED): _S.DRAINING,
    (_S.BROKEN, _E.REMOVAL_ORDERED): _S.REMOVING,
    (_S.BROKEN, _E.VANISHED): _S.GONE,
    (_S.DRAINING, _E.UNREGISTERED): _S.LAUNCHING,
    (_S.DRAINING, _E.DRAIN_UNDONE): _S.JOINED,
    (_S.DRAINING, _E.REMOVAL_ORDERED): _S.REMOVING,
    (_S.DRAINING, _E.VANISHED): _S.GONE,
    (_S.REMOVING, _E.VANISHED): _S.GONE,
}

#: Stages in which a node counts as capacity that comes.
IN_FLIGHT: Final = frozenset({Stage.REQUESTED, Stage.LAUNCHING, Stage.JOINED})
#: Stages in which a node counts against the limits of its pool.
EXISTING: Final = frozenset(Stage) - {Stage.GONE}


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """How long a node may take. `settle_s`: how long the cloud's list may miss a new instance."""

    join_s: float = 600.0
    gpu_ready_s: float = 900.0
    settle_s: float = 60.0
    degraded_s: float = 300.0
    """How long GPUs may be missing on a node that was complete before it counts as broken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """What is known of one node that was requested. All of it outlives the process."""

    age_s: float = 0.0
    """Seconds since the launch."""
    refused: bool = False
    """The cloud refused the launch: nothing was bought."""
    listed: bool = False
    """The cloud lists the instance and does not call it gone."""
    was_listed: bool = False
    """A node, a record or an earlier list shows that the cloud had it."""
    has_node: bool = False
    complete: bool = False
    """It is Ready, offers all that was promised, and its start-up taint is gone."""
    was_complete: bool = False
    """It was complete once; written on the Node."""
    degraded_s: float = 0.0
    """Seconds for which a node that was complete lacks GPUs."""
    has_pods: bool = False
    """Pods other than those of DaemonSets run on it."""
    drain: bool = False
    """The Node carries the mark of a drain."""
    removal: bool = False
    """The removal was ordered: by the mark on the Node, or the cloud says so."""


def read_signal(stage: Stage, facts: NodeFacts, times: Times) -> Signal | None:  # noqa: PLR0911 - one line per rule
    """Return what happened to a node in this stage; None: nothing."""
    if stage is Stage.GONE:
        return None
    if _is_gone(stage, facts, times):
        return Signal.REFUSED if facts.refused and stage is Stage.REQUESTED else Signal.VANISHED
    if stage is Stage.REQUESTED:
        return Signal.LISTED if facts.listed else None
    if stage is Stage.REMOVING:
        return None
    if facts.removal:
        return Signal.REMOVAL_ORDERED
    if not facts.has_node or stage is Stage.LAUNCHING:
        return _read_joining(stage, facts, times)
    if stage is Stage.DRAINING:
        return None if facts.drain else Signal.DRAIN_UNDONE
    if facts.drain:
        return Signal.DRAIN_ORDERED
    return _read_readiness(stage, facts, times)


def _read_joining(stage: Stage, facts: NodeFacts, times: Times) -> Signal | None:
    """Return what happened to an instance that has no Node, or had none."""
    if facts.has_node:
        return Signal.REGISTERED
    is_late = facts.age_s > times.join_s
    if stage is Stage.LAUNCHING:
        return Signal.LATE if is_late else None
    return None if is_late and stage is Stage.BROKEN else Signal.UNREGISTERED


def _read_readiness(stage: Stage, facts: NodeFacts, times: Times) -> Signal | None:
    """Return what the GPUs and pods of a node that has joined say."""
    if _is_broken(facts, times):
        if stage is Stage.BROKEN:
            return None
        return Signal.DEGRADED if facts.was_complete else Signal.LATE
    if facts.complete or facts.was_complete:
        if stage in {Stage.JOINED, Stage.BROKEN}:
            return Signal.COMPLETE
        if facts.has_pods and stage is Stage.GPU_READY:
            return Signal.OCCUPIED
        return Signal.EMPTIED if not facts.has_pods and stage is Stage.IN_USE else None
    return Signal.REGISTERED if stage is Stage.BROKEN else _fall_back(stage)


def _fall_back(stage: Stage) -> Signal | None:
    """Return that a node counts as not complete again, where it did."""
    return Signal.INCOMPLETE if stage in {Stage.GPU_READY, Stage.IN_USE} else None


def _is_broken(facts: NodeFacts, times: Times) -> bool:
    if facts.complete:
        return False
    if facts.was_complete:
        return facts.degraded_s > times.degraded_s
    return facts.age_s > times.join_s + times.gpu_ready_s


def _is_gone(stage: Stage, facts: NodeFacts, times: Times) -> bool:
    if facts.listed:
        return False
    if facts.refused and stage is Stage.REQUESTED:
        return True
    # A list may lag behind a launch; what was seen before is gone when it is missing.
    return facts.was_listed or facts.age_s > times.settle_s


def advance(stage: Stage, facts: NodeFacts, times: Times) -> tuple[Stage, ...]:
    """Return the stages that follow from the facts, beginning with the present one."""
    path = [stage]
    while (signal := read_signal(path[-1], facts, times)) is not None:
        following = TRANSITIONS.get((path[-1], signal))
        if following is None:
            raise errors.InvariantBroken(f"a node in stage {path[-1]} cannot get the signal {signal}")
        path.append(following)
        if len(path) > 2 * len(Stage):
            raise errors.InvariantBroken(f"the stages of a node go round in circles: {', '.join(path)}")
    return tuple(path)


def find_stage(facts: NodeFacts, times: Times) -> Stage:
    """Return the stage of a node of which only the facts are known, as after a restart."""
    return advance(Stage.REQUESTED, facts, times)[-1]
