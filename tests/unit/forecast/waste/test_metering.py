"""Metered costs of pods."""

from __future__ import annotations

import math

import pytest
from tests.support.builders.usage_windows import STEP_S, STEPS, WindowBuilder, pod_key

from kgwe.forecast.waste.metering import meter_pods
from kgwe.forecast.waste.recommend import Prices

PRICES = Prices({"H100-SXM5-80GB": 3.0}, {})
HOURS = STEPS * STEP_S / 3600


def test_a_pod_costs_its_devices_for_the_time_in_which_they_were_seen():
    window = WindowBuilder().add("two", 0.1).add("two", 0.2).add("one", 0.0).build()
    found = meter_pods(window, PRICES, {})
    assert found[pod_key("two")].hourly_cost == pytest.approx(6.0)
    assert found[pod_key("one")].cost == pytest.approx(3.0 * HOURS)


def test_a_slice_costs_its_part_and_a_share_what_was_asked_for():
    window = WindowBuilder().add("slice", 0.1, profile="3g.40gb", instance="1").add("share", 0.1).build()
    found = meter_pods(window, PRICES, {pod_key("share"): 0.125})
    assert found[pod_key("slice")].hourly_cost == pytest.approx(1.5)
    assert found[pod_key("share")].hourly_cost == pytest.approx(0.375)


def test_steps_without_samples_are_not_metered():
    gap = [math.nan] * (STEPS // 2) + [0.1] * (STEPS // 2)
    window = WindowBuilder().add("pod", gap, memory_used_mib=gap, memory_total_mib=gap, power_w=gap).build()
    found = meter_pods(window, PRICES, {})[pod_key("pod")]
    assert found.hours == pytest.approx(HOURS / 2)
    assert found.hourly_cost == pytest.approx(3.0)


def test_a_device_without_a_price_makes_the_cost_unknown():
    window = WindowBuilder().add("pod", 0.1).add("pod", 0.1, model="Unknown").build()
    assert meter_pods(window, PRICES, {})[pod_key("pod")].cost is None


def test_containers_on_the_same_device_are_charged_once():
    window = WindowBuilder().add("pod", 0.1, uuid="GPU-x").add("pod", 0.1, uuid="GPU-x", container="side").build()
    assert meter_pods(window, PRICES, {})[pod_key("pod")].hourly_cost == pytest.approx(3.0)
