"""How well runs went in each network domain."""

from __future__ import annotations

from kgwe.forecast.domains import NEUTRAL, DomainHistory, rate_domains
from kgwe.model.usage.history import Run

NOW_S = 1_000_000.0


def rate(runs: list[Run]) -> dict[str, DomainHistory]:
    """Fingerprints are the names of namespaces here."""
    return rate_domains(runs, NOW_S, {run.fingerprint: run.fingerprint for run in runs})


def make_runs(
    domain: str, count: int, *, succeeded: bool | None = True, lasted_s=100.0, predicted_s=None, age_s=0.0, of="team"
):
    return [
        Run(
            f"{of}-{domain}-{succeeded}-{lasted_s}-{number}",
            of,
            0.0,
            NOW_S - age_s - lasted_s,
            NOW_S - age_s,
            succeeded=succeeded,
            domain=domain,
            predicted_s=predicted_s,
        )
        for number in range(count)
    ]


def test_without_runs_nothing_is_rated_and_unknown_is_neutral():
    assert rate([]) == {}
    assert NEUTRAL.score == 1.0


def test_failures_everywhere_are_no_fault_of_a_domain():
    runs = [run for name in "ab" for run in make_runs(name, 10) + make_runs(name, 10, succeeded=False)]
    assert {found.score for found in rate(runs).values()} == {1.0}


def test_a_domain_with_more_failures_scores_less():
    runs = make_runs("good", 40) + make_runs("bad", 20) + make_runs("bad", 20, succeeded=False)
    found = rate(runs)
    assert found["good"].score == 1.0
    assert 0.5 < found["bad"].score < 0.9


def test_one_failure_costs_little():
    found = rate(make_runs("good", 40) + make_runs("new", 1, succeeded=False))
    assert 0.8 < found["new"].score < 1.0


def test_old_failures_fade():
    old = make_runs("bad", 20, succeeded=False, age_s=60 * 86_400.0)
    recent = make_runs("bad", 20, succeeded=False)
    good = make_runs("good", 40)
    assert rate(good + old)["bad"].score > rate(good + recent)["bad"].score


def test_a_slow_domain_scores_less_and_says_why():
    runs = make_runs("fast", 30, lasted_s=100, predicted_s=100.0) + make_runs(
        "slow", 30, lasted_s=200, predicted_s=100.0
    )
    found = rate(runs)
    assert found["slow"].score < 0.9
    assert found["fast"].score == 1.0
    assert "times as long" in found["slow"].reasons[1]


def test_a_predictor_that_is_always_low_changes_nothing():
    runs = [run for name in "ab" for run in make_runs(name, 30, lasted_s=200, predicted_s=100.0)]
    assert all(abs(found.score - 1.0) < 1e-9 for found in rate(runs).values())


def test_running_runs_and_runs_without_a_domain_are_left_out():
    running = Run("r", "f", 0.0, 10.0, None, seen_s=NOW_S, domain="a")
    assert rate([running, *make_runs("", 3), *make_runs("a", 3, succeeded=None)]) == {}


def test_one_namespace_does_not_decide_for_all():
    others = [run for name in "ab" for team in ("x", "y", "z") for run in make_runs(name, 30, of=team)]
    poison = make_runs("a", 500, succeeded=False, of="mallory")
    found = rate(others + poison)
    assert found["a"].score > 0.85
    assert found["a"].runs > 500
    # Several namespaces that see the same failures do.
    failing = [run for team in ("x", "y", "z") for run in make_runs("a", 30, succeeded=False, of=team)]
    assert rate(others + poison + failing)["a"].score < found["a"].score - 0.1


def test_one_namespace_alone_in_a_domain_costs_it_little():
    found = rate(make_runs("b", 40, of="x") + make_runs("a", 500, succeeded=False, of="mallory"))
    assert found["a"].score > 0.6


def test_one_namespace_does_not_make_a_domain_slow_for_all():
    others = [run for name in "ab" for team in "xyz" for run in make_runs(name, 30, predicted_s=100.0, of=team)]
    slow = make_runs("a", 500, lasted_s=4000.0, predicted_s=100.0, of="mallory")
    assert rate(others + slow)["a"].score > 0.88


def test_failures_soon_after_the_start_are_no_fault_of_a_domain():
    runs = make_runs("a", 40) + make_runs("b", 40) + make_runs("a", 400, succeeded=False, lasted_s=10.0)
    assert rate(runs)["a"].score == 1.0
