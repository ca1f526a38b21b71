"""State transitions of a GPU's health: one pure step per event, reading, check of the links, or reset.

    watch = on_xid(watch, 79, now_s)            at once
    watch = on_reading(watch, reading, now_s)   every few seconds; nothing else heals
    watch = on_links(watch, links, now_s)       whenever the machine is read
    watch = on_silence(watch, now_s)            when the driver did not answer
    watch = on_reset(watch, now_s)              the GPU was reset, or its driver reloaded

Guarantees, whatever the clock does:

    a trouble begins at once (heat: after a while) and ends only after a quiet time with readings
    a fatal error stays until a reset; a restarted energy counter also shows a reset
    silence never heals: a GPU without readings is Unknown until it answers
    a step of the clock counts `longest_step_s` at most, and a step back counts nothing
    events of one moment give the same state and reason in any order
    the stored state is bounded
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from kgwe.model.gpu.driver_data import Throttle
from kgwe.model.health.health import (
    DEFAULTS,
    LINK_DOWN,
    REPEATED_CONTAINED,
    STATES,
    HealthState,
    Incident,
    LinkWatch,
    Policy,
    Trouble,
    Watch,
    state_of,
)
from kgwe.model.health.reliability import CLEAN, Weight
from kgwe.model.health.xids import Action, XidClass, look_up

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kgwe.model.gpu.driver_data import Faults, Link, LinkErrors, Reading
    from kgwe.model.health.xids import Xid

#: demerits by class
WEIGHTS: Final = {
    XidClass.FATAL: Weight.FATAL,
    XidClass.CONTAINED: Weight.CONTAINED,
    XidClass.APPLICATION: Weight.APPLICATION,
    XidClass.INFORMATIONAL: Weight.NONE,
}
_CLASSES: Final = tuple(XidClass)
# Readings of a counter that only rises are compared with this slack, in joules.
_SLACK_J: Final = 1.0


# --- events ----------------------------------------------------------------------------------------------


def on_xid(watch: Watch, number: int, now_s: float, policy: Policy = DEFAULTS) -> Watch:
    """The driver reported an XID error on the GPU."""
    xid = look_up(number)
    watch = _set_last_xid(_advance(watch, now_s, policy), xid)
    weight = WEIGHTS[xid.xid_class]
    message = f"XID {number}: {xid.words}"
    state = STATES[xid.xid_class]
    if state is HealthState.UNHEALTHY:
        trouble = Trouble(xid.reason, message, state, xid.action, number, until_reset=True)
        watch = _add_trouble(watch, trouble, weight, policy)
    elif state is HealthState.DEGRADED:
        trouble = Trouble(xid.reason, message, state, xid.action, number, quiet_s=policy.contained_quiet_s)
        watch = _count_contained(_add_trouble(watch, trouble, weight, policy), policy)
    else:
        watch = _record_incident(watch, Incident(watch.wall_s, xid.reason, number), weight, policy)
    return _update_state(watch, policy)


def on_reading(watch: Watch, reading: Reading, now_s: float, policy: Policy = DEFAULTS) -> Watch:
    """A reading of the GPU. A reading without any value is no answer."""
    watch = _advance(watch, now_s, policy)
    if reading.is_lost:
        message = "the driver has lost the GPU"
        trouble = Trouble(
            "GPULost", message, HealthState.UNHEALTHY, Action.RESTART_NODE, quiet_s=policy.contained_quiet_s
        )
        return _update_state(_add_trouble(watch, trouble, Weight.FATAL, policy), policy)
    if not _has_values(reading):
        return _update_state(watch, policy)
    watch = _count_listening(watch, policy)
    watch = _check_energy(watch, reading.energy_j)
    watch = _check_temperature(watch, reading, policy)
    watch = _check_memory(watch, reading.faults, policy)
    for errors in reading.faults.links:
        watch = _check_link_errors(watch, errors, policy)
    watch = _check_links_down(watch, policy)
    return _update_state(_remove_healed(watch), policy)


def on_links(watch: Watch, links: Iterable[Link], now_s: float, policy: Policy = DEFAULTS) -> Watch:
    """Which NVLinks are up. A link that was never up may be unconnected: that is no trouble."""
    watch = _advance(watch, now_s, policy)
    for link in links:
        known = _get_link(watch, link.index)
        if link.is_up is None or link.is_up == known.is_up or not (link.is_up or known.is_up):
            continue
        has_turned = known.is_up is not None
        if has_turned:
            flaps = (*_keep_since(known.flaps_s, watch.clock_s - policy.window_s), watch.clock_s)[-policy.flaps_most :]
            known = replace(known, flaps_s=flaps)
        watch = _with_link(watch, link.index, replace(known, is_up=link.is_up))
        if has_turned and len(known.flaps_s) >= policy.flaps_most:
            trouble = _make_degraded("NVLinkFlapping", f"NVLink {link.index} comes and goes", policy, link.index)
            watch = _add_trouble(watch, trouble, Weight.CONTAINED, policy)
    return _update_state(_check_links_down(watch, policy), policy)


def on_silence(watch: Watch, now_s: float, policy: Policy = DEFAULTS) -> Watch:
    """The driver did not answer, or was not asked: time passes and heals nothing."""
    return _update_state(_advance(watch, now_s, policy), policy)


def on_reset(watch: Watch, now_s: float, policy: Policy = DEFAULTS) -> Watch:
    """The GPU was reset: its troubles are over unless they show again, and it must answer first."""
    return _update_state(_clear_after_reset(_advance(watch, now_s, policy)), policy)


# --- time ------------------------------------------------------------------------------------------------


def _advance(watch: Watch, now_s: float, policy: Policy) -> Watch:
    step = min(max(now_s - watch.wall_s, 0.0), policy.longest_step_s)
    return replace(watch, wall_s=now_s, clock_s=watch.clock_s + step)


def _count_listening(watch: Watch, policy: Policy) -> Watch:
    """It has answered: the time since the previous answer counts, if that was not long ago."""
    since = 0.0 if watch.heard_s is None else watch.clock_s - watch.heard_s
    gained = since if since <= policy.silent_s else 0.0
    return replace(watch, heard_s=watch.clock_s, listened_s=watch.listened_s + gained)


def _update_state(watch: Watch, policy: Policy) -> Watch:
    state = state_of(watch, policy)
    return watch if state == watch.state else replace(watch, state=state, since_s=watch.wall_s)


def _keep_since(times: Sequence[float], since_s: float) -> tuple[float, ...]:
    return tuple(each for each in times if each > since_s)


# --- troubles --------------------------------------------------------------------------------------------


def _add_trouble(watch: Watch, trouble: Trouble, weight: float, policy: Policy) -> Watch:
    """The trouble is present now; a new one, or one not seen for a while, is an incident."""
    before = next((each for each in watch.troubles if each.key == trouble.key), None)
    is_new = before is None or (
        trouble.xid is not None and not trouble.until_reset and watch.clock_s - before.again_s >= policy.same_s
    )
    again_s = watch.clock_s if before is None or is_new else before.again_s
    now = replace(trouble, seen_s=watch.listened_s, again_s=again_s)
    others = [each for each in watch.troubles if each.key != trouble.key]
    kept = tuple(sorted((now, *others), key=lambda each: each.rank)[: policy.troubles_most])
    if trouble.until_reset:
        if any(each.until_reset for each in watch.troubles):
            weight = Weight.NONE  # one failure shows in several ways, and is charged once
        else:
            watch = replace(watch, latched_j=watch.energy_j)
    watch = replace(watch, troubles=kept)
    if not is_new:
        return watch
    return _record_incident(watch, Incident(watch.wall_s, trouble.reason, trouble.xid, trouble.link), weight, policy)


def _make_degraded(reason: str, message: str, policy: Policy, link: int | None = None) -> Trouble:
    return Trouble(reason, message, HealthState.DEGRADED, link=link, quiet_s=policy.quiet_s)


def _remove_healed(watch: Watch) -> Watch:
    left = tuple(each for each in watch.troubles if each.until_reset or watch.listened_s - each.seen_s < each.quiet_s)
    return watch if len(left) == len(watch.troubles) else replace(watch, troubles=left)


def _count_contained(watch: Watch, policy: Policy) -> Watch:
    """One more contained error; too many of them condemn the GPU."""
    times = _keep_since(watch.contained_s, watch.clock_s - policy.window_s)
    # One failure of memory causes several errors at once.
    if not times or watch.clock_s - times[-1] >= policy.same_s:
        times = (*times, watch.clock_s)[-policy.contained_most :]
    watch = replace(watch, contained_s=times)
    if len(times) < policy.contained_most:
        return watch
    message = f"{len(times)} contained errors within {policy.window_s / 3600:g} h"
    trouble = Trouble(REPEATED_CONTAINED, message, HealthState.UNHEALTHY, Action.RESET, until_reset=True)
    return _add_trouble(watch, trouble, Weight.FATAL, policy)


def _record_incident(watch: Watch, incident: Incident, weight: float, policy: Policy) -> Watch:
    """Record the incident, and charge it to the GPU or to its link."""
    past, link = watch.incidents, incident.link
    last = next((each for each in reversed(past) if each.key == incident.key), None)
    if last is not None and watch.clock_s - last.seen_s < policy.same_s:
        again = replace(last, count=last.count + 1)
        return replace(watch, incidents=tuple(again if each is last else each for each in past))
    new = replace(incident, seen_s=watch.clock_s)
    watch = replace(watch, incidents=(*past, new)[-policy.incidents_most :])
    if link is None:
        return replace(watch, record=watch.record.charge(weight, watch.clock_s))
    known = _get_link(watch, link)
    return _with_link(watch, link, replace(known, record=known.record.charge(weight, watch.clock_s)))


def _set_last_xid(watch: Watch, xid: Xid) -> Watch:
    """The most severe XID of one moment, so that their order does not matter."""
    if watch.last_xid is not None and watch.clock_s == watch.xid_s:
        known = look_up(watch.last_xid)
        xid = min(known, xid, key=lambda each: (_CLASSES.index(each.xid_class), each.number))
    return replace(watch, last_xid=xid.number, xid_s=watch.clock_s)


# --- resets ----------------------------------------------------------------------------------------------


def _clear_after_reset(watch: Watch) -> Watch:
    """The state after a reset: no troubles, no counters; the history is kept."""
    links = {
        index: LinkWatch(is_up=each.is_up, record=each.record)
        for index, each in (watch.links or {}).items()
        if each.is_up is not None or each.record != CLEAN
    }
    return replace(
        watch, troubles=(), heard_s=None, contained_s=(), hot_s=None, corrected=None, uncorrected=None, bucket=0.0,
        energy_j=None, doubted_j=None, latched_j=None, links=links,
    )  # fmt: skip


def _check_energy(watch: Watch, energy_j: float | None) -> Watch:
    """A restarted counter shows that the GPU was reset; a single odd reading shows nothing."""
    if energy_j is None:
        return watch
    known = [each for each in (watch.energy_j, watch.latched_j) if each is not None]
    if not known or energy_j >= max(known) - _SLACK_J:
        watch = replace(watch, energy_j=energy_j, doubted_j=None)
        is_latched = any(each.until_reset for each in watch.troubles)
        return replace(watch, latched_j=energy_j) if is_latched and watch.latched_j is None else watch
    if watch.doubted_j is None or energy_j < watch.doubted_j - _SLACK_J:
        return replace(watch, doubted_j=energy_j)
    heard_s = watch.heard_s
    return replace(_clear_after_reset(watch), energy_j=energy_j, heard_s=heard_s)


# --- instruments -----------------------------------------------------------------------------------------


def _has_values(reading: Reading) -> bool:
    known = (
        reading.util, reading.memory_util, reading.memory_used_mib, reading.memory_total_mib, reading.power_w,
        reading.energy_j, reading.gpu_c, reading.memory_c, reading.sm_mhz, reading.memory_mhz, reading.throttle,
    )  # fmt: skip
    return any(each is not None for each in known)


def _check_temperature(watch: Watch, reading: Reading, policy: Policy) -> Watch:
    is_hot = reading.throttle is not None and Throttle.THERMAL_HARDWARE in reading.throttle
    is_cool = not is_hot
    if reading.gpu_c is not None and reading.slowdown_c is not None:
        is_hot = is_hot or reading.gpu_c >= reading.slowdown_c
        is_cool = not is_hot and reading.gpu_c <= reading.slowdown_c - policy.cool_by_c
    is_known = any(each.reason == "Overheated" for each in watch.troubles)
    since = (watch.listened_s if watch.hot_s is None else watch.hot_s) if is_hot else None
    watch = replace(watch, hot_s=since)
    has_lasted = since is not None and watch.listened_s - since >= policy.hot_s
    if not has_lasted and (is_cool or not is_known):
        return watch
    at = "" if reading.slowdown_c is None else f" ({reading.slowdown_c} °C)"
    return _add_trouble(
        watch, _make_degraded("Overheated", f"as hot as where it slows itself down{at}", policy), Weight.SLOW, policy
    )


def _check_memory(watch: Watch, faults: Faults, policy: Policy) -> Watch:
    rising = _counter_rise(watch.corrected, faults.ecc_corrected)
    failing = _counter_rise(watch.uncorrected, faults.ecc_uncorrected)
    bucket = (
        _drain_bucket(watch.bucket, watch.clock_s - watch.drained_s, policy.corrected_most, policy.window_s) + rising
    )
    watch = replace(
        watch,
        corrected=watch.corrected if faults.ecc_corrected is None else faults.ecc_corrected,
        uncorrected=watch.uncorrected if faults.ecc_uncorrected is None else faults.ecc_uncorrected,
        bucket=bucket,
        drained_s=watch.clock_s,
    )
    if bucket >= policy.corrected_most:
        message = "memory is corrected far more often than usual"
        watch = _add_trouble(watch, _make_degraded("CorrectedECCErrors", message, policy), Weight.SLOW, policy)
    if failing:
        message = "memory could not be corrected"
        quiet_s = policy.contained_quiet_s
        trouble = Trouble("UncorrectedECCErrors", message, HealthState.DEGRADED, Action.RESET, quiet_s=quiet_s)
        watch = _count_contained(_add_trouble(watch, trouble, Weight.CONTAINED, policy), policy)
    for trouble, weight in _check_pending(faults, policy):
        watch = _add_trouble(watch, trouble, weight, policy)
    return watch


def _check_pending(faults: Faults, policy: Policy) -> Iterable[tuple[Trouble, float]]:
    """Troubles that the GPU reports about its memory."""
    quiet_s = policy.quiet_s
    if faults.has_remap_failed:
        words = "a bad row of memory could not be replaced"
        yield (
            Trouble("RowRemapFailed", words, HealthState.UNHEALTHY, Action.REPLACE, quiet_s=quiet_s),
            Weight.FATAL,
        )
    if faults.is_remap_pending:
        words = "a bad row of memory will be replaced at the next reset"
        yield (
            Trouble("RowRemapPending", words, HealthState.DEGRADED, Action.RESET, quiet_s=quiet_s),
            Weight.CONTAINED,
        )
    if faults.is_retirement_pending:
        words = "a bad page of memory will be retired at the next reset"
        yield (
            Trouble("PageRetirementPending", words, HealthState.DEGRADED, Action.RESET, quiet_s=quiet_s),
            Weight.CONTAINED,
        )


def _counter_rise(before: int | None, now: int | None) -> int:
    """How far a counter rose; 0 if it was unknown or restarted."""
    return 0 if before is None or now is None else max(now - before, 0)


def _drain_bucket(level: float, passed_s: float, most: float, window_s: float) -> float:
    return max(level - max(passed_s, 0.0) * most / window_s, 0.0)


# --- links -----------------------------------------------------------------------------------------------


def _get_link(watch: Watch, index: int) -> LinkWatch:
    return (watch.links or {}).get(index, LinkWatch())


def _with_link(watch: Watch, index: int, link: LinkWatch) -> Watch:
    return replace(watch, links={**(watch.links or {}), index: link})


def _check_links_down(watch: Watch, policy: Policy) -> Watch:
    """Links are checked less often than readings: a link counts as down until it is checked again."""
    down = [index for index, link in (watch.links or {}).items() if link.is_up is False]
    for index in down:
        trouble = _make_degraded(LINK_DOWN, f"NVLink {index} is down", policy, index)
        watch = _add_trouble(watch, trouble, Weight.CONTAINED, policy)
    return watch


def _check_link_errors(watch: Watch, errors: LinkErrors, policy: Policy) -> Watch:
    counted = [each for each in (errors.replays, errors.recoveries, errors.crc) if each is not None]
    if not counted:
        return watch
    known, now = _get_link(watch, errors.index), sum(counted)
    bucket = _drain_bucket(
        known.bucket, watch.clock_s - known.drained_s, policy.link_errors_most, policy.link_window_s
    ) + _counter_rise(known.errors, now)
    watch = _with_link(watch, errors.index, replace(known, errors=now, bucket=bucket, drained_s=watch.clock_s))
    if bucket < policy.link_errors_most:
        return watch
    message = f"NVLink {errors.index} repeats far more than usual"
    return _add_trouble(watch, _make_degraded("NVLinkErrors", message, policy, errors.index), Weight.SLOW, policy)
