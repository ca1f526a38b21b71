"""What the optimizer relies on in a history. Each function takes an empty store.

SQLite and PostgreSQL keep all of it.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

import numpy as np
import pytest
from tests.support.builders.usage import (
    DAY_S,
    NOON_S,
    device,
    fingerprint,
    out_of_memory,
    peak,
    run,
    same_windows,
    window,
)

from kgwe import errors
from kgwe.model.usage.window import QUANTITIES
from kgwe.store.prior import Relation

if TYPE_CHECKING:
    from kgwe.store.history import HistoryStore

KEY = "f" * 32


def a_run_comes_back_as_it_was(store: HistoryStore) -> None:
    stored = run(
        succeeded=True, user="ann", version="1", gpus=0.5, pods=2, domain="leaf-1", predicted_s=7.5, restarts=1
    )
    store.put_runs([stored, run("run-2", ended_s=None, seen_s=NOON_S + 5)])
    assert store.load_runs(0) == [stored, run("run-2", ended_s=None, seen_s=NOON_S + 5)]


def the_newest_observation_of_a_run_wins(store: HistoryStore) -> None:
    running = run(ended_s=None, seen_s=NOON_S + 90)
    store.put_runs([running])
    store.put_runs([run(ended_s=None, seen_s=NOON_S + 30)])
    assert store.load_runs(0) == [running]


def an_end_is_final_also_when_the_run_was_seen_later(store: HistoryStore) -> None:
    ended = run(lasted_s=60)
    store.put_runs([run(ended_s=None, seen_s=NOON_S + 62), ended, run(ended_s=None, seen_s=NOON_S + 70)])
    assert store.load_runs(0) == [ended]


def a_run_that_starts_again_replaces_its_end(store: HistoryStore) -> None:
    again = run(started_s=NOON_S + 100, ended_s=None, seen_s=NOON_S + 110)
    store.put_runs([run(lasted_s=60), again, run(lasted_s=60)])
    assert store.load_runs(0) == [again]


def runs_are_found_by_time_and_fingerprint(store: HistoryStore) -> None:
    old, other = run("old", lasted_s=10), run("other", of="e" * 32, lasted_s=100)
    store.put_runs([old, other])
    assert store.load_runs(NOON_S + 50) == [other]
    assert store.load_runs(0, KEY) == [old]
    assert store.load_runs(-math.inf) == [old, other]


def a_row_that_no_table_can_hold_loses_no_other_row(store: HistoryStore) -> None:
    good = run("good")
    store.put_runs([run("bad", started_s=math.nan), run("large", restarts=10**30), good])
    assert store.load_runs(0) == [good]
    assert store.rejected["runs"] == 2


def text_that_no_database_can_hold_is_replaced(store: HistoryStore) -> None:
    store.put_runs([run(user="a\x00b\ud800")])
    assert store.load_runs(0)[0].user == "a\ufffdb?"


def a_later_write_never_lowers_a_peak(store: HistoryStore) -> None:
    store.put_peaks([peak(memory_mib=2000, samples=50, activity_mean=0.7)])
    store.put_peaks([peak(memory_mib=1500, samples=5, activity_mean=0.1, power_mean_w=None)])
    assert store.load_peaks(KEY) == [peak(memory_mib=2000, samples=50, activity_mean=0.7)]
    store.put_peaks([peak(memory_mib=2500, samples=55, activity_mean=0.6)])
    assert store.load_peaks(KEY) == [peak(memory_mib=2500, samples=55, activity_mean=0.6)]


def an_unknown_peak_replaces_nothing_and_is_replaced(store: HistoryStore) -> None:
    store.put_peaks([peak(memory_mib=None, samples=1)])
    assert store.load_peaks(KEY)[0].memory_peak_mib is None
    store.put_peaks([peak(memory_mib=5, samples=2)])
    store.put_peaks([peak(memory_mib=None, samples=3)])
    assert store.load_peaks(KEY)[0].memory_peak_mib == 5


def writing_twice_stores_once(store: HistoryStore) -> None:
    for _ in range(2):
        store.put_fingerprints([fingerprint()], NOON_S)
        store.put_runs([run()])
        store.put_peaks([peak()])
        store.put_out_of_memory([out_of_memory()])
        store.put_minutes(window())
    assert len(store.load_runs(0)) == len(store.load_peaks(KEY)) == len(store.load_out_of_memory(KEY)) == 1
    assert same_windows(store.load_minutes(NOON_S, NOON_S + 180, 60), window())


def fingerprints_come_back_with_the_newest_version(store: HistoryStore) -> None:
    store.put_fingerprints([fingerprint(image="example.com/train:2")], NOON_S)
    store.put_fingerprints([fingerprint(image="example.com/train:1")], NOON_S - 100)
    assert store.load_fingerprints() == [fingerprint(image="example.com/train:2")]


def a_fact_may_arrive_before_its_fingerprint(store: HistoryStore) -> None:
    known = fingerprint()
    store.put_out_of_memory([out_of_memory(known.key, limit_mib=80.0)])
    assert store.load_fingerprints() == []
    store.put_fingerprints([known], NOON_S - 5)
    assert store.load_fingerprints() == [known]
    assert store.load_out_of_memory(known.key) == [out_of_memory(known.key, limit_mib=80.0)]


def minutes_come_back_as_they_were(store: HistoryStore) -> None:
    given = window([device(None, 1), device("a", 0, sharers=2), device("b", 0, mig_profile="3g.40gb")])
    for number, name in enumerate(QUANTITIES):
        getattr(given, name)[:] = np.float32(0.1) * np.arange(9).reshape(3, 3) + np.float32(number)
    given.activity[1, 2] = np.nan
    store.put_minutes(given)
    loaded = store.load_minutes(NOON_S, NOON_S + 180, 60)
    assert {each.key for each in loaded.devices} == {each.key for each in given.devices}
    for row, held in enumerate(given.devices):
        found = loaded.devices.index(held)
        for name in QUANTITIES:
            assert np.array_equal(getattr(loaded, name)[found], getattr(given, name)[row], equal_nan=True)


def an_unknown_minute_is_not_stored_and_replaces_nothing(store: HistoryStore) -> None:
    store.put_minutes(window(value=0.5))
    store.put_minutes(window(value=float("nan")))
    gap = window(value=0.25)
    gap.activity[:] = np.nan
    gap.power_w[:] = np.inf
    store.put_minutes(gap)
    loaded = store.load_minutes(NOON_S, NOON_S + 240, 60)
    assert np.array_equal(loaded.activity[0], [0.5, 0.5, 0.5, np.nan], equal_nan=True)
    assert np.array_equal(loaded.power_w[0], [0.5, 0.5, 0.5, np.nan], equal_nan=True)
    assert loaded.tensor[0, 0] == 0.25


def short_steps_become_minutes_and_minutes_become_long_steps(store: HistoryStore) -> None:
    given = window(step_s=30, steps=4)
    given.activity[:] = [0.0, 1.0, np.nan, 0.5]
    given.memory_used_mib[:] = [10, 30, 20, np.nan]
    store.put_minutes(given)
    minutes = store.load_minutes(NOON_S, NOON_S + 120, 60)
    assert minutes.activity.tolist() == [[0.5, 0.5]]
    assert minutes.memory_used_mib.tolist() == [[30, 20]]
    long = store.load_minutes(NOON_S, NOON_S + 300, 300)
    assert long.activity.tolist() == [[0.5]]
    assert long.memory_used_mib.tolist() == [[30]]


def a_window_needs_not_begin_at_a_full_minute(store: HistoryStore) -> None:
    store.put_minutes(window(start_s=NOON_S + 7.5))
    assert same_windows(store.load_minutes(NOON_S, NOON_S + 180, 60), window())


def steps_that_are_no_minutes_are_refused(store: HistoryStore) -> None:
    with pytest.raises(errors.Permanent, match="keeps minutes"):
        store.put_minutes(window(step_s=300))
    with pytest.raises(errors.Permanent, match="whole number of minutes"):
        store.load_minutes(NOON_S, NOON_S + 600, 90)
    with pytest.raises(errors.Permanent, match="14 days"):
        store.load_minutes(0, NOON_S, 60)


def a_device_that_is_listed_twice_is_stored_once(store: HistoryStore) -> None:
    store.put_minutes(window([device(), device()]))
    assert store.load_minutes(NOON_S, NOON_S + 180, 60).devices == (device(),)


def a_range_without_minutes_is_an_empty_window(store: HistoryStore) -> None:
    assert store.load_minutes(NOON_S, NOON_S + 180, 60).devices == ()


def minutes_are_kept_for_seven_days(store: HistoryStore) -> None:
    store.put_minutes(window([device("old", 1)], start_s=NOON_S - 7 * DAY_S - 3600))
    store.put_minutes(window([device("kept", 2)], start_s=NOON_S - 7 * DAY_S + 3600))
    store.put_minutes(window([device("new", 3)]))
    store.apply_retention(NOON_S + 180)
    loaded = store.load_minutes(NOON_S - 8 * DAY_S, NOON_S + 180, 60)
    assert [each.key.uuid for each in loaded.devices] == ["GPU-2", "GPU-3"]
    # Ids of deleted devices are free again.
    store.put_minutes(window([device("other", 4), device("old", 1)]))
    found = store.load_minutes(NOON_S, NOON_S + 180, 60)
    assert sorted(each.key.uuid for each in found.devices) == ["GPU-1", "GPU-3", "GPU-4"]


def a_clock_that_jumps_ahead_deletes_nothing(store: HistoryStore) -> None:
    store.put_minutes(window())
    store.put_runs([run()])
    store.put_peaks([peak()])
    store.apply_retention(NOON_S + 3650 * DAY_S)
    assert store.load_minutes(NOON_S, NOON_S + 180, 60).devices
    assert store.load_runs(0)
    assert store.load_peaks(KEY)


def hours_are_kept_for_thirty_days_except_the_highest(store: HistoryStore) -> None:
    store.put_peaks(
        [
            peak(hour_s=NOON_S - 40 * DAY_S, memory_mib=900),
            peak(hour_s=NOON_S - 39 * DAY_S, memory_mib=100),
            peak(hour_s=NOON_S - 38 * DAY_S, memory_mib=None),
            peak(hour_s=NOON_S - 29 * DAY_S, memory_mib=200),
            peak(hour_s=NOON_S, memory_mib=300),
        ]
    )
    store.apply_retention(NOON_S)
    assert [each.memory_peak_mib for each in store.load_peaks(KEY)] == [900, 200, 300]


def an_out_of_memory_fact_lives_as_long_as_its_fingerprint(store: HistoryStore) -> None:
    store.put_out_of_memory([out_of_memory(at_s=NOON_S - 1000 * DAY_S)])
    store.put_runs([run("recent", started_s=NOON_S - 179 * DAY_S), run("new", of="e" * 32)])
    store.apply_retention(NOON_S)
    assert len(store.load_out_of_memory(KEY)) == 1


def a_fingerprint_without_a_run_in_180_days_is_forgotten(store: HistoryStore) -> None:
    store.put_out_of_memory([out_of_memory(at_s=NOON_S - 200 * DAY_S)])
    store.put_peaks([peak(hour_s=NOON_S - 200 * DAY_S)])
    store.put_runs([run("dead", started_s=NOON_S - 181 * DAY_S), run("alive", of="e" * 32)])
    store.put_fingerprints([fingerprint()], NOON_S)
    store.apply_retention(NOON_S)
    assert store.load_out_of_memory(KEY) == []
    assert store.load_peaks(KEY) == []
    assert [each.uid for each in store.load_runs(0)] == ["alive"]


def a_new_version_starts_from_the_history_of_the_old_one(store: HistoryStore) -> None:
    old, new = fingerprint(image="example.com/train:1"), fingerprint(image="example.com/train:2")
    store.put_fingerprints([old], NOON_S)
    store.put_runs([run(of=old.key, version="1")])
    store.put_peaks([peak(old.key), peak(old.key, hour_s=NOON_S + 7200)])
    assert store.load_prior(old).relation is Relation.SAME_VERSION
    prior = store.load_prior(new)
    assert prior.relation is Relation.OTHER_VERSION
    assert [each.version for each in prior.runs] == ["1"]
    assert [each.versions for each in prior.peaks] == [{"1"}, frozenset()]


def a_new_fingerprint_starts_from_its_nearest_relative(store: HistoryStore) -> None:
    image, shape = fingerprint(image="example.com/old:1"), fingerprint(gpus=8)
    store.put_fingerprints([image], NOON_S)
    store.put_out_of_memory([out_of_memory(image.key)])
    assert store.load_prior(fingerprint()).relation is Relation.OTHER_IMAGE
    store.put_fingerprints([shape, fingerprint()], NOON_S - 5)
    store.put_runs([run(of=shape.key)])
    prior = store.load_prior(fingerprint())
    assert (prior.relation, prior.source) == (Relation.OTHER_SHAPE, shape)
    assert store.load_prior(fingerprint("another")).relation is Relation.NONE


def a_document_has_versions(store: HistoryStore) -> None:
    assert store.load_document("savings", "team") is None
    assert store.put_document("savings", "team", {"usd": 1}, NOON_S, expected_version=0) == 1
    assert store.put_document("savings", "team", {"usd": 2}, NOON_S + 1, expected_version=1) == 2
    with pytest.raises(errors.Conflict, match="version 2, not 1"):
        store.put_document("savings", "team", {"usd": 3}, NOON_S + 2, expected_version=1)
    found = store.load_document("savings", "team")
    assert found is not None
    assert dataclasses.astuple(found) == ("savings", "team", 2, NOON_S + 1, {"usd": 2})


def documents_are_listed_and_deleted(store: HistoryStore) -> None:
    for name in ("b", "a"):
        store.put_document("model", name, [name], NOON_S)
    store.put_document("other", "c", None, NOON_S)
    assert [each.name for each in store.list_documents("model")] == ["a", "b"]
    with pytest.raises(errors.Conflict):
        store.delete_document("model", "a", expected_version=7)
    store.delete_document("model", "a", expected_version=1)
    store.delete_document("model", "a")
    assert [each.name for each in store.list_documents("model")] == ["b"]


def a_body_that_is_no_json_is_refused(store: HistoryStore) -> None:
    with pytest.raises(errors.Permanent, match="JSON"):
        store.put_document("model", "a", object(), NOON_S)


CONTRACT = [
    a_run_comes_back_as_it_was,
    the_newest_observation_of_a_run_wins,
    an_end_is_final_also_when_the_run_was_seen_later,
    a_run_that_starts_again_replaces_its_end,
    runs_are_found_by_time_and_fingerprint,
    a_row_that_no_table_can_hold_loses_no_other_row,
    text_that_no_database_can_hold_is_replaced,
    a_later_write_never_lowers_a_peak,
    an_unknown_peak_replaces_nothing_and_is_replaced,
    writing_twice_stores_once,
    fingerprints_come_back_with_the_newest_version,
    a_fact_may_arrive_before_its_fingerprint,
    minutes_come_back_as_they_were,
    an_unknown_minute_is_not_stored_and_replaces_nothing,
    short_steps_become_minutes_and_minutes_become_long_steps,
    a_window_needs_not_begin_at_a_full_minute,
    steps_that_are_no_minutes_are_refused,
    a_device_that_is_listed_twice_is_stored_once,
    a_range_without_minutes_is_an_empty_window,
    minutes_are_kept_for_seven_days,
    a_clock_that_jumps_ahead_deletes_nothing,
    hours_are_kept_for_thirty_days_except_the_highest,
    an_out_of_memory_fact_lives_as_long_as_its_fingerprint,
    a_fingerprint_without_a_run_in_180_days_is_forgotten,
    a_new_version_starts_from_the_history_of_the_old_one,
    a_new_fingerprint_starts_from_its_nearest_relative,
    a_document_has_versions,
    documents_are_listed_and_deleted,
    a_body_that_is_no_json_is_refused,
]
