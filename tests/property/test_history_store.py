"""Histories for all observations: the order of writes does not matter, and repeating them changes nothing."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.builders.usage import NOON_S, device, peak, run, same_windows
from tests.support.examples import examples

from kgwe.model.usage.window import QUANTITIES, UsageWindow, make_window
from kgwe.store.history import HistoryStore

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kgwe.model.usage.history import Run

_NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HistoryStore]:
    with HistoryStore.open(str(tmp_path_factory.mktemp("store") / "history.db")) as opened:
        yield opened


@st.composite
def lives(draw: st.DrawFn) -> list[Run]:
    """Observations of a run in the order of time: it starts, is seen, ends, and may start again later."""
    now = NOON_S
    seen: list[Run] = []
    for _ in range(draw(st.integers(1, 3))):
        now += draw(st.integers(1, 50))
        started = now
        for _ in range(draw(st.integers(0, 3))):
            now += draw(st.integers(1, 50))
            seen.append(run(started_s=started, ended_s=None, seen_s=now))
        now += draw(st.integers(1, 50))
        if draw(st.booleans()):
            # An end may lie before the last observation: the observer's data was old.
            seen.append(run(started_s=started, ended_s=draw(st.integers(started + 1, now))))
    return seen or [run()]


@examples(100)
@given(life=lives(), data=st.data())
def test_observations_of_a_run_in_any_order_give_the_newest(store: HistoryStore, life: list[Run], data: st.DataObject):
    uid = f"run-{next(_NUMBERS)}"
    key = uid.ljust(32, "0")
    life = [_rename(each, uid, key) for each in life]
    shuffled = data.draw(st.permutations(life + life[:1]))
    for each in shuffled:
        store.put_runs([each])
    assert store.load_runs(0, key) == [life[-1]]


def _rename(seen: Run, uid: str, key: str) -> Run:
    return run(uid, key, seen.started_s, ended_s=seen.ended_s, seen_s=seen.seen_s)


_MEMORY = st.one_of(st.none(), st.floats(0, 1e6))


@examples(50)
@given(values=st.lists(st.tuples(_MEMORY, st.integers(0, 60)), min_size=1, max_size=6))
def test_an_hour_holds_its_highest_memory_in_any_order(store: HistoryStore, values: list[tuple[Any, int]]):
    key = str(next(_NUMBERS)).zfill(32)
    for memory, samples in values:
        store.put_peaks([peak(key, memory_mib=memory, samples=samples)])
    (stored,) = store.load_peaks(key)
    known = [memory for memory, _ in values if memory is not None]
    assert stored.memory_peak_mib == max(known, default=None)
    assert stored.samples == max(samples for _, samples in values)


_READINGS = st.one_of(st.just(float("nan")), st.floats(0, 1e6, width=32))


@st.composite
def windows(draw: st.DrawFn) -> UsageWindow:
    # Each example has an hour of its own: the store is shared.
    start = NOON_S + 3600 * next(_NUMBERS) + draw(st.integers(-29, 29))
    steps = draw(st.integers(1, 6))
    devices = tuple(device(f"pod-{number}", number) for number in range(draw(st.integers(1, 3))))
    window = make_window(start, 60, steps, devices)
    for name in QUANTITIES:
        cells = draw(st.lists(_READINGS, min_size=len(devices) * steps, max_size=len(devices) * steps))
        getattr(window, name)[:] = np.array(cells, dtype=np.float32).reshape(len(devices), steps)
    return window


@examples(50)
@given(window=windows(), data=st.data())
def test_a_window_in_parts_is_the_window(store: HistoryStore, window: UsageWindow, data: st.DataObject):
    for column in data.draw(st.permutations([*range(window.steps), 0])):
        part = make_window(window.start_s + 60 * column, 60, 1, window.devices)
        for name in QUANTITIES:
            getattr(part, name)[:] = getattr(window, name)[:, column : column + 1]
        store.put_minutes(part)
    begin = (window.start_s + 30) // 60 * 60
    loaded = store.load_minutes(begin, begin + 60 * window.steps, 60)
    store.put_minutes(window)
    assert same_windows(store.load_minutes(begin, begin + 60 * window.steps, 60), loaded)
    for row, held in enumerate(window.devices):
        for name in QUANTITIES:
            expected = getattr(window, name)[row]
            found = (
                getattr(loaded, name)[loaded.devices.index(held)]
                if held in loaded.devices
                else np.full(window.steps, np.nan)
            )
            assert np.array_equal(found, expected, equal_nan=True)
