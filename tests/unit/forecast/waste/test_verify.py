"""Savings after advice was followed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kgwe.forecast.waste.verify import Result, Span, sum_ledger, verify_saving

BEFORE = Span(hours=24.0, metered_hours=24.0, cost=72.0, activity=0.1, p95=0.2)
AFTER = Span(hours=10.0, metered_hours=10.0, cost=5.0, activity=0.6, p95=0.8)


def test_the_realized_saving_is_the_metered_difference():
    found = verify_saving(2.5, BEFORE, AFTER)
    assert (found.result, found.realized_per_hour, found.realized) == (Result.REALIZED, 2.5, 25.0)
    assert found.error == pytest.approx(0.0)


@pytest.mark.parametrize(
    ("after", "result"),
    [
        (replace(AFTER, cost=15.0), Result.PARTLY),
        (replace(AFTER, cost=40.0), Result.NOT_REALIZED),
        (replace(AFTER, hours=0.5, metered_hours=0.5), Result.TOO_EARLY),
        (replace(AFTER, metered_hours=5.0), Result.UNKNOWN),
        (replace(AFTER, cost=None), Result.UNKNOWN),
        (replace(AFTER, p95=0.99), Result.HARMFUL),
        (replace(AFTER, hours=0.5, metered_hours=0.5, oom_kills=1), Result.HARMFUL),
        (replace(AFTER, is_original=True), Result.REVERSED),
        (replace(AFTER, hours=0.0, metered_hours=0.0, cost=0.0), Result.TOO_EARLY),
    ],
)
def test_each_outcome_has_its_own_result(after, result):
    assert verify_saving(2.5, BEFORE, after).result is result


def test_a_workload_that_was_full_before_is_not_harmed():
    assert verify_saving(2.5, replace(BEFORE, p95=0.99), replace(AFTER, p95=0.99)).result is Result.REALIZED


def test_a_reversal_keeps_what_was_saved_until_then():
    found = verify_saving(2.5, BEFORE, replace(AFTER, is_original=True))
    assert found.realized == 25.0


def test_an_unknown_promise_has_no_error():
    found = verify_saving(None, BEFORE, AFTER)
    assert (found.result, found.error) == (Result.REALIZED, None)


def test_the_ledger_adds_savings_and_losses():
    kept = verify_saving(2.5, BEFORE, AFTER)
    lost = verify_saving(2.5, BEFORE, replace(AFTER, cost=40.0))
    gone = verify_saving(2.5, BEFORE, replace(AFTER, is_original=True))
    unknown = verify_saving(2.5, BEFORE, replace(AFTER, cost=None))
    ledger = sum_ledger([kept, lost, gone, unknown])
    assert ledger.realized == pytest.approx(25.0 - 10.0 + 25.0)
    assert (ledger.followed, ledger.reversals, ledger.unknown) == (4, 1, 1)
