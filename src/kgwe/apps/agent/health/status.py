"""Health as the GPUNode tells it, and back: what an agent wrote is all that the next one needs.

Times of the API have seconds, counts of incidents are powers of two and scores change in steps, so that nothing is
written again for a difference that changes no decision.
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
    verdict,
)
from kgwe.model.health.reliability import CLEAN, Record
from kgwe.model.health.xids import Action

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_DIGITS: Final = 3
_MOST_INCIDENTS: Final = 32


# --- written --------------------------------------------------------------------------------------------


def encode_health(watch: Watch) -> gpunode.GPUHealth:
    found = verdict(watch)
    return gpunode.GPUHealth(
        state=found.state,
        reason=found.reason,
        message=found.message[:1024],
        lastXID=found.last_xid,
        lastTransitionTime=timestamp.of(found.since_s),
        action="" if found.action is Action.NONE else found.action,
        resetBelowJoules=None if found.latched_j is None else float(int(found.latched_j)),
    )


def encode_reliability(watch: Watch, told: float) -> gpunode.Reliability | None:
    """The past of a card, `told` being the score that was published last; None when there is nothing to tell."""
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
    """The score of a node with all its cards."""
    cards = sum(record.demerits_at(watch.clock_s) for watch in watches for record in watch.records())
    mine = own.demerits_at(now_s)
    if not cards and not mine:
        return None
    score = reliability.published_score(reliability.score(cards + mine), told)
    as_of = timestamp.of(own.at_s) if mine else None
    return gpunode.Reliability(score, round(own.demerits, _DIGITS) if mine else 0.0, as_of)


def encode_incidents(found: Mapping[str, Sequence[Incident]]) -> tuple[gpunode.HealthIncident, ...]:
    """UUID (or empty) -> its incidents, as one list, the latest last."""
    listed = sorted(((each.at_s, uuid, each) for uuid, several in found.items() for each in several), key=_order)
    return tuple(
        gpunode.HealthIncident(
            time=timestamp.of(at_s),
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
    """As of the time of the record, as long as any are left."""
    return round(record.demerits, _DIGITS) if record.demerits_at(watch.clock_s) else 0.0


def _time(record: Record, watch: Watch) -> str:
    """On the wall: the clock of a watch leaves leaps out."""
    return timestamp.of(record.at_s + watch.wall_s - watch.clock_s)


# --- read back ------------------------------------------------------------------------------------------


def restore_watch(
    device: gpunode.GPUDevice,
    incidents: Iterable[gpunode.HealthIncident],
    now_s: float,
    policy: Policy = DEFAULTS,
) -> Watch:
    """The watch that an agent before this one kept, as far as it was written down.

    The card counts as heard of now: it has `silent_s` to answer before it is called unknown.
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
                # Otherwise one that leads nowhere could not be told from one that is still down.
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
    """What the node itself has to answer for."""
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
    """Never later than now: what was written by a clock that was ahead happened just now."""
    return min(timestamp.parse(text).timestamp(), now_s) if text else now_s
