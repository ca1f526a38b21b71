"""Telemetry never waits for whoever watches it, and never grows."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.examples import examples

from kgwe.apps.agent.telemetry_hub import TelemetryHub, TooManyWatchers
from kgwe.model.telemetry import window
from kgwe.model.telemetry.sample import NodeReadings, Series


def sample(at_ms: int) -> NodeReadings:
    return NodeReadings(at_ms, ())


async def test_a_slow_watcher_gets_the_newest_and_is_told_what_it_missed():
    hub = TelemetryHub(limit=1)
    with hub.open_watcher() as watcher:
        for at in range(100):
            hub.publish(sample(at))
        got = [await watcher.next() for _ in range(4)]
    assert [each.unix_ms for each, _ in got] == [96, 97, 98, 99]
    assert [missed for _, missed in got] == [96, 0, 0, 0]


async def test_a_new_watcher_begins_with_the_newest():
    hub = TelemetryHub(limit=1)
    hub.publish(sample(1))
    hub.publish(sample(2))
    with hub.open_watcher() as watcher:
        assert (await watcher.next())[0].unix_ms == 2


async def test_there_is_a_limit_and_a_watcher_that_leaves_makes_room():
    hub = TelemetryHub(limit=1)
    with hub.open_watcher(), pytest.raises(TooManyWatchers), hub.open_watcher():
        pass
    with hub.open_watcher():
        assert len(hub) == 1
    assert len(hub) == 0


async def test_a_watcher_waits_for_what_comes():
    hub = TelemetryHub(limit=1)
    with hub.open_watcher() as watcher:
        waiting = asyncio.create_task(watcher.next())
        await asyncio.sleep(0)
        hub.publish(sample(7))
        assert (await waiting)[0].unix_ms == 7


async def test_an_interval_thins_the_stream_out():
    hub = TelemetryHub(limit=1)
    got = []
    with hub.open_watcher(interval_s=15) as watcher:
        for at in range(0, 60_000, 5_000):
            hub.publish(sample(at + at % 7))
            if watcher._queue:
                got.append((await watcher.next())[0].unix_ms // 1000)
    assert got == [0, 15, 30, 45]


async def test_a_clock_set_back_does_not_silence_the_stream():
    hub = TelemetryHub(limit=1)
    with hub.open_watcher(interval_s=10) as watcher:
        hub.publish(sample(10**12))
        hub.publish(sample(5))
        assert [(await watcher.next())[0].unix_ms for _ in range(2)] == [10**12, 5]


@examples(50)
@given(st.lists(st.booleans(), max_size=60))
def test_whatever_the_pace_samples_come_in_order_and_none_is_unaccounted_for(steps):
    async def play() -> None:
        hub = TelemetryHub(limit=1)
        published = taken = missed = 0
        last = -1
        with hub.open_watcher() as watcher:
            for is_publish in steps:
                if is_publish:
                    hub.publish(sample(published))
                    published += 1
                elif watcher._queue:
                    got, lost = await watcher.next()
                    assert got.unix_ms == last + 1 + lost
                    last, taken, missed = got.unix_ms, taken + 1, missed + lost
                assert len(watcher._queue) <= 4
            assert taken + missed + len(watcher._queue) + watcher._missed == published

    asyncio.run(play())


async def test_a_watcher_that_asks_is_told_what_was_measured_since_the_message_before():
    util = Series("GPU-a", "util")
    hub = TelemetryHub(limit=2)
    with hub.open_watcher(interval_s=15, aggregates=True) as watcher, hub.open_watcher(interval_s=15) as plain:
        for number, value in enumerate((0.1, 0.3, None, 0.5, 0.7)):
            hub.publish(NodeReadings(number * 5000, (), {util: value}))
        first, second = [(await watcher.next())[0].aggregates for _ in range(2)]
        assert (await plain.next())[0].aggregates == {}
    assert first == {util: window.Aggregate(1, 0, 0.1, 0.1, 0.1, 0.1)}
    assert second == {util: window.Aggregate(2, 1, 0.4, 0.5, 0.5, 0.5)}


async def test_a_window_that_is_longer_than_anyone_needs_begins_anew():
    hub = TelemetryHub(limit=1)
    with hub.open_watcher(interval_s=10**6, aggregates=True) as watcher:
        for number in range(window.MAX_SAMPLES + 10):
            hub.publish(NodeReadings(number, (), {Series("GPU-a", "util"): 0.5}))
        hub.publish(NodeReadings(10**10, (), {Series("GPU-a", "util"): 0.5}))
        await watcher.next()
        [told] = (await watcher.next())[0].aggregates.values()
    assert 0 < told.samples <= window.MAX_SAMPLES
