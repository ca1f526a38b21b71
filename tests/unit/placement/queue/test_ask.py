"""Run times from what users declare and what history predicts."""

from __future__ import annotations

from kgwe.placement.queue.ask import combine_run_times, declared_run_time
from kgwe.placement.queue.workloads import RunTime

DECLARED = RunTime(1000.0, 2000.0)


def test_neither_declared_nor_predicted_is_unknown():
    assert combine_run_times(None, None) is None


def test_one_source_alone_counts_as_it_is():
    predicted = RunTime(50.0, 60.0)
    assert combine_run_times(None, predicted) == predicted
    assert combine_run_times(declared_run_time(1000.0), None) == DECLARED


def test_a_prediction_that_the_declaration_allows_stays():
    assert combine_run_times(DECLARED, RunTime(400.0, 1500.0)) == RunTime(400.0, 1500.0)


def test_a_declared_time_bounds_a_prediction_that_is_too_long():
    assert combine_run_times(DECLARED, RunTime(86400.0, 864000.0)) == DECLARED


def test_a_long_declaration_widens_a_short_prediction():
    assert combine_run_times(DECLARED, RunTime(10.0, 12.0)) == RunTime(50.0, 500.0)


def test_usual_runs_move_the_median_below_an_excessive_declaration():
    combined = combine_run_times(declared_run_time(86400.0), RunTime(7000.0, 9000.0))
    assert combined == RunTime(7000.0, 43200.0)
