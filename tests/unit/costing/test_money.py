"""Money is divided and rounded without losing a micro-dollar."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgwe import errors
from kgwe.costing import money
from kgwe.costing.dates import parse_time

WEIGHTS = st.lists(st.integers(0, 10**9), min_size=1, max_size=12).filter(any)


@given(st.integers(0, 10**14), WEIGHTS)
def test_parts_sum_to_the_total_and_differ_from_their_share_by_less_than_one(total, weights):
    parts = money.divide(total, weights)
    assert sum(parts) == total
    whole = sum(weights)
    assert all(abs(part * whole - total * weight) < whole for part, weight in zip(parts, weights, strict=True))


def test_the_largest_remainders_get_what_is_left():
    assert money.divide(10, [1, 1, 1]) == [4, 3, 3]
    assert money.divide(100, [957, 28, 15]) == [96, 3, 1]
    with pytest.raises(ValueError, match="at least one is positive"):
        money.divide(5, [0, 0])


@given(st.lists(st.integers(0, 10**12), max_size=20))
def test_rounded_lines_sum_to_the_rounded_total(ticks):
    lines = money.round_lines(ticks)
    assert sum(lines) == money.round_ticks(sum(ticks))
    assert all(abs(line * money.TICKS - each) < money.TICKS for line, each in zip(lines, ticks, strict=True))


@pytest.mark.parametrize(
    "text", ["", "two", "1/3", "1_000", "nan", "1e", "$3", "9" * 50, "1e999999999", "-1e-999999999"]
)
def test_a_text_that_is_no_amount_is_refused(text):
    with pytest.raises(errors.Permanent, match="not an amount"):
        money.parse_dollars(text)


def test_amounts_are_exact():
    assert money.parse_dollars("21.957642") == 21_957_642
    assert money.parse_dollars("0.0000005") == 1
    with pytest.raises(errors.Permanent, match="negative"):
        money.parse_dollars("-1")
    assert money.format_dollars(1_234_567_890) == "1,234.57"
    assert money.format_dollars(-5_000) == "-0.01"
    assert money.format_dollars(1, 6) == "0.000001"


def test_dates_are_utc_unless_they_say_otherwise():
    assert parse_time("1970-01-02") == 86_400
    assert parse_time("2022-12-02T10:19:26-08:00") == parse_time("2022-12-02T18:19:26Z")
    for text in ("2022-13-01", "2022-02-30", "2022-01-01T25:00:00", "yesterday"):
        with pytest.raises(errors.Permanent):
            parse_time(text)
