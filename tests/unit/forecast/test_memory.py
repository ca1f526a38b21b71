import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgwe.forecast.memory import LEAST_MARGIN, MOST_MARGIN, compute_margin, find_floor, predict_memory
from kgwe.model.usage.history import OutOfMemory, UsagePeak

HOUR = 3600
NOW = 1000 * HOUR


def peak(hours_ago: int, mib: float | None) -> UsagePeak:
    return UsagePeak("f", NOW - hours_ago * HOUR, 60, 0, mib, 80_000.0, 0.5, 0.9, 300.0)


def oom(limit: float | None, at_s: float = 0.0) -> OutOfMemory:
    return OutOfMemory("f", at_s, "pod", limit)


def test_the_need_is_the_highest_peak_with_a_margin():
    need = predict_memory([peak(i, 10_000.0) for i in range(1, 100)], [])
    assert need.is_known
    assert need.recommended_mib is not None
    assert 10_600 <= need.recommended_mib <= 10_700
    assert need.confidence == 1.0


def test_little_history_gets_a_larger_margin():
    few = predict_memory([peak(i, 10_000.0) for i in range(1, 5)], [])
    many = predict_memory([peak(i, 10_000.0) for i in range(1, 100)], [])
    assert few.recommended_mib is not None
    assert many.recommended_mib is not None
    assert few.recommended_mib > many.recommended_mib
    assert few.confidence < many.confidence


def test_replicas_count_together():
    """Forty devices in an hour show what one device shows in forty hours."""
    alone = [peak(i, 10_000.0) for i in range(1, 5)]
    together = [replace(each, samples=60 * 40) for each in alone]
    few, many = predict_memory(alone, []).recommended_mib, predict_memory(together, []).recommended_mib
    assert few is not None
    assert many is not None
    assert few > many > 10_000


@given(st.floats(0, 1e9), st.floats(0, 1e9))
def test_the_margin_never_grows_with_history(first: float, second: float):
    less, more = sorted((first, second))
    assert LEAST_MARGIN <= compute_margin(more) <= compute_margin(less) <= MOST_MARGIN


def test_too_few_measured_hours_are_unknown():
    need = predict_memory([peak(1, 10_000.0), peak(2, None), peak(3, math.nan)], [])
    assert not need.is_known
    assert need.recommended_mib is None


def test_the_need_of_a_preallocator_is_unknown():
    need = predict_memory([peak(i, 70_000.0) for i in range(100)], [oom(1000.0)], is_preallocator=True)
    assert not need.is_known
    assert need.recommended_mib is None
    assert need.floor_mib > 1000


def test_running_out_of_memory_raises_the_floor_for_ever():
    need = predict_memory([peak(i, 5_000.0) for i in range(1, 100)], [oom(20_000.0)])
    assert need.recommended_mib == pytest.approx(24_000.0)
    assert need.reasons[0] == "the workload ran out of GPU memory once"


def test_running_out_of_memory_is_enough_to_know():
    need = predict_memory([], [oom(20_000.0)])
    assert need.is_known
    assert need.recommended_mib == pytest.approx(24_000.0)


def test_a_fact_without_a_limit_raises_no_floor():
    assert find_floor([oom(None), oom(math.nan)]) == 0.0


def test_a_small_device_gets_at_least_512_mib_more():
    assert find_floor([oom(100.0)]) == 612.0


def test_an_old_peak_fades_but_a_recent_one_does_not():
    calm = [peak(i, 5_000.0 + i) for i in range(1, 200)]
    recent = predict_memory([*calm, peak(5, 30_000.0)], [])
    old = predict_memory([*calm, peak(24 * 60, 30_000.0)], [])
    assert recent.peak_mib == 30_000.0
    assert old.peak_mib is not None
    assert old.peak_mib < 10_000
