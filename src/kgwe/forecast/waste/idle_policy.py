"""Acting on idle GPUs: when to notify an owner, and when to suspend its workload.

    watching -> notifying -> grace -> suspending -> suspended -> restored -> watching
                    |          |
                    |          +-> snoozed, while the owner wants to keep it
                    +-> notified, where the namespace wants notifications only

Time counts only while the workload is observed to be idle, at most one interval per observation. A jump of the clock,
a gap in the metrics or a restart of the optimizer therefore never shortens a wait. Unknown changes nothing and acts on
nothing. A workload whose owner restores it must be idle for twice as long before the next notification.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kgwe.forecast.waste.states import State

if TYPE_CHECKING:
    from collections.abc import Iterable


class IdleAction(enum.StrEnum):
    """What a namespace allows. Also the values of its annotation."""

    OFF = "off"
    NOTIFY = "notify"
    SUSPEND = "suspend"


class Phase(enum.StrEnum):
    """Where a workload is on its way to suspension."""

    WATCHING = "watching"
    NOTIFYING = "notifying"
    """The notification was ordered and is not confirmed yet."""
    NOTIFIED = "notified"
    GRACE = "grace"
    SNOOZED = "snoozed"
    SUSPENDING = "suspending"
    """The suspension was ordered and is not confirmed yet."""
    SUSPENDED = "suspended"
    RESTORED = "restored"


class Order(enum.StrEnum):
    """What the caller does now. Orders repeat until they are confirmed, so they must be idempotent."""

    NONE = "none"
    NOTIFY = "notify"
    SUSPEND = "suspend"


@dataclass(frozen=True, slots=True, kw_only=True)
class IdlePolicy:
    """Settings of one namespace."""

    action: IdleAction = IdleAction.OFF
    idle_after_s: float = 1800.0
    """Observed idle time before the notification."""
    grace_s: float = 1800.0
    """Observed idle time between the notification and the suspension."""
    longest_snooze_s: float = 7 * 86400.0
    interval_s: float = 30.0
    """Time between observations; one observation counts for no more."""
    most_doublings: int = 5
    """How often the idle time doubles after restores."""


@dataclass(frozen=True, slots=True)
class IdleRecord:
    """What is remembered of a workload. Stored, so that a restart continues."""

    phase: Phase = Phase.WATCHING
    idle_s: float = 0.0
    """Observed idle time without activity in between."""
    grace_s: float = 0.0
    """Observed idle time since the notification was confirmed."""
    announced_grace_s: float = 0.0
    """The grace that the notification announced."""
    keep_until_s: float | None = None
    """The last seen wish of the owner."""
    keep_seen_s: float = 0.0
    """Unix time at which it was first seen."""
    reversals: int = 0
    """Suspensions that were restored or refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """One observation of a workload."""

    state: State
    """Of all its pods together: idle only if all are."""
    now_s: float
    """Unix time."""
    elapsed_s: float
    """Since the observation before, by a clock that does not jump; 0 for the first."""
    keep_until_s: float | None = None
    """Unix time until which the owner wants to keep it; infinity if the wish cannot be read."""
    is_opted_out: bool = False
    is_suspended: bool | None = False
    """Whether KGWE has suspended its owner. None: not known."""


@dataclass(frozen=True, slots=True)
class Transition:
    """The next record, and what to do now."""

    record: IdleRecord
    before: Phase
    reason: str
    order: Order = Order.NONE

    @property
    def is_change(self) -> bool:
        return self.record.phase is not self.before


def advance(record: IdleRecord, sighting: Sighting, policy: IdlePolicy) -> Transition:
    """Return what follows from an observation."""
    if decided := _follow_suspension(record, sighting):
        return decided
    if sighting.is_opted_out or policy.action is IdleAction.OFF:
        return _reset(record, "OptedOut" if sighting.is_opted_out else "ActionOff")
    record = _note_wish(record, sighting)
    if _is_kept(record, sighting, policy):
        kept = replace(record, phase=Phase.SNOOZED, idle_s=0.0, grace_s=0.0)
        return Transition(kept, record.phase, "Kept")
    if record.phase is Phase.SNOOZED:
        return _reset(record, "KeepEnded")
    if sighting.state is State.UNKNOWN:
        return Transition(record, record.phase, "Unknown")
    if sighting.state.is_active:
        return _reset(record, "Active")
    return _count_idle(record, sighting, policy)


def _follow_suspension(record: IdleRecord, sighting: Sighting) -> Transition | None:
    """Return the transition of a workload that is suspended, or was until now; None for all others."""
    if sighting.is_suspended:
        reason = "Suspended" if record.phase is Phase.SUSPENDING else "SuspendedBefore"
        return Transition(replace(record, phase=Phase.SUSPENDED), record.phase, reason)
    if record.phase is not Phase.SUSPENDED:
        return None
    if sighting.is_suspended is None:
        return Transition(record, record.phase, "Unknown")
    restored = replace(_clear(record), phase=Phase.RESTORED, reversals=record.reversals + 1)
    return Transition(restored, record.phase, "Restored")


def _note_wish(record: IdleRecord, sighting: Sighting) -> IdleRecord:
    if sighting.keep_until_s == record.keep_until_s:
        return record
    return replace(record, keep_until_s=sighting.keep_until_s, keep_seen_s=sighting.now_s)


def _is_kept(record: IdleRecord, sighting: Sighting, policy: IdlePolicy) -> bool:
    """Whether the owner's wish holds. A wish longer than the limit ends with the limit; a new one starts over."""
    if record.keep_until_s is None:
        return False
    return sighting.now_s < min(record.keep_until_s, record.keep_seen_s + policy.longest_snooze_s)


def _clear(record: IdleRecord) -> IdleRecord:
    return replace(record, phase=Phase.WATCHING, idle_s=0.0, grace_s=0.0, announced_grace_s=0.0)


def _reset(record: IdleRecord, reason: str) -> Transition:
    return Transition(_clear(record), record.phase, reason)


def required_idle_s(record: IdleRecord, policy: IdlePolicy) -> float:
    """Return the idle time before the next notification: twice as long after each restore."""
    return policy.idle_after_s * float(2 ** min(record.reversals, policy.most_doublings))


def _count_idle(record: IdleRecord, sighting: Sighting, policy: IdlePolicy) -> Transition:
    passed_s = min(max(sighting.elapsed_s, 0.0), policy.interval_s)
    counted = replace(record, idle_s=record.idle_s + passed_s)
    match record.phase:
        case Phase.NOTIFYING:
            return Transition(counted, record.phase, "NotifyAgain", Order.NOTIFY)
        case Phase.NOTIFIED if policy.action is IdleAction.SUSPEND:
            # The owner has not heard of a suspension yet.
            return _notify(counted, record.phase)
        case Phase.GRACE | Phase.SUSPENDING:
            return _count_grace(replace(counted, grace_s=record.grace_s + passed_s), policy)
        case Phase.NOTIFIED:
            return Transition(counted, record.phase, "StillIdle")
    if counted.idle_s >= required_idle_s(record, policy):
        return _notify(counted, record.phase)
    return Transition(replace(counted, phase=Phase.WATCHING), record.phase, "Idle")


def _notify(record: IdleRecord, before: Phase) -> Transition:
    started = replace(record, phase=Phase.NOTIFYING, grace_s=0.0)
    return Transition(started, before, "IdleTooLong", Order.NOTIFY)


def _count_grace(record: IdleRecord, policy: IdlePolicy) -> Transition:
    if policy.action is not IdleAction.SUSPEND:
        return Transition(replace(record, phase=Phase.NOTIFIED), record.phase, "ActionNotify")
    if record.grace_s < max(policy.grace_s, record.announced_grace_s):
        return Transition(replace(record, phase=Phase.GRACE), record.phase, "InGrace")
    return Transition(replace(record, phase=Phase.SUSPENDING), record.phase, "GraceEnded", Order.SUSPEND)


def confirm_notified(record: IdleRecord, policy: IdlePolicy) -> Transition:
    """Return what follows when the notification was delivered. The grace begins now."""
    if record.phase is not Phase.NOTIFYING:
        return Transition(record, record.phase, "NotExpected")
    if policy.action is IdleAction.SUSPEND:
        begun = replace(record, phase=Phase.GRACE, grace_s=0.0, announced_grace_s=policy.grace_s)
        return Transition(begun, record.phase, "Notified")
    return Transition(replace(record, phase=Phase.NOTIFIED), record.phase, "Notified")


def confirm_refused(record: IdleRecord) -> Transition:
    """Return what follows when the owner cannot be suspended: it is tried again after a longer idle time."""
    if record.phase is not Phase.SUSPENDING:
        return Transition(record, record.phase, "NotExpected")
    refused = replace(_clear(record), reversals=record.reversals + 1)
    return Transition(refused, record.phase, "SuspendRefused")


def combine_states(states: Iterable[State]) -> State:
    """Return the state of a workload from the states of its pods: active if one is, idle only if all are."""
    found = list(states)
    if any(each.is_active for each in found):
        return State.BUSY
    if not found or State.UNKNOWN in found:
        return State.UNKNOWN
    return State.IDLE_HOLDING if State.IDLE_HOLDING in found else State.IDLE
