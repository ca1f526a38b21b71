"""Samples of a window as a few numbers."""

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.examples import examples

from kgwe import errors
from kgwe.model.telemetry import window


def test_a_window_says_what_was_measured_and_how_often_it_was_not():
    series: window.Window[str] = window.Window()
    for value in (0.1, None, 0.3, 0.2):
        series.tick({"card": value})
    told = series.close()["card"]
    assert (told.samples, told.gaps, told.maximum, told.last) == (3, 1, 0.3, 0.2)
    assert told.mean == pytest.approx(0.2)
    assert series.close() == {}


def test_a_pod_that_came_and_went_has_no_gaps_and_a_card_never_measured_has_only_gaps():
    series: window.Window[str] = window.Window()
    series.tick({"card": None})
    series.tick({"card": None, "pod": 1.0})
    series.tick({"card": None})
    assert series.close() == {
        "card": window.Aggregate(0, 3),
        "pod": window.Aggregate(1, 0, 1.0, 1.0, 1.0, 1.0),
    }


def test_a_window_nobody_closes_does_not_grow_for_ever():
    series: window.Window[str] = window.Window()
    for _ in range(window.MAX_SAMPLES):
        series.tick({"a": 1.0})
    with pytest.raises(errors.InvariantBroken):
        series.tick({"a": 1.0})


@examples(100)
@given(st.lists(st.one_of(st.none(), st.floats(0, 1)), min_size=1, max_size=60))
def test_aggregates_are_within_what_was_measured(values):
    told = window.aggregate(values)
    measured = [value for value in values if value is not None]
    assert (told.samples, told.gaps) == (len(measured), len(values) - len(measured))
    if not measured:
        assert (told.mean, told.maximum, told.p95, told.last) == (None, None, None, None)
        return
    assert told.mean == pytest.approx(statistics.fmean(measured))
    assert told.p95 in measured
    assert told.maximum == max(measured)
    at_most = sum(value <= (told.p95 or 0.0) for value in measured)
    assert at_most / len(measured) >= 0.95
