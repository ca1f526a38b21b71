"""What holds for every forecast about workloads."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kgwe.forecast import coefficients
from kgwe.forecast.classification.classify import CLASSES, classify
from kgwe.forecast.domains import rate_domains
from kgwe.forecast.hints import communication, points, sharing, slices
from kgwe.forecast.interference.safety import Signature, forecast_pair
from kgwe.forecast.podfacts import PodFacts
from kgwe.model.usage.history import Run

SHIPPED = coefficients.load()
SHARES = st.floats(0, 1)
SIGNATURES = st.builds(Signature, st.none() | SHARES, st.none() | SHARES, st.none() | st.floats(0.001, 100))
POINTS = st.lists(st.floats(allow_nan=True, allow_infinity=True, width=32), min_size=3, max_size=3)


@given(SIGNATURES, SIGNATURES)
def test_the_order_of_a_pair_does_not_matter(first, second):
    one = forecast_pair(SHIPPED.interference, first, second)
    two = forecast_pair(SHIPPED.interference, second, first)
    assert (one.first_speed, one.second_speed, one.is_safe) == (two.second_speed, two.first_speed, two.is_safe)


@given(SIGNATURES, SIGNATURES)
def test_speeds_lie_between_zero_and_one(first, second):
    pair = forecast_pair(SHIPPED.interference, first, second)
    assert all(speed is None or 0 < speed <= 1 for speed in (pair.first_speed, pair.second_speed))


@given(SHARES, SHARES, SHARES)
def test_a_busier_neighbour_never_makes_a_job_faster(mine, one, other):
    low, high = sorted((one, other))
    quiet, busy = (forecast_pair(SHIPPED.interference, Signature(mine), Signature(each)) for each in (low, high))
    assert quiet.first_speed is not None
    assert busy.first_speed is not None
    assert busy.first_speed <= quiet.first_speed


@given(POINTS, POINTS)
def test_hints_are_bounded_and_never_nan(one, two):
    found = points.combine_hints(3, {"a": np.array(one), "b": np.array(two)}).points
    assert (np.abs(found) <= points.LIMIT).all()


@given(st.floats(0.5, 10), st.integers(1, 16), st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), min_size=1))
def test_more_room_never_costs_points(slowdown, gpus, nodes):
    peers, room = np.array(nodes).T
    less = communication.score_communication(slowdown, gpus, peers, room)
    more = communication.score_communication(slowdown, gpus, peers, room + 1)
    assert (np.abs(less) <= points.LIMIT).all()
    assert (more >= less).all()


@given(SHARES, st.floats(1, 7), st.floats(1, 7))
def test_a_larger_slice_is_never_slower(share, one, other):
    speeds = slices.predict_slice_speed(share, np.array(sorted((one, other))))
    assert 0 < speeds[0] <= speeds[1] <= 1


@given(SIGNATURES, st.lists(SIGNATURES, max_size=5))
def test_neighbours_never_add_points(new, residents):
    nodes = np.arange(len(residents), dtype=np.intp) % 3
    found = sharing.score_sharing(SHIPPED.interference, new, residents, nodes, 3)
    assert (np.isnan(found) | ((found <= 0) & (found >= -points.LIMIT))).all()


@settings(max_examples=25)
@given(st.text(max_size=20), st.lists(st.text(max_size=10), max_size=4), st.text(max_size=10))
def test_any_spec_gets_a_distribution(image, command, owner):
    found = classify(PodFacts(image=image, command=tuple(command), owner_kind=owner))
    assert set(found.probabilities) == set(CLASSES)
    assert abs(sum(found.probabilities.values()) - 1) < 1e-9


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans(), st.floats(0, 1e6), st.none() | st.floats(0, 1e6))))
def test_scores_of_domains_lie_between_zero_and_one(ended):
    runs = [
        Run(str(number), "xy"[number % 2], 0.0, 0.0, lasted, succeeded=succeeded, domain=domain, predicted_s=predicted)
        for number, (domain, succeeded, lasted, predicted) in enumerate(ended)
    ]
    assert all(0 <= found.score <= 1 for found in rate_domains(runs, 2e6, {"x": "team-x", "y": "team-y"}).values())
