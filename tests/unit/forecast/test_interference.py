"""The speed of two jobs on one GPU."""

from __future__ import annotations

import numpy as np
import pytest

from kgwe import errors
from kgwe.forecast import coefficients
from kgwe.forecast.interference.fit import Observed, fit_model
from kgwe.forecast.interference.model import Coefficients, Signatures, compute_speeds, describe_jobs, estimate_parts
from kgwe.forecast.interference.safety import Signature, find_margin, forecast_pair

SHIPPED = coefficients.load().interference


def make_jobs(activity: list[float]) -> Signatures:
    known = np.array(activity)
    return Signatures(known, 0.4 * known, np.full(len(known), np.nan))


def observe_all(jobs: Signatures, truth: Coefficients) -> Observed:
    mine, others = (each.ravel() for each in np.meshgrid(np.arange(len(jobs)), np.arange(len(jobs))))
    return Observed(mine, others, compute_speeds(estimate_parts(truth, describe_jobs(jobs)), mine, others))


def test_two_saturated_jobs_get_about_half_each():
    pair = forecast_pair(SHIPPED, Signature(1.0), Signature(1.0))
    assert pair.first_speed == pair.second_speed == pytest.approx(0.5, abs=0.1)
    assert not pair.is_safe


def test_two_light_jobs_are_safe():
    pair = forecast_pair(SHIPPED, Signature(0.16, 0.1), Signature(0.16, 0.1))
    assert pair.first_speed is not None
    assert pair.first_speed > 0.95
    assert pair.is_safe


def test_a_new_job_that_waits_for_its_input_is_never_called_safe():
    pair = forecast_pair(SHIPPED, Signature(0.06, 0.05), Signature(0.06, 0.05))
    assert pair.first_speed is not None
    assert pair.first_speed > 0.95
    assert not pair.is_safe
    assert "host" in pair.reasons[-1]


def test_an_unknown_activity_gives_no_forecast():
    pair = forecast_pair(SHIPPED, Signature(None), Signature(0.5))
    assert not pair.is_known
    assert not pair.is_safe
    assert pair.first_speed is None


def test_memory_activity_that_is_not_measured_is_said():
    assert any("not measured" in reason for reason in forecast_pair(SHIPPED, Signature(0.5), Signature(0.5)).reasons)


def test_the_fit_finds_the_speeds_it_was_given():
    jobs = make_jobs([0.1, 0.3, 0.5, 0.7, 0.9, 1.0])
    observed = observe_all(jobs, Coefficients((0.0,), (-0.5, 1.2, 0.0), (0.9, 0.2)))
    fitted = fit_model(jobs, observed, np.arange(6), has_offset=False)
    speeds = compute_speeds(fitted.parts, observed.jobs, observed.others)
    assert np.abs(speeds - observed.speeds).mean() < 0.01


def test_a_job_that_was_not_seen_follows_its_signature():
    jobs = make_jobs([0.1, 0.3, 0.5, 0.7, 0.9, 1.0])
    all_pairs = observe_all(jobs, Coefficients((0.0,), (-0.5, 1.2, 0.0), (0.9, 0.2)))
    without_last = (all_pairs.jobs != 5) & (all_pairs.others != 5)
    fitted = fit_model(jobs, Observed(*(each[without_last] for each in all_pairs)), np.arange(6), has_offset=False)
    assert not fitted.seen[5]
    speeds = compute_speeds(fitted.parts, all_pairs.jobs, all_pairs.others)
    assert np.abs(speeds - all_pairs.speeds)[~without_last].mean() < 0.03


def test_a_fit_without_pairs_is_refused():
    empty = np.zeros(0, dtype=np.intp)
    with pytest.raises(errors.Permanent, match="no measured pair"):
        fit_model(make_jobs([0.5]), Observed(empty, empty, np.zeros(0)), np.zeros(1, dtype=np.intp))


def test_the_margin_is_the_lowest_that_keeps_the_precision():
    margins = np.array([3.0, 2.0, 1.0, 0.5])
    assert find_margin(margins, np.array([True, True, True, False])) == 1.0
    assert find_margin(margins, np.array([False, True, True, True])) == float("inf")
    assert find_margin(np.zeros(0), np.zeros(0, dtype=bool)) == float("inf")


def test_pairs_of_equal_margin_are_taken_together():
    assert find_margin(np.array([2.0, 1.0, 1.0]), np.array([True, True, False])) == 2.0


def test_shipped_coefficients_name_free_sources_only():
    shipped = coefficients.load()
    assert len(shipped.sources) == 3
    assert all("MIT" in source or "Apache" in source for source in shipped.sources)
    assert all(ratio >= 1 for ratios in shipped.communication.values() for ratio in ratios.values())
    assert all(0 <= share <= 1 for share in shipped.slices.values())


@pytest.mark.parametrize("text", ["", "{}", '{"date": 1}', "[]"])
def test_damaged_coefficients_are_reported_in_one_line(text):
    with pytest.raises(errors.Permanent, match="damaged"):
        coefficients.parse(text)
