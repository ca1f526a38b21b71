"""Encodes health into the GPUNode's status and restores it after a restart of the agent.

API times have seconds, incident counts are powers of two and scores change in steps. So nothing is written for a
difference that changes no decision.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kgwe.kube.api import timestamp
from kgwe.kube.api.kgwe import gpunode
from kgwe.model.health import reliability
from kgwe.model.health.health import (
    DEFAULTS,
    LINK_DOWN,
    REPEATED_CONTAINED,
    HealthState,
    Incident,
    LinkWatch,
    Policy,
    Trouble,
    Watch,
    assess_health,
)
from kgwe.model.health.reliability import CLEAN, Record
from kgwe.model.health.xids import Action

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_DIGITS: Final = 3
_MOST_INCIDENTS: Final = 32


# --- written --------------------------------------------------------------------------------------------


def encode_health(watch: Watch) -> gpunode.GPUHealth:
    found = assess_health(watch)
    return gpunode.GPUHealth(
        state=found.state,
        reason=found.reason,
        message=found.message[:1024],
        lastXID=found.last_xid,
        lastTransitionTime=timestamp.format_time(found.since_s),
        action="" if found.action is Action.NONE else found.action,
        resetBelowJoules=None if found.latched_j is None else float(int(found.latched_j)),
    )


def encode_reliability(watch: Watch, told: float) -> gpunode.Reliability | None:
    """Return the reliability of a GPU; `told` is the last published score. None if there is nothing to report."""
    own = _demerits(watch.record, watch)
    links = tuple(
        gpunode.LinkReliability(index, demerits, _time(link.record, watch))
        for index, link in sorted((watch.links or {}).items())
        if (demerits := _demerits(link.record, watch))
    )
    if not own and not links:
        return None
    score = reliability.published_score(reliability.combined_score(watch.records(), watch.clock_s), told)
    return gpunode.Reliability(score, own, _time(watch.record, watch) if own else None, links)


def encode_node_reliability(
    watches: Iterable[Watch], own: Record, now_s: float, told: float
) -> gpunode.Reliability | None:
    """Return the score of a node with all its GPUs."""
    cards = sum(record.demerits_at(watch.clock_s) for watch in watches for record in watch.records())
    mine = own.demerits_at(now_s)
    if not cards and not mine:
        return None
    score = reliability.published_score(reliability.score(cards + mine), told)
    as_of = timestamp.format_time(own.at_s) if mine else None
    return gpunode.Reliability(score, round(own.demerits, _DIGITS) if mine else 0.0, as_of)


def encode_incidents(found: Mapping[str, Sequence[Incident]]) -> tuple[gpunode.HealthIncident, ...]:
    """Return one list of all incidents from UUID (or empty) -> incidents, latest last."""
    listed = sorted(((each.at_s, uuid, each) for uuid, several in found.items() for each in several), key=_order)
    return tuple(
        gpunode.HealthIncident(
            time=timestamp.format_time(at_s),
            reason=each.reason,
            gpu=uuid,
            xid=each.xid,
            link=each.link,
            count=1 << (each.count.bit_length() - 1),
        )
        for at_s, uuid, each in listed[-_MOST_INCIDENTS:]
    )


def _order(each: tuple[float, str, Incident]) -> tuple[float, str, str]:
    return each[0], each[1], each[2].reason


def _demerits(record: Record, watch: Watch) -> float:
    """Return the demerits at the time of the record, while any are left."""
    return round(record.demerits, _DIGITS) if record.demerits_at(watch.clock_s) else 0.0


def _time(record: Record, watch: Watch) -> str:
    """Return the wall-clock time; the monotonic clock of a watch has no leaps."""
    return timestamp.format_time(record.at_s + watch.wall_s - watch.clock_s)


# --- read back ------------------------------------------------------------------------------------------


def restore_watch(
    device: gpunode.GPUDevice,
    incidents: Iterable[gpunode.HealthIncident],
    now_s: float,
    policy: Policy = DEFAULTS,
) -> Watch:
    """Restore the watch of an earlier agent from the published status.

    The GPU counts as seen now: it has `silent_s` seconds to respond before it becomes unknown.
    """
    known = [_incident(each, now_s) for each in incidents if each.gpu == device.uuid]
    told, stored = device.health, device.reliability
    trouble = _trouble(told, known, policy)
    return Watch(
        wall_s=now_s,
        clock_s=now_s,
        heard_s=None if told.state == HealthState.UNKNOWN else now_s,
        troubles=(trouble,) if trouble else (),
        incidents=tuple(known[-policy.incidents_most :]),
        record=_record(stored.demerits, stored.asOf, now_s) if stored else CLEAN,
        links={
            each.link: LinkWatch(
                # Otherwise a link that leads nowhere could not be distinguished from one that is still down.
                is_up=False if trouble and (trouble.reason, trouble.link) == (LINK_DOWN, each.link) else None,
                record=_record(each.demerits, each.asOf, now_s),
            )
            for each in (stored.links if stored else ())
        },
        latched_j=told.resetBelowJoules,
        last_xid=told.lastXID,
        state=HealthState(told.state) if told.state in tuple(HealthState) else HealthState.UNKNOWN,
        since_s=_seconds(told.lastTransitionTime, now_s),
    )


def restore_node_record(status: gpunode.GPUNodeStatus, now_s: float) -> Record:
    """Restore the record of the node itself."""
    stored = status.reliability
    return _record(stored.demerits, stored.asOf, now_s) if stored else CLEAN


def restore_node_incidents(status: gpunode.GPUNodeStatus, now_s: float) -> tuple[Incident, ...]:
    return tuple(_incident(each, now_s) for each in status.incidents if not each.gpu)


def _trouble(told: gpunode.GPUHealth, known: Sequence[Incident], policy: Policy) -> Trouble | None:
    if told.state not in (HealthState.UNHEALTHY, HealthState.DEGRADED):
        return None
    state = HealthState(told.state)
    last = next((each for each in reversed(known) if each.reason == told.reason), None)
    xid = last.xid if last else None
    is_unhealthy = state is HealthState.UNHEALTHY
    is_latched = xid is not None or told.resetBelowJoules is not None or told.reason == REPEATED_CONTAINED
    return Trouble(
        told.reason,
        told.message.partition("; ")[0],
        state,
        Action(told.action) if told.action in tuple(Action) else Action.NONE,
        xid,
        last.link if last else None,
        until_reset=is_unhealthy and is_latched,
        quiet_s=policy.contained_quiet_s if is_unhealthy or xid is not None else policy.quiet_s,
    )


def _incident(told: gpunode.HealthIncident, now_s: float) -> Incident:
    at_s = _seconds(told.time, now_s)
    return Incident(at_s, told.reason, told.xid, told.link, told.count, seen_s=at_s)


def _record(demerits: float, as_of: str | None, now_s: float) -> Record:
    return Record(min(max(demerits, 0.0), reliability.MOST), _seconds(as_of, now_s))


def _seconds(text: str | None, now_s: float) -> float:
    """Return the time in seconds, at most now: a clock may have been ahead when it was written."""
    return min(timestamp.parse(text).timestamp(), now_s) if text else now_s
