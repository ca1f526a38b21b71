"""Windows: steps, memory totals, shared and cut devices, pods that follow each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kgwe.metrics.fields import Field
from kgwe.metrics.grid import Samples, aggregate_samples, make_usage_window, plan_steps
from kgwe.model.usage.window import Device, DeviceKey, PodKey, UsageWindow

if TYPE_CHECKING:
    from collections.abc import Mapping

A, B = PodKey("team", "a"), PodKey("team", "b")
Sample = tuple[Device, float, "Mapping[Field, float]"]


def device(pod: PodKey | None = A, instance: str = "") -> Device:
    return Device(DeviceKey("n1", "GPU-1", instance, pod))


def window(*samples: Sample, length_s: float = 300, step_s: float = 60) -> UsageWindow:
    """A window that begins at 0."""
    devices = list(dict.fromkeys(each for each, _, _ in samples))
    values = np.full((len(samples), len(Field)), np.nan, dtype=np.float32)
    for row, (_, _, parts) in enumerate(samples):
        for field, value in parts.items():
            values[row, field] = value
    rows = np.array([devices.index(each) for each, _, _ in samples], dtype=np.int64)
    times = np.array([at for _, at, _ in samples], dtype=np.float64)
    steps = plan_steps(length_s, length_s, step_s)
    fields = aggregate_samples(Samples(rows, times, values), steps, len(devices))
    return make_usage_window(devices, fields, steps, {})


def known(row) -> list[float | None]:
    return [None if np.isnan(value) else round(float(value), 4) for value in row]


def test_a_step_has_the_mean_activity_and_the_highest_memory():
    found = window(
        (device(), 1, {Field.ENGINE: 0.2, Field.USED: 10}),
        (device(), 60, {Field.ENGINE: 0.4, Field.USED: 30}),
        (device(), 61, {Field.ENGINE: 1.0, Field.USED: 20}),
    )
    assert known(found.activity[0]) == [0.3, 1.0, None, None, None]
    assert known(found.memory_used_mib[0]) == [30, 20, None, None, None]


def test_a_gap_is_unknown():
    found = window((device(), 30, {Field.ENGINE: 0.0}), (device(), 270, {Field.ENGINE: 0.0}))
    assert known(found.activity[0]) == [0.0, None, None, None, 0.0]


def test_the_memory_is_used_and_free_and_reserved_where_the_total_is_not_exported():
    parts = {Field.USED: 10, Field.FREE: 60, Field.RESERVED: 10}
    assert known(window((device(), 30, parts)).memory_total_mib[0])[0] == 80
    assert known(window((device(), 30, parts | {Field.TOTAL: 81})).memory_total_mib[0])[0] == 81
    assert known(window((device(), 30, {Field.USED: 10, Field.FREE: 60})).memory_total_mib[0])[0] == 70
    assert known(window((device(), 30, {Field.USED: 10})).memory_total_mib[0])[0] is None


def test_more_memory_than_there_is_is_rejected():
    found = window((device(), 30, {Field.ENGINE: 0.5, Field.USED: 100, Field.TOTAL: 80}))
    assert known(found.memory_used_mib[0])[0] is None
    assert found.rejected == {"out_of_range": 1}


def test_utilization_counts_for_whole_gpus_without_engine_activity_only():
    power = {Field.POWER: 100.0}
    assert known(window((device(), 30, power | {Field.UTIL: 0.7})).activity[0])[0] == 0.7
    mixed = window((device(), 30, {Field.ENGINE: 0.1, Field.UTIL: 0.7}), (device(), 90, power | {Field.UTIL: 0.7}))
    assert known(mixed.activity[0])[:2] == [0.1, None]
    sliced = window((device(instance="5"), 30, power | {Field.UTIL: 0.0}))
    assert known(sliced.activity[0])[0] is None


def test_utilization_of_a_gpu_that_is_cut_is_unknown():
    found = window(
        (device(pod=None), 30, {Field.POWER: 100, Field.UTIL: 0.0}),
        (device(instance="5"), 30, {Field.POWER: 100, Field.ENGINE: 0.5}),
    )
    rows = {each.key.instance: known(found.activity[row])[0] for row, each in enumerate(found.devices)}
    assert rows == {"": None, "5": 0.5}


def test_pods_on_a_device_at_the_same_time_share_it():
    every = [(device(pod), at, {Field.ENGINE: 0.5}) for at in (30, 90, 150) for pod in (A, B)]
    assert [each.sharers for each in window(*every).devices] == [2, 2]


def test_a_pod_that_follows_another_one_does_not_share():
    found = window(
        *((device(A), at, {Field.ENGINE: 0.5}) for at in (30, 90, 125)),
        *((device(B), at, {Field.ENGINE: 0.9}) for at in (170, 210, 270)),
    )
    assert [each.sharers for each in found.devices] == [1, 1]
    assert known(found.activity[0]) == [0.5, 0.5, 0.5, None, None]
    assert known(found.activity[1]) == [None, None, 0.9, 0.9, 0.9]


def test_two_containers_of_a_pod_are_one_sharer():
    main, side = device(), Device(DeviceKey("n1", "GPU-1", "", A, "side"))
    found = window(*((each, at, {Field.ENGINE: 0.5}) for at in (30, 90) for each in (main, side)))
    assert [each.sharers for each in found.devices] == [1, 1]


def test_rows_of_pods_take_what_only_the_device_has():
    found = window(
        *((device(None), at, {Field.ENGINE: 0.6, Field.POWER: 300}) for at in (30, 90, 150)),
        *((device(A), at, {Field.ENGINE: 0.4}) for at in (30, 90)),
    )
    rows = {each.key.pod: row for row, each in enumerate(found.devices)}
    assert known(found.activity[rows[A]]) == [0.4, 0.4, None, None, None]
    assert known(found.power_w[rows[A]]) == [300, 300, None, None, None]
    assert known(found.activity[rows[None]]) == [None, None, 0.6, None, None]


def test_no_pod_holds_a_whole_gpu_that_is_cut():
    found = window(
        (device(A), 30, {Field.ENGINE: 0.5}),
        (device(None, "5"), 30, {Field.ENGINE: 0.5}),
    )
    assert [each.key.instance for each in found.devices] == ["5"]


def test_a_window_without_samples_has_no_rows():
    found = window()
    assert (found.devices, found.activity.shape) == ((), (0, 5))
