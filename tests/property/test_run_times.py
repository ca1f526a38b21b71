"""Combined run times, for any declaration and prediction."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kgwe.placement.fleet.node import Gpus, Request
from kgwe.placement.fleet.snapshot import Snapshot
from kgwe.placement.planning.ask import Ask
from kgwe.placement.pod.fit import Fitter
from kgwe.placement.queue.ask import combine_run_times, declared_run_time, workload_from_ask
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


@given(SECONDS, SECONDS, PREDICTED)
def test_no_declaration_makes_a_promise_shorter_than_history(one_s, other_s, predicted):
    """So a user gains nothing by declaring too little."""
    promises = [_promise(expected_s, predicted) for expected_s in sorted((one_s, other_s))]
    assert predicted.p95_s <= promises[0] <= promises[1]


def _promise(expected_s, predicted):
    ask = Ask("a", Request(Gpus(count=1)), expected_s=expected_s)
    combined = combine_run_times(declared_run_time(expected_s), predicted)
    return workload_from_ask(ask, Fitter(Snapshot.from_nodes(())), 0.0, combined, predicted).promise_s


@given(SECONDS, PREDICTED)
def test_combining_again_changes_nothing(expected_s, predicted):
    declared = declared_run_time(expected_s)
    found = combine_run_times(declared, predicted)
    assert combine_run_times(declared, found) == found
