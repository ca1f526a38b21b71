"""base * 2**attempt, 0 to 10 % more, never above five minutes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgwe.model.units import backoff


@pytest.mark.parametrize(
    ("base", "attempt", "luck", "expected"),
    [
        (30, 0, 0.0, 30),
        (30, 1, 0.0, 60),
        (30, 2, 0.5, 126),
        (30, 9, 0.99, 300),
        (300, 0, 0.99, 300),
        (1, 400, 0.0, 300),
    ],
)
def test_doubles_and_is_capped(base, attempt, luck, expected):
    assert backoff.delay_s(base, attempt, luck) == pytest.approx(expected)


@given(base=st.integers(1, 300), attempt=st.integers(0, 10_000), luck=st.floats(0, 1, exclude_max=True))
def test_jitter_never_exceeds_the_cap_nor_ten_percent(base, attempt, luck):
    delay = backoff.delay_s(base, attempt, luck)
    assert min(base, 300) <= delay <= 300
    assert delay <= base * 2 ** min(attempt, 10) * 1.1
