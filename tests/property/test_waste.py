"""Properties of the waste detector: unknown never acts, and no wait is ever shortened."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tests.support.builders.usage_windows import STEPS, WindowBuilder

from kgwe.forecast.waste import findings, idle_policy, states, verdicts
from kgwe.forecast.waste.alternatives import Needs
from kgwe.forecast.waste.idle_policy import IdleAction, IdlePolicy, IdleRecord, Order, Phase, Sighting
from kgwe.forecast.waste.recommend import Prices, recommend, sum_savings
from kgwe.forecast.waste.rules import Rules
from kgwe.forecast.waste.states import State

RULES = Rules()
NAN = float("nan")
share = st.one_of(st.just(0.0), st.just(NAN), st.floats(0, 1, width=32), st.floats(allow_nan=True, width=32))
series = st.lists(share, min_size=STEPS, max_size=STEPS)
rows = st.lists(
    st.tuples(
        st.sampled_from("pqrs"),
        st.sampled_from(["GPU-0", "GPU-1", "GPU-2"]),
        st.sampled_from(["", "1", "2"]),
        series,
        st.sampled_from(["", "g"]),
    ),
    max_size=6,
)


def build(drawn):
    builder = WindowBuilder()
    for pod, uuid, instance, activity, gang in drawn:
        builder.add(pod, activity, uuid=uuid, instance=instance, profile="1g.10gb" if instance else "", gang=gang)
    return builder


@given(rows)
def test_a_finding_needs_enough_samples_and_the_last_one(drawn):
    builder = build(drawn)
    window = builder.build()
    for found in findings.judge_window(window, builder.pods.values(), RULES):
        for pod in found.pods:
            mine = np.stack([window.activity[row] for row in window.find_rows(pod)])
            known = (mine >= 0) & (mine <= 1.01)
            # A device with two containers has two rows; the better one counts.
            assert known[:, -1].any()
            assert known.sum(axis=1).max() >= RULES.min_coverage * STEPS


@given(rows, st.integers(0, STEPS - 1), st.integers(1, STEPS))
def test_removing_samples_never_creates_a_waste_finding(drawn, start, length):
    """A gap may hide waste and never invents it: an idle finding after it was possible only if all else was idle."""
    builder = build(drawn)
    window = builder.build()
    window.activity[:, start : start + length] = np.nan
    gapped = {each.pod: each for each in verdicts.judge_pods(window, builder.pods.values(), RULES)}
    hidden = min(start + length, STEPS) - start
    if hidden > (1 - RULES.min_coverage) * STEPS or start + length >= STEPS:
        assert all(each.state is State.UNKNOWN for each in gapped.values())


@given(series, st.integers(2, 5))
def test_a_pod_is_accused_only_if_the_whole_shared_gpu_is_idle(activity, sharers):
    builder = WindowBuilder()
    for number in range(sharers):
        builder.add(f"p{number}", activity, uuid="GPU-x", sharers=sharers)
    found = findings.judge_window(builder.build(), builder.pods.values(), RULES)
    if found:
        assert len(found) == sharers
        known = [each for each in activity if 0 <= each <= 1.01]
        assert max(known) <= RULES.noise_floor


@given(rows, st.permutations(range(6)))
def test_the_order_of_rows_changes_no_state(drawn, order):
    builder = build(drawn)
    shuffled = build([drawn[i] for i in order if i < len(drawn)])
    for pods in (builder.pods, shuffled.pods):
        # The last row of a pod decides its gang; both must know the same.
        pods.update({key: builder.pods[key] for key in pods})
    one, two = (
        {each.pod: (each.state, each.activity) for each in verdicts.judge_pods(b.build(), b.pods.values(), RULES)}
        for b in (builder, shuffled)
    )
    assert {pod: state for pod, (state, _) in one.items()} == {pod: state for pod, (state, _) in two.items()}


@given(
    st.lists(
        st.tuples(st.floats(0, 1), st.floats(0, 1), st.floats(0, 81_000), st.integers(1, 8), st.booleans()), max_size=8
    ),
    st.booleans(),
)
def test_no_recommendation_saves_more_than_the_pod_costs(pods, answers):
    prices = Prices({"H100-SXM5-80GB": 3.0, "L4": 0.5, "A30": 1.0}, {"H100-SXM5-80GB": 1.0})
    made, cost = [], 0.0
    for number, (base, peak, memory, devices, preallocates) in enumerate(pods):
        builder = WindowBuilder()
        for _ in range(devices):
            builder.add(f"p{number}", [base, max(base, peak)] * 10, memory_used_mib=memory)
        (verdict,) = verdicts.judge_pods(builder.build(), builder.pods.values(), RULES)
        found = recommend(verdict, Needs(is_preallocator=preallocates), prices, RULES, lambda _: answers)
        assert found.hourly_saving is None or 0 < found.hourly_saving <= (found.hourly_cost or 0.0) + 1e-9
        assert 0 <= found.confidence <= 1
        if found.alternative and found.alternative.changes_size and not found.is_advice_only:
            assert answers
        made.append(found)
        cost += found.hourly_cost or 0.0
    assert sum_savings(made).hourly_saving <= cost + 1e-9


def mostly(usual, other):
    """Return the usual value four times of five, so that long waits come to their end."""
    return st.integers(0, 4).flatmap(lambda number: other if number == 4 else st.just(usual))


steps = st.lists(
    st.tuples(
        mostly(State.IDLE, st.sampled_from(list(State))),
        mostly(0.0, st.floats(-1e6, 1e6)),  # jump of the wall clock
        mostly(30.0, st.floats(-1e6, 1e9)),  # what the other clock says
        mostly(None, st.one_of(st.integers(-100_000, 100_000), st.just(math.inf))),  # keep until, from now
        st.sampled_from([False] * 9 + [True]),
        st.sampled_from([True] * 9 + [False]),
        mostly(IdleAction.SUSPEND, st.sampled_from(list(IdleAction))),
    ),
    min_size=20,
    max_size=60,
)


@given(steps, st.floats(30, 100), st.floats(30, 100))
def test_nothing_is_suspended_without_a_notice_and_a_whole_grace_of_observed_idleness(seen, after_s, grace_s):
    record, now_s = IdleRecord(), 1e9
    idle_ticks_since_notice: int | None = None
    wish, wish_seen_s = None, 0.0
    for state, jump_s, elapsed_s, keep_s, is_out, delivered, action in seen:
        now_s += 30.0 + jump_s
        policy = IdlePolicy(action=action, idle_after_s=after_s, grace_s=grace_s)
        keep_until_s = None if keep_s is None else now_s + keep_s
        watched = Sighting(
            state=state, now_s=now_s, elapsed_s=elapsed_s, keep_until_s=keep_until_s, is_opted_out=is_out
        )
        if keep_until_s != wish:
            wish, wish_seen_s = keep_until_s, now_s
        found = idle_policy.advance(record, watched, policy)
        record = found.record
        if idle_ticks_since_notice is not None and state.is_idle:
            idle_ticks_since_notice += 1
        if found.order is Order.SUSPEND:
            assert state.is_idle
            assert not is_out
            assert action is IdleAction.SUSPEND
            assert keep_until_s is None or now_s >= min(keep_until_s, wish_seen_s + policy.longest_snooze_s)
            assert idle_ticks_since_notice is not None
            assert idle_ticks_since_notice * policy.interval_s >= grace_s
        if found.order is Order.NOTIFY:
            assert state.is_idle
            idle_ticks_since_notice = None
            if delivered:
                record = idle_policy.confirm_notified(record, policy).record
                idle_ticks_since_notice = 0
        if record.phase is Phase.WATCHING:
            idle_ticks_since_notice = None


@given(st.integers(0, 40), st.lists(st.sampled_from([State.IDLE, State.UNKNOWN]), max_size=60))
def test_unknown_observations_change_no_timer(before, seen):
    policy = IdlePolicy(action=IdleAction.SUSPEND, idle_after_s=600.0, grace_s=300.0)
    record, known = IdleRecord(idle_s=30.0 * before), IdleRecord(idle_s=30.0 * before)

    def step(which, state):
        watched = Sighting(state=state, now_s=1e9, elapsed_s=30.0)
        found = idle_policy.advance(which, watched, policy)
        is_notice = found.order is Order.NOTIFY
        return idle_policy.confirm_notified(found.record, policy).record if is_notice else found.record

    for state in seen:
        record = step(record, state)
        known = step(known, state) if state is State.IDLE else known
    assert record == known


def test_states_and_reasons_have_codes_that_fit_an_array():
    assert len(states.STATES) < 128
    assert len(states.REASONS) < 128
