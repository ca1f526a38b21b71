"""Points per node for the engine."""

from __future__ import annotations

import numpy as np
import pytest

from kgwe.forecast import coefficients
from kgwe.forecast.hints import communication, points, sharing, slices
from kgwe.forecast.interference.safety import Signature
from kgwe.placement.pod import score

SHIPPED = coefficients.load()


def test_the_limit_is_that_of_the_engine():
    assert points.LIMIT == score.HINT_LIMIT


def test_a_node_that_holds_the_whole_workload_gets_most_points():
    found = communication.score_communication(2.0, 4, np.array([0, 0, 2, 3]), np.array([1, 4, 2, 0]))
    assert found.tolist() == pytest.approx([-10, 10, 10, 10 / 3])


@pytest.mark.parametrize(("slowdown", "gpus"), [(float("nan"), 4), (1.0, 4), (2.0, 1)])
def test_work_that_does_not_communicate_gets_no_points(slowdown, gpus):
    assert not communication.score_communication(slowdown, gpus, np.zeros(3, int), np.arange(3)).any()


def test_families_are_found_in_text():
    assert communication.find_family("team/BERT-large:3 train.py") == "bert"
    assert communication.find_family("resnet50") == "imagenet"
    assert communication.find_family("team/app:1") is None


def test_the_slowdown_of_an_unknown_family_is_unknown():
    assert np.isnan(communication.find_slowdown(SHIPPED.communication, None, 4))
    assert communication.find_slowdown(SHIPPED.communication, "bert", 1) == 1.0
    assert communication.find_slowdown(SHIPPED.communication, "bert", 2) > 1.5


def test_a_light_model_keeps_its_speed_on_a_slice():
    light = slices.predict_slice_speed(slices.find_parallel_share(SHIPPED.slices, "mobilenet"), np.array([1.0, 7.0]))
    heavy = slices.predict_slice_speed(slices.find_parallel_share(SHIPPED.slices, "transformer"), np.array([1.0, 7.0]))
    assert light[0] > 0.6 > heavy[0]
    assert light[1] == heavy[1] == 1.0


def test_an_unknown_model_is_judged_by_its_activity():
    assert slices.find_parallel_share(SHIPPED.slices, "team/app", 0.4) == 0.4
    assert np.isnan(slices.find_parallel_share(SHIPPED.slices, "team/app"))
    assert np.isnan(slices.score_slices(float("nan"), np.array([1.0, 7.0]))).all()


def test_busy_neighbours_cost_points():
    residents = [Signature(0.1, 0.05), Signature(0.9, 0.5)]
    found = sharing.score_sharing(SHIPPED.interference, Signature(0.8, 0.4), residents, np.array([1, 2]), 3)
    assert found[0] == 0
    assert 0 > found[1] > found[2]


def test_an_unknown_neighbour_is_neutral():
    found = sharing.score_sharing(SHIPPED.interference, Signature(0.8), [Signature(None)], np.array([1]), 3)
    assert np.isnan(found[1])
    assert not points.combine_hints(3, {"interference": found}).points.any()


def test_reasons_name_the_largest_part_first():
    hints = points.combine_hints(1, {"slice": np.array([-2.0]), "interference": np.array([-4.0])})
    assert hints.points[0] == -6
    assert hints.explain(0) == ("interference -4.0", "slice -2.0")
