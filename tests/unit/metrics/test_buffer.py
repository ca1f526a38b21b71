"""The buffer keeps what it must, forgets devices that are gone, and never mixes rows."""

from __future__ import annotations

import numpy as np

from kgwe.metrics.buffer import SampleBuffer
from kgwe.metrics.exposition import Scrape
from kgwe.metrics.fields import Field
from kgwe.metrics.grid import plan_steps
from kgwe.model.usage.window import Device, DeviceKey, PodKey


def scrape(names: list[str], share: float) -> Scrape:
    devices = tuple(Device(DeviceKey("n1", f"GPU-{name}", "", PodKey("team", name))) for name in names)
    values = np.full((len(devices), len(Field)), np.nan, dtype=np.float32)
    values[:, Field.ENGINE] = share
    return Scrape(devices, values)


def test_samples_that_are_too_old_are_forgotten():
    buffer = SampleBuffer(keep_s=100)
    buffer.add(scrape(["a"], 0.5), 10)
    buffer.prepare_window(plan_steps(60, 60, 60))
    buffer.forget_before(200)
    assert buffer.newest_s is None
    assert buffer.prepare_window(plan_steps(60, 60, 60))().devices == ()


def test_a_buffer_of_pods_that_come_and_go_stays_small():
    buffer = SampleBuffer(keep_s=100)
    for round_number in range(20):
        names = [f"{round_number}-{n}" for n in range(500)]
        buffer.add(scrape(names, round_number / 20), round_number * 60.0 + 30)
        buffer.prepare_window(plan_steps(60, 60, 60))
        buffer.forget_before(round_number * 60.0 + 30)
    assert len(buffer._devices) < 5000
    window = buffer.prepare_window(plan_steps(1200, 60, 60))()
    assert {device.key.pod for device in window.devices} == {PodKey("team", f"19-{n}") for n in range(500)}
    assert np.unique(window.activity).tolist() == [np.float32(19 / 20)]


def test_a_window_that_is_prepared_is_not_changed_by_later_samples():
    buffer = SampleBuffer(keep_s=100)
    buffer.add(scrape(["a"], 0.5), 30)
    make = buffer.prepare_window(plan_steps(60, 60, 60))
    buffer.add(scrape(["a", "b"], 1.0), 40)
    assert make().activity.tolist() == [[0.5]]
