"""Combined run times, for any declaration and prediction."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kgwe.placement.queue.ask import combine_run_times, declared_run_time
from kgwe.placement.queue.workloads import RunTime

SECONDS = st.floats(1.0, 1e8)
PREDICTED = st.tuples(SECONDS, st.floats(1.0, 1e4)).map(lambda made: RunTime(made[0], made[0] * made[1]))


@given(SECONDS, PREDICTED)
def test_a_combination_is_a_run_time_within_what_was_declared(expected_s, predicted):
    declared = declared_run_time(expected_s)
    assert declared is not None
    found = combine_run_times(declared, predicted)
    assert found is not None
    assert found.p50_s <= declared.p50_s
    assert found.p95_s <= declared.p95_s
    assert found.p50_s <= found.p95_s


@given(SECONDS, PREDICTED, st.floats(1.0, 100.0))
def test_a_longer_declaration_or_prediction_never_gives_a_shorter_run_time(expected_s, predicted, factor):
    found = combine_run_times(declared_run_time(expected_s), predicted)
    declared_more = combine_run_times(declared_run_time(expected_s * factor), predicted)
    longer = RunTime(predicted.p50_s * factor, predicted.p95_s * factor)
    predicted_more = combine_run_times(declared_run_time(expected_s), longer)
    assert found is not None
    for more in (declared_more, predicted_more):
        assert more is not None
        assert more.p50_s >= found.p50_s
        assert more.p95_s >= found.p95_s


@given(SECONDS, PREDICTED)
def test_combining_again_changes_nothing(expected_s, predicted):
    declared = declared_run_time(expected_s)
    found = combine_run_times(declared, predicted)
    assert combine_run_times(declared, found) == found
