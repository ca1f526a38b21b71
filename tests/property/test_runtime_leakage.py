"""No prediction depends on what comes later."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kgwe.forecast.runtime.predictor import Predictor
from kgwe.forecast.runtime.query import Prediction, Query
from kgwe.forecast.runtime.replays import replay_queries
from kgwe.forecast.runtime.schema import Schema

SCHEMA = Schema(("job", "team"), ("GPUs",))
RUNS = st.lists(
    st.tuples(
        st.integers(0, 300),
        st.integers(0, 4),
        st.floats(0, 500, allow_nan=False),
        st.sampled_from([1.0, 2.0, float("nan")]),
    ),
    min_size=2,
    max_size=30,
)


def make_queries(runs) -> tuple[list[Query], list[float]]:
    ordered = sorted(runs, key=lambda run: run[0])
    queries = [Query(float(at), (f"j|{job}", f"t|{job % 2}"), f"u{job}", 0, (gpus,)) for at, job, _, gpus in ordered]
    return queries, [lasted for _, _, lasted, _ in ordered]


def predict_all(queries: list[Query], lasted: list[float]) -> list[Prediction]:
    predictor, found = Predictor(SCHEMA), []
    for index, query in enumerate(queries):
        predictor.advance(query.submitted_s)
        found.append(predictor.predict(query))
        predictor.submit(str(index), query)
        predictor.stream.schedule_end(str(index), lasted[index], query.submitted_s + lasted[index])
    return found


@settings(max_examples=60, deadline=None)
@given(RUNS, st.data())
def test_shuffling_later_rows_changes_no_earlier_feature(runs, data):
    queries, lasted = make_queries(runs)
    cut = data.draw(st.integers(1, len(queries) - 1))
    before = replay_queries(SCHEMA, queries, lasted, [True] * len(lasted)).features[:cut]
    later = data.draw(st.permutations(list(range(cut, len(queries)))))
    moved = [
        Query(q.submitted_s, queries[j].keys, queries[j].user, 0, queries[j].numbers)
        for q, j in zip(queries[cut:], later, strict=True)
    ]
    after = replay_queries(
        SCHEMA, queries[:cut] + moved, lasted[:cut] + [lasted[j] for j in later], [True] * len(lasted)
    )
    np.testing.assert_array_equal(before, after.features[:cut])


@settings(max_examples=60, deadline=None)
@given(RUNS, st.data())
def test_the_end_of_a_run_that_still_runs_changes_no_prediction(runs, data):
    queries, lasted = make_queries(runs)
    cut = data.draw(st.integers(0, len(queries) - 1))
    now = queries[cut].submitted_s
    longer = [
        seconds if query.submitted_s + seconds <= now else now - query.submitted_s + 1 + data.draw(st.floats(0, 1e4))
        for query, seconds in zip(queries, lasted, strict=True)
    ]
    assert predict_all(queries, lasted)[: cut + 1] == predict_all(queries, longer)[: cut + 1]


@settings(max_examples=60, deadline=None)
@given(RUNS)
def test_intervals_are_ordered_and_never_negative(runs):
    for prediction in predict_all(*make_queries(runs)):
        if prediction.is_known:
            assert 0 <= prediction.lower_s <= prediction.quantiles[0.5] <= prediction.upper_s
