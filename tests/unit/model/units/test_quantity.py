"""Quantities are exact, rounded up where a unit is too coarse, and bad text is refused with advice."""

from __future__ import annotations

import contextlib
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgwe.model.units import quantity

KI = 1024


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("0", Fraction(0)),
        ("8", Fraction(8)),
        ("+3", Fraction(3)),
        ("-3", Fraction(-3)),
        ("1.", Fraction(1)),
        (".5", Fraction(1, 2)),
        ("0.1", Fraction(1, 10)),
        ("1500m", Fraction(3, 2)),
        ("1k", Fraction(1000)),
        ("1Ki", Fraction(KI)),
        ("1.5Gi", Fraction(3 * KI**3, 2)),
        ("2E", Fraction(2 * 10**18)),
        ("2E2", Fraction(200)),
        ("2e2", Fraction(200)),
        ("12e-3", Fraction(12, 1000)),
        ("5n", Fraction(5, 10**9)),
    ],
)
def test_a_quantity_has_its_exact_value(text, want):
    assert quantity.parse(text) == want


@pytest.mark.parametrize(
    "text",
    ["", " 1", "1 ", "one", "1.2.3", "1ki", "1KI", "1g", "1Gib", "0x10", "\u0661", "1e", "--1", "1m5", "NaN", "inf"],
)
def test_what_is_not_a_quantity_is_refused_with_an_example(text):
    with pytest.raises(quantity.BadQuantity, match="is not a quantity; write for example"):
        quantity.parse(text)


@pytest.mark.parametrize("text", ["1e9999", "1" * 1000, "9999999999999999999999", "10E"])
def test_what_is_absurdly_large_is_refused(text):
    with pytest.raises(quantity.BadQuantity):
        quantity.parse(text)


@pytest.mark.parametrize("text", ["0.5", "1500m", "1n"])
def test_part_of_a_device_is_refused(text):
    with pytest.raises(quantity.BadQuantity, match="not a whole number"):
        quantity.parse_int(text)


@pytest.mark.parametrize(("text", "want"), [("8", 8), ("8.0", 8), ("2000m", 2), ("1k", 1000), ("0", 0)])
def test_a_count_may_be_spelt_in_any_way_that_is_whole(text, want):
    assert quantity.parse_int(text) == want


@pytest.mark.parametrize("parse", [quantity.parse_int, quantity.parse_milli, quantity.parse_bytes])
def test_an_amount_is_never_negative(parse):
    with pytest.raises(quantity.BadQuantity, match="is negative"):
        parse("-1")


def test_parts_of_a_unit_are_rounded_up_so_that_a_request_is_never_understated():
    assert quantity.parse_milli("100u") == 1
    assert quantity.parse_milli("1.0001") == 1001
    assert quantity.parse_bytes("1500m") == 2


@given(st.integers(min_value=0, max_value=10**12))
def test_milli_round_trips(milli):
    assert quantity.parse_milli(quantity.format_milli(milli)) == milli


@given(st.integers(min_value=0, max_value=2**62))
def test_bytes_round_trip(size):
    assert quantity.parse_bytes(quantity.format_bytes(size)) == size


@given(st.integers(min_value=0, max_value=10**6), st.sampled_from(["", "k", "M", "G", "Ki", "Mi", "Gi", "m", "u", "n"]))
def test_a_suffix_multiplies(number, suffix):
    assert quantity.parse(f"{number}{suffix}") == number * quantity.parse(f"1{suffix}")


@given(st.integers(min_value=0, max_value=10**6), st.integers(min_value=-9, max_value=9))
def test_an_exponent_is_a_power_of_ten(number, exponent):
    assert quantity.parse(f"{number}e{exponent}") == number * Fraction(10) ** exponent


@given(st.text(max_size=12))
def test_any_text_gives_a_number_or_a_clear_error(text):
    with contextlib.suppress(quantity.BadQuantity):
        assert isinstance(quantity.parse(text), Fraction)
