"""The way from an idle workload to a suspended one, and back."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from kgwe.forecast.waste import idle_policy
from kgwe.forecast.waste.idle_annotations import (
    ACTION,
    AFTER,
    GRACE,
    KEEP_UNTIL,
    is_opted_out,
    parse_time,
    read_keep_until,
    read_policy,
)
from kgwe.forecast.waste.idle_policy import IdleAction, IdlePolicy, IdleRecord, Order, Phase, Sighting, advance
from kgwe.forecast.waste.states import State

POLICY = IdlePolicy(action=IdleAction.SUSPEND, idle_after_s=120.0, grace_s=90.0)
NOW_S = 1_000_000.0


def sighting(state=State.IDLE, **values):
    return Sighting(**{"state": state, "now_s": NOW_S, "elapsed_s": 30.0, **values})


def watch(record, times, policy=POLICY, **values):
    """Advance several times; notifications are delivered at once."""
    orders = []
    for _ in range(times):
        found = advance(record, sighting(**values), policy)
        record = found.record
        orders.append(found.order)
        if found.order is Order.NOTIFY:
            record = idle_policy.confirm_notified(record, policy).record
    return record, orders


IN_GRACE = IdleRecord(phase=Phase.GRACE, idle_s=120.0, grace_s=60.0, announced_grace_s=90.0)
SUSPENDED = IdleRecord(phase=Phase.SUSPENDED)


def test_an_idle_workload_is_notified_then_waits_then_is_suspended():
    record, orders = watch(IdleRecord(), 7)
    assert orders == [Order.NONE] * 3 + [Order.NOTIFY] + [Order.NONE] * 2 + [Order.SUSPEND]
    assert record.phase is Phase.SUSPENDING
    done = advance(record, sighting(is_suspended=True), POLICY)
    assert (done.record.phase, done.reason) == (Phase.SUSPENDED, "Suspended")


def test_the_grace_begins_when_the_notification_is_confirmed():
    record = IdleRecord(phase=Phase.NOTIFYING, idle_s=120.0)
    for _ in range(100):
        found = advance(record, sighting(), POLICY)
        assert found.order is Order.NOTIFY
        record = found.record
    assert idle_policy.confirm_notified(record, POLICY).record.grace_s == 0.0


def test_activity_ends_the_grace():
    found = advance(IN_GRACE, sighting(State.BUSY), POLICY)
    assert (found.record, found.reason) == (IdleRecord(), "Active")


def test_unknown_neither_resets_nor_acts():
    record = replace(IN_GRACE, grace_s=90.0)
    found = advance(record, sighting(State.UNKNOWN), POLICY)
    assert (found.record, found.order) == (record, Order.NONE)


def test_a_wish_to_keep_wins_over_an_ordered_suspension():
    found = advance(replace(IN_GRACE, phase=Phase.SUSPENDING), sighting(keep_until_s=NOW_S + 1), POLICY)
    assert (found.record.phase, found.order) == (Phase.SNOOZED, Order.NONE)


def test_after_the_wish_all_begins_again():
    snoozed = advance(IN_GRACE, sighting(keep_until_s=NOW_S + 100), POLICY).record
    ended = advance(snoozed, sighting(keep_until_s=NOW_S + 100, now_s=NOW_S + 100), POLICY)
    assert (ended.record.phase, ended.record.idle_s, ended.reason) == (Phase.WATCHING, 0.0, "KeepEnded")


def test_a_wish_for_too_long_ends_with_the_limit_and_a_new_one_starts_over():
    forever = {"keep_until_s": math.inf}
    record = advance(IdleRecord(), sighting(**forever), POLICY).record
    late = NOW_S + POLICY.longest_snooze_s
    assert advance(record, sighting(now_s=late - 1, **forever), POLICY).record.phase is Phase.SNOOZED
    record = advance(record, sighting(now_s=late, **forever), POLICY).record
    assert record.phase is Phase.WATCHING
    assert advance(record, sighting(now_s=late + 1, **forever), POLICY).record.phase is Phase.WATCHING
    again = advance(record, sighting(now_s=late + 1, keep_until_s=late + 60), POLICY)
    assert again.record.phase is Phase.SNOOZED


@pytest.mark.parametrize("elapsed_s", [3600.0, 1e12, -3600.0])
def test_a_clock_jump_counts_for_one_interval_at_most(elapsed_s):
    found = advance(IN_GRACE, sighting(elapsed_s=elapsed_s), POLICY)
    assert found.record.grace_s <= IN_GRACE.grace_s + POLICY.interval_s


def test_a_shorter_grace_does_not_apply_to_an_announced_one():
    assert advance(IN_GRACE, sighting(elapsed_s=0.0), replace(POLICY, grace_s=1.0)).order is Order.NONE


@pytest.mark.parametrize(
    ("policy", "values", "reason"),
    [(replace(POLICY, action=IdleAction.OFF), {}, "ActionOff"), (POLICY, {"is_opted_out": True}, "OptedOut")],
)
def test_opting_out_ends_everything(policy, values, reason):
    found = advance(replace(IN_GRACE, grace_s=1000.0), sighting(**values), policy)
    assert (found.record.phase, found.order, found.reason) == (Phase.WATCHING, Order.NONE, reason)


def test_where_only_notifications_are_wanted_nothing_is_suspended():
    record, orders = watch(IdleRecord(), 200, replace(POLICY, action=IdleAction.NOTIFY))
    assert record.phase is Phase.NOTIFIED
    assert orders.count(Order.NOTIFY) == 1
    assert Order.SUSPEND not in orders


def test_a_policy_that_becomes_stricter_notifies_again_first():
    record, _ = watch(IdleRecord(), 10, replace(POLICY, action=IdleAction.NOTIFY))
    found = advance(record, sighting(), POLICY)
    assert (found.record.phase, found.order) == (Phase.NOTIFYING, Order.NOTIFY)


def test_a_policy_that_becomes_milder_stops_the_grace():
    found = advance(replace(IN_GRACE, grace_s=1000.0), sighting(), replace(POLICY, action=IdleAction.NOTIFY))
    assert (found.record.phase, found.order) == (Phase.NOTIFIED, Order.NONE)


def test_a_restored_workload_may_be_idle_twice_as_long():
    found = advance(SUSPENDED, sighting(State.UNKNOWN), POLICY)
    assert (found.record.phase, found.record.reversals, found.reason) == (Phase.RESTORED, 1, "Restored")
    _, orders = watch(found.record, 8)
    assert orders == [Order.NONE] * 7 + [Order.NOTIFY]


def test_a_suspension_that_cannot_be_seen_stays_as_it_is():
    assert advance(SUSPENDED, sighting(is_suspended=None), POLICY).record == SUSPENDED


def test_a_refused_suspension_is_tried_again_later():
    found = idle_policy.confirm_refused(replace(IN_GRACE, phase=Phase.SUSPENDING))
    assert (found.record.phase, found.record.idle_s, found.record.reversals) == (Phase.WATCHING, 0.0, 1)
    assert idle_policy.confirm_refused(IN_GRACE).record == IN_GRACE


def test_a_late_confirmation_changes_nothing():
    assert idle_policy.confirm_notified(IdleRecord(), POLICY).record == IdleRecord()


@pytest.mark.parametrize(
    ("states", "state"),
    [
        ([State.IDLE, State.IDLE], State.IDLE),
        ([State.IDLE, State.IDLE_HOLDING], State.IDLE_HOLDING),
        ([State.IDLE, State.UNKNOWN], State.UNKNOWN),
        ([State.UNKNOWN, State.BURSTY], State.BUSY),
        ([], State.UNKNOWN),
    ],
)
def test_a_workload_is_idle_only_if_all_its_pods_are(states, state):
    assert idle_policy.combine_states(states) is state


class TestAnnotations:
    def test_a_namespace_opts_in_by_label_or_annotation_and_the_annotation_wins(self):
        policy, problems = read_policy({ACTION: "notify"}, {ACTION: "suspend", AFTER: "1h", GRACE: "30m"}, IdlePolicy())
        assert (policy.action, policy.idle_after_s, policy.grace_s) == (IdleAction.SUSPEND, 3600.0, 1800.0)
        assert problems == ()
        assert read_policy({ACTION: "notify"}, {}, IdlePolicy())[0].action is IdleAction.NOTIFY
        assert read_policy({}, {}, IdlePolicy())[0].action is IdleAction.OFF

    @pytest.mark.parametrize("bad", [{ACTION: "delete"}, {GRACE: "1s"}, {GRACE: "soon"}, {AFTER: "-5m"}, {AFTER: ""}])
    def test_a_value_that_cannot_be_read_turns_the_action_off(self, bad):
        policy, problems = read_policy({ACTION: "suspend"}, bad, IdlePolicy())
        assert policy.action is IdleAction.OFF
        assert len(problems) == 1
        assert next(iter(bad)) in problems[0]

    def test_optimize_false_opts_out_in_both_domains(self):
        assert is_opted_out({}, {"gpu-autoscaler.io/optimize": "False"})
        assert is_opted_out({"kgwe.nvidia.io/optimize": "false"})
        assert not is_opted_out({"kgwe.nvidia.io/optimize": "true"}, {})

    @pytest.mark.parametrize(
        ("text", "value"),
        [
            ("1970-01-01T00:00:00Z", 0.0),
            ("2026-11-18T08:00:00Z", 1_794_988_800.0),
            ("2026-11-18T10:00:00+02:00", 1_794_988_800.0),
            ("2024-02-29t23:59:60.5z", 1_709_251_200.0),
            ("2023-02-29T00:00:00Z", None),
            ("2026-13-01T00:00:00Z", None),
            ("0000-01-01T00:00:00Z", None),
            ("2026-11-18T24:00:00Z", None),
            ("2026-11-18", None),
            ("8h", None),
            ("", None),
        ],
    )
    def test_times_are_read_as_rfc_3339(self, text, value):
        assert parse_time(text) == value

    def test_the_latest_wish_counts_and_an_unreadable_one_keeps_the_workload(self):
        early, late = {KEEP_UNTIL: "2026-11-18T08:00:00Z"}, {KEEP_UNTIL: "2026-11-19T08:00:00Z"}
        assert read_keep_until({}, {}) == (None, "")
        assert read_keep_until(late, early) == (parse_time(late[KEEP_UNTIL]), "")
        value, problem = read_keep_until({KEEP_UNTIL: "tomorrow"}, early)
        assert value == math.inf
        assert "tomorrow" in problem
