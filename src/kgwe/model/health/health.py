"""The health of a GPU: its troubles, their severity, and what an operator should do.

Watch               everything known about the health of one GPU, from events, readings and links
Trouble             one thing that is wrong with it now, and how it ends
HealthAssessment    the result: state, reason, action

Unhealthy   out of service: workloads on it are moved elsewhere
Degraded    in service, but something is wrong: long workloads avoid it if they can
Unknown     no readings. It stays in service: workloads on it stay
Healthy     readings arrive, and nothing is wrong
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kgwe.model.health.reliability import CLEAN, Record
from kgwe.model.health.xids import Action, XidClass

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class HealthState(enum.StrEnum):
    """Whether a GPU may be used."""

    HEALTHY = "Healthy"
    DEGRADED = "Degraded"
    UNHEALTHY = "Unhealthy"
    UNKNOWN = "Unknown"


#: from best to worst
_BADNESS: Final = (HealthState.HEALTHY, HealthState.DEGRADED, HealthState.UNKNOWN, HealthState.UNHEALTHY)
_DEMAND: Final = (Action.NONE, Action.RESTART_APPLICATION, Action.RESET, Action.RESTART_NODE, Action.REPLACE)

#: the state of a healthy GPU after one error
STATES: Final[Mapping[XidClass, HealthState]] = {
    XidClass.FATAL: HealthState.UNHEALTHY,
    XidClass.CONTAINED: HealthState.DEGRADED,
    XidClass.APPLICATION: HealthState.HEALTHY,
    XidClass.INFORMATIONAL: HealthState.HEALTHY,
}

#: reasons without a trouble
NOT_READ: Final = "NotReadYet"
SILENT: Final = "DriverSilent"
LINK_DOWN: Final = "NVLinkDown"
#: contained errors that repeat until the GPU is condemned
REPEATED_CONTAINED: Final = "RepeatedContainedErrors"


def is_in_service(state: str) -> bool:
    """Whether a GPU of this state may be used; Unknown may."""
    return state != HealthState.UNHEALTHY


@dataclass(frozen=True, slots=True)
class Policy:
    """Thresholds and times. Times count only while the GPU is watched."""

    longest_step_s: float = 15.0
    """The most that one step of the clock counts: a leap or a suspended night neither heals nor condemns."""
    silent_s: float = 60.0
    """Without an answer for this long, its state is Unknown."""
    quiet_s: float = 300.0
    """A trouble with heat, links or slow memory is over when it was not seen for this long."""
    contained_quiet_s: float = 3600.0
    """The same for contained errors, uncorrected memory and a GPU that was lost and is back."""
    hot_s: float = 60.0
    """At the slowdown temperature for this long, it is overheated …"""
    cool_by_c: int = 10
    """… until it is this much cooler."""
    window_s: float = 3600.0
    contained_most: int = 3
    """After this many contained errors in the window, the GPU is out of service until it is reset."""
    flaps_most: int = 4
    """A link that changes this often in the window flaps."""
    corrected_most: float = 1000.0
    """Corrected memory errors per window."""
    link_window_s: float = 600.0
    link_errors_most: float = 100.0
    """Replays, recoveries and CRC errors of one link per link window."""
    same_s: float = 60.0
    """A repetition within this time is the same incident."""
    incidents_most: int = 16
    troubles_most: int = 16


DEFAULTS: Final = Policy()


@dataclass(frozen=True, slots=True)
class Trouble:
    """One thing that is wrong with a GPU now."""

    reason: str
    message: str
    state: HealthState
    action: Action = Action.NONE
    xid: int | None = None
    link: int | None = None
    until_reset: bool = False
    """Only a reset ends it; otherwise it ends when it was not seen for `quiet_s`."""
    quiet_s: float = 0.0
    seen_s: float = 0.0
    """When it was last seen, on the clock of `Watch.listened_s`."""
    again_s: float = 0.0
    """When it was last counted as an incident, on the clock of `Watch.clock_s`."""

    @property
    def key(self) -> tuple[str, int, int]:
        return self.reason, -1 if self.xid is None else self.xid, -1 if self.link is None else self.link

    @property
    def rank(self) -> tuple[int, int, str, int, int]:
        """Sort key: the worst first, independent of the order of events."""
        return -_BADNESS.index(self.state), -_DEMAND.index(self.action), *self.key


@dataclass(frozen=True, slots=True)
class Incident:
    """Something that went wrong once, or several times in a row."""

    at_s: float
    reason: str
    xid: int | None = None
    link: int | None = None
    count: int = 1
    seen_s: float = 0.0
    """The same on the clock of `Watch.clock_s`."""

    @property
    def key(self) -> tuple[str, int | None, int | None]:
        return self.reason, self.xid, self.link


@dataclass(frozen=True, slots=True)
class LinkWatch:
    """Everything known about one NVLink."""

    is_up: bool | None = None
    errors: int | None = None
    """The sum of its counters when last read."""
    bucket: float = 0.0
    """Recent errors; drains at the tolerated rate."""
    drained_s: float = 0.0
    flaps_s: tuple[float, ...] = ()
    record: Record = CLEAN


@dataclass(frozen=True, slots=True)
class Watch:
    """Everything known about the health of one GPU."""

    wall_s: float
    """The wall clock at the last step."""
    clock_s: float
    """The same without leaps."""
    listened_s: float = 0.0
    """Total time with readings: the only time that heals."""
    heard_s: float | None = None
    """When it last answered, by `clock_s`."""
    troubles: tuple[Trouble, ...] = ()
    """The worst first."""
    incidents: tuple[Incident, ...] = ()
    """The latest last; bounded."""
    record: Record = CLEAN
    """Its past, without that of its links."""
    links: Mapping[int, LinkWatch] | None = None
    contained_s: tuple[float, ...] = ()
    hot_s: float | None = None
    """Since when it is too hot, by `listened_s`."""
    corrected: int | None = None
    uncorrected: int | None = None
    bucket: float = 0.0
    """Recent corrected errors."""
    drained_s: float = 0.0
    energy_j: float | None = None
    """Only rises while the driver is loaded; a lower value means that the GPU was reset."""
    doubted_j: float | None = None
    """A lower value that was read once; accepted when the next reading agrees."""
    latched_j: float | None = None
    """The energy when it was last condemned until a reset."""
    last_xid: int | None = None
    xid_s: float = 0.0
    state: HealthState = HealthState.UNKNOWN
    since_s: float = 0.0
    """When the state last changed, by the clock on the wall."""

    @classmethod
    def new(cls, now_s: float) -> Watch:
        return cls(wall_s=now_s, clock_s=now_s, since_s=now_s, links={})

    def records(self) -> Iterable[Record]:
        """Its past and that of its links."""
        yield self.record
        for each in (self.links or {}).values():
            yield each.record


@dataclass(frozen=True, slots=True)
class HealthAssessment:
    """The state that follows from a watch, with its reason."""

    state: HealthState
    reason: str
    message: str
    action: Action
    since_s: float
    last_xid: int | None
    latched_j: float | None
    """While nothing but a reset helps: the GPU's energy counter when that began; None otherwise or not known."""


def assess_health(watch: Watch) -> HealthAssessment:
    """The state of the GPU, and the worst trouble as its reason."""
    worst = watch.troubles[0] if watch.troubles else None
    reason, message, action = "", "", Action.NONE
    if worst is not None and (watch.state == worst.state):
        reason, message, action = worst.reason, worst.message, worst.action
        if others := len(watch.troubles) - 1:
            message += f"; {others} more"
    elif watch.state is HealthState.UNKNOWN and watch.heard_s is None:
        reason, message = NOT_READ, "the GPU has not been read yet"
    elif watch.state is HealthState.UNKNOWN:
        reason, message = SILENT, "the driver does not answer for the GPU"
    is_latched = any(trouble.until_reset for trouble in watch.troubles)
    return HealthAssessment(
        state=watch.state,
        reason=reason,
        message=message,
        action=action,
        since_s=watch.since_s,
        last_xid=watch.last_xid,
        latched_j=watch.latched_j if is_latched else None,
    )


def state_of(watch: Watch, policy: Policy = DEFAULTS) -> HealthState:
    """The state that follows from the troubles and the time without readings."""
    worst = watch.troubles[0].state if watch.troubles else HealthState.HEALTHY
    if worst is HealthState.UNHEALTHY:
        return worst
    if watch.heard_s is None or watch.clock_s - watch.heard_s > policy.silent_s:
        return HealthState.UNKNOWN
    return worst
