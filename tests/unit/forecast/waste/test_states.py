"""States of devices: right for whole GPUs, slices and shares, and unknown wherever data is missing."""

from __future__ import annotations

import numpy as np
import pytest
from tests.support.builders.usage_windows import END_S, LONG_AGO_S, STEPS, WindowBuilder

from kgwe import errors
from kgwe.forecast.waste import states
from kgwe.forecast.waste.rules import Rules
from kgwe.forecast.waste.states import Reason, State

RULES = Rules()
NAN = float("nan")


def judge(builder, rules=RULES, started_s=None, own=None):
    window = builder.build()
    starts = np.full(len(window.devices), LONG_AGO_S) if started_s is None else np.array(started_s, dtype=float)
    found = states.judge_devices(window, starts, rules, own)
    return [
        (states.STATES[state], states.REASONS[reason]) for state, reason in zip(found.state, found.reason, strict=True)
    ]


def one(activity, **values):
    return judge(WindowBuilder().add("p", activity, **values))[0]


BURSTS = [0.8, 0.05, 0.05, 0.8] * 5


@pytest.mark.parametrize(
    ("activity", "values", "state"),
    [
        (0.0, {}, State.IDLE),
        (0.009, {}, State.IDLE),
        (0.0, {"memory_used_mib": 30_000.0}, State.IDLE_HOLDING),
        (0.0, {"memory_used_mib": NAN, "memory_total_mib": NAN}, State.IDLE),
        (0.9, {"power_w": 600.0}, State.BUSY),
        (0.2, {}, State.BUSY),
        (BURSTS, {}, State.BURSTY),
        ([0.03] + [0.0] * 19, {}, State.BURSTY),
        ([0.1] + [0.9] * 19, {}, State.BUSY),
    ],
)
def test_a_measured_device_has_the_state_of_its_use(activity, values, state):
    assert one(activity, **values) == (state, Reason.MEASURED)


@pytest.mark.parametrize(
    ("activity", "reason"),
    [
        (NAN, Reason.NO_SAMPLES),
        ([0.0] * 19 + [NAN], Reason.STALE),
        ([0.0] * 10 + [NAN] * 3 + [0.0] * 7, Reason.GAP),
        ([-1.0] * 20, Reason.NO_SAMPLES),
        ([7.0] * 20, Reason.NO_SAMPLES),
        ([float("inf")] * 20, Reason.NO_SAMPLES),
    ],
)
def test_missing_or_impossible_samples_are_unknown(activity, reason):
    assert one(activity) == (State.UNKNOWN, reason)


def test_two_lost_scrapes_of_twenty_do_not_hide_an_idle_device():
    assert one([0.0] * 10 + [NAN] * 2 + [0.0] * 8)[0] is State.IDLE


def test_a_window_that_is_too_short_is_unknown():
    assert judge(WindowBuilder(steps=10).add("p", 0.0))[0] == (State.UNKNOWN, Reason.GAP)


def test_a_window_without_steps_or_devices_is_judged_too():
    assert judge(WindowBuilder(steps=0).add("p", []))[0] == (State.UNKNOWN, Reason.NO_SAMPLES)
    assert judge(WindowBuilder()) == []


def test_only_the_last_ten_minutes_of_a_longer_window_count():
    assert judge(WindowBuilder(steps=40).add("p", [0.9] * 20 + [0.0] * 20))[0][0] is State.IDLE


@pytest.mark.parametrize(
    ("started_s", "reason"),
    [(END_S - 599.0, Reason.STARTING), (NAN, Reason.NOT_RUNNING), (END_S + 100.0, Reason.STARTING)],
)
def test_a_pod_that_just_started_or_does_not_run_is_unknown(started_s, reason):
    assert judge(WindowBuilder().add("p", 0.0), started_s=[started_s])[0] == (State.UNKNOWN, reason)


def test_samples_from_before_the_start_belong_to_an_earlier_pod():
    busy_before = WindowBuilder().add("p", [0.9] * 10 + [0.0] * 10)
    rules = Rules(min_age_s=240.0)
    assert judge(busy_before, rules, started_s=[END_S - 300.0])[0] == (State.IDLE, Reason.MEASURED)


class TestPower:
    def test_high_power_contradicts_an_idle_engine_of_a_whole_gpu(self):
        assert one(0.0, power_w=500.0) == (State.UNKNOWN, Reason.CONTRADICTED)

    def test_memory_traffic_contradicts_an_idle_engine(self):
        assert one(0.0, dram=0.3) == (State.UNKNOWN, Reason.CONTRADICTED)

    def test_power_of_a_gpu_says_nothing_about_one_slice(self):
        assert one(0.0, power_w=500.0, profile="3g.40gb", instance="1")[0] is State.IDLE

    def test_power_of_an_unknown_model_says_nothing(self):
        assert one(0.0, power_w=500.0, model="Prototype")[0] is State.IDLE

    def test_unknown_power_leaves_an_idle_device_idle_but_not_corroborated(self):
        window = WindowBuilder().add("p", 0.0, power_w=NAN).add("q", 0.0).build()
        found = states.judge_devices(window, np.full(2, LONG_AGO_S), RULES)
        assert found.is_corroborated.tolist() == [False, True]


class TestSharedDevices:
    def shared(self, activity, **values):
        builder = WindowBuilder()
        for name in "abcd":
            builder.add(name, activity, uuid="GPU-x", **values)
        return builder

    def test_pods_of_an_idle_shared_gpu_are_idle(self):
        assert judge(self.shared(0.0, sharers=4)) == [(State.IDLE, Reason.MEASURED)] * 4

    def test_activity_of_a_shared_gpu_is_not_that_of_one_pod(self):
        assert judge(self.shared(0.9, sharers=4)) == [(State.UNKNOWN, Reason.SHARED)] * 4

    def test_sharers_are_seen_in_the_rows_even_if_the_source_does_not_say_so(self):
        assert judge(self.shared(0.9)) == [(State.UNKNOWN, Reason.SHARED)] * 4

    def test_known_activity_of_each_pod_separates_them(self):
        own = np.zeros((4, STEPS), dtype=np.float32)
        own[0] = 0.9
        found = judge(self.shared(0.9, sharers=4, dram=0.4), own=own)
        assert [state for state, _ in found] == [State.BUSY, State.IDLE, State.IDLE, State.IDLE]

    def test_a_device_that_passes_to_the_next_pod_is_not_shared(self):
        builder = WindowBuilder()
        builder.add("old", [0.9] * 2 + [NAN] * 18, uuid="GPU-x").add("new", [NAN] * 2 + [0.9] * 18, uuid="GPU-x")
        window = builder.build()
        assert states.count_sharers(window.devices, ~np.isnan(window.activity)).tolist() == [1, 1]

    def test_two_containers_of_one_pod_are_one_sharer(self):
        builder = WindowBuilder().add("p", 0.9, uuid="GPU-x").add("p", 0.9, uuid="GPU-x", container="side")
        window = builder.build()
        assert states.count_sharers(window.devices, ~np.isnan(window.activity)).tolist() == [1, 1]

    def test_slices_of_one_gpu_do_not_share_it(self):
        builder = WindowBuilder().add("p", 0.9, uuid="GPU-x", instance="1", profile="3g.40gb")
        builder.add("q", 0.0, uuid="GPU-x", instance="2", profile="3g.40gb")
        assert [state for state, _ in judge(builder)] == [State.BUSY, State.IDLE]


@pytest.mark.parametrize("bad", [{"noise_floor": -0.1}, {"min_coverage": 1.5}, {"window_s": 0}, {"lookback_s": NAN}])
def test_impossible_rules_are_refused_with_the_name_of_the_setting(bad):
    with pytest.raises(errors.Permanent, match=next(iter(bad))):
        Rules(**bad)
