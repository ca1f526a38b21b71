"""Budgets: periods, encumbrances, admission and alerts."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from fractions import Fraction
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgwe.costing import money
from kgwe.costing.budgets import alerts
from kgwe.costing.budgets.admission import (
    Budget,
    Demand,
    Measure,
    Outcome,
    Policy,
    Spend,
    choose_strictest,
    decide,
    order_by_throttle,
)
from kgwe.costing.budgets.encumbrances import MOST_SECONDS, Encumbrance, EncumbranceBook, to_duration
from kgwe.costing.budgets.periods import Period, PeriodLength, find_period, list_periods

BERLIN = ZoneInfo("Europe/Berlin")
HOUR = 3600
DOLLAR = money.MICROS
T0 = int(dt.datetime(2026, 3, 2, tzinfo=dt.UTC).timestamp())


def at(*parts: int, zone: dt.tzinfo = BERLIN) -> int:
    return int(dt.datetime(*parts, tzinfo=zone).timestamp())  # type: ignore[misc,arg-type] # year, month, day, hour


def daily(limit: int, policy: Policy = Policy.BLOCK) -> Budget:
    return Budget("team-a", limit * DOLLAR, length=PeriodLength.DAILY, policy=policy)


def demand(owner: str, dollars_per_hour: int, hours: float, longest: float | None = None) -> Demand:
    return Demand(owner, dollars_per_hour * DOLLAR, int(hours * HOUR), int((longest or hours) * HOUR))


def encumber(demand: Demand, start_s: int) -> Encumbrance:
    return Encumbrance(demand.owner, demand.rate, start_s, demand.longest_s)


class TestPeriods:
    def test_a_day_with_a_clock_change_has_23_or_25_hours(self):
        assert find_period(PeriodLength.DAILY, BERLIN, at(2026, 3, 29, 12)).length_s == 23 * HOUR
        assert find_period(PeriodLength.DAILY, BERLIN, at(2026, 10, 25, 12)).length_s == 25 * HOUR

    def test_weeks_begin_on_monday_and_months_on_the_first(self):
        week = find_period(PeriodLength.WEEKLY, BERLIN, at(2026, 11, 18, 1))
        assert (week.start_s, week.end_s) == (at(2026, 11, 16), at(2026, 11, 23))
        month = find_period(PeriodLength.MONTHLY, BERLIN, at(2026, 12, 31, 23))
        assert (month.start_s, month.end_s) == (at(2026, 12, 1), at(2027, 1, 1))

    @given(
        st.sampled_from(PeriodLength),
        st.sampled_from(
            [dt.UTC, BERLIN, ZoneInfo("America/Santiago"), ZoneInfo("Pacific/Apia"), ZoneInfo("Asia/Kolkata")]
        ),
        st.integers(0, 4_000_000_000),
    )
    def test_periods_follow_each_other_without_a_gap(self, length: PeriodLength, zone: dt.tzinfo, now: int):
        period = find_period(length, zone, now)
        assert period.start_s <= now < period.end_s
        after = find_period(length, zone, period.end_s)
        assert after.start_s == period.end_s
        assert find_period(length, zone, period.end_s - 1) == period

    def test_a_time_spans_the_periods_it_touches(self):
        periods = list(list_periods(PeriodLength.DAILY, dt.UTC, T0 + HOUR, T0 + 49 * HOUR))
        assert [each.start_s for each in periods] == [T0, T0 + 24 * HOUR, T0 + 48 * HOUR]


class TestEncumbrances:
    def test_cost_counts_only_after_the_published_spend(self):
        day = Period(T0, T0 + 24 * HOUR)
        running = Encumbrance("a", 2 * DOLLAR, T0, 10 * HOUR)
        assert running.cost_in(day, T0, T0) == 20 * DOLLAR * HOUR
        assert running.cost_in(day, T0 + 4 * HOUR, T0 + 4 * HOUR) == 12 * DOLLAR * HOUR

    def test_a_workload_past_its_expected_end_is_expected_to_run_as_long_again(self):
        late = Encumbrance("a", DOLLAR, T0, HOUR)
        assert late.end_at(T0 + 3 * HOUR) == T0 + 6 * HOUR

    def test_an_ended_workload_counts_until_the_spend_covers_it(self):
        book = EncumbranceBook([Encumbrance("a", DOLLAR, T0, 10 * HOUR)])
        book.end("a", T0 + 2 * HOUR)
        book.end("a", T0 + 5 * HOUR)
        day = Period(T0, T0 + 24 * HOUR)
        assert book.total_in(day, T0, T0 + 3 * HOUR) == 2 * DOLLAR * HOUR
        book.forget_before(T0 + HOUR)
        assert "a" in book
        book.forget_before(T0 + 2 * HOUR)
        assert len(book) == 0

    @pytest.mark.parametrize("seconds", [None, float("nan"), float("inf"), -1.0])
    def test_an_unknown_duration_is_the_fallback(self, seconds: float | None):
        assert to_duration(seconds, 7) == 7

    def test_a_duration_is_bounded(self):
        assert to_duration(1e30, 7) == MOST_SECONDS
        assert Encumbrance("a", 1, T0, MOST_SECONDS).end_at(T0) == T0 + MOST_SECONDS


class TestAdmission:
    def test_ten_workloads_of_one_second_cannot_spend_the_same_money(self):
        budget, book = daily(10), EncumbranceBook()
        admitted = 0
        for number in range(10):
            wanted = demand(f"w{number}", 3, 1)
            if decide(budget, Spend(0, T0), book, wanted, T0).is_admitted:
                book.add(encumber(wanted, T0))
                admitted += 1
        assert admitted == 3

    def test_block_counts_the_p90_cost_and_throttle_the_expected_one(self):
        wanted = demand("w", 1, 5, longest=12)
        assert decide(daily(10), Spend(0, T0), EncumbranceBook(), wanted, T0).outcome is Outcome.IMPOSSIBLE
        throttle = daily(10, Policy.THROTTLE)
        assert decide(throttle, Spend(0, T0), EncumbranceBook(), wanted, T0).outcome is Outcome.ADMITTED

    def test_throttle_lets_workloads_start_last_above_the_soft_limit_and_not_above_the_limit(self):
        budget = daily(10, Policy.THROTTLE)
        spend = Spend(7 * DOLLAR * HOUR, T0 + HOUR)
        outcomes = [
            decide(budget, spend, EncumbranceBook(), demand("w", 1, hours), T0 + HOUR).outcome for hours in (1, 2, 4)
        ]
        assert outcomes == [Outcome.ADMITTED, Outcome.THROTTLED, Outcome.WAITS]

    def test_alert_admits_always(self):
        decision = decide(daily(1, Policy.ALERT), Spend(10**15, T0), EncumbranceBook(), demand("w", 9, 9), T0)
        assert decision.outcome is Outcome.ADMITTED

    def test_a_workload_must_fit_into_each_period_it_runs_in(self):
        book = EncumbranceBook([Encumbrance("tomorrow", 9 * DOLLAR, T0 + 24 * HOUR, HOUR)])
        late = T0 + 23 * HOUR
        tonight = decide(daily(10), Spend(0, late), book, demand("w", 2, 1), late)
        until_morning = decide(daily(10), Spend(0, late), book, demand("w", 2, 2), late)
        assert tonight.outcome is Outcome.ADMITTED
        assert until_morning.outcome is Outcome.WAITS

    def test_a_long_workload_whose_days_fit_is_admitted(self):
        assert decide(daily(24), Spend(0, T0), EncumbranceBook(), demand("w", 1, 72), T0).is_admitted

    def test_waiting_does_not_help_a_workload_that_needs_more_than_a_whole_day(self):
        wanted = demand("w", 2, 72)
        decision = decide(daily(24), Spend(0, T0 + 5 * HOUR), EncumbranceBook(), wanted, T0 + 5 * HOUR)
        assert decision.outcome is Outcome.IMPOSSIBLE
        assert "is too small: the workload costs up to $48.00 in one period; the limit is $24.00." in decision.message
        halves = decide(daily(24), Spend(0, T0 + HOUR), EncumbranceBook(), demand("w", 2, 24), T0 + HOUR)
        assert halves.outcome is Outcome.WAITS, "half of it fits into each of two days"

    def test_the_last_spend_and_the_encumbrances_decide_while_the_cost_engine_is_down(self):
        book = EncumbranceBook([Encumbrance("a", 3 * DOLLAR, T0, 2 * HOUR)])
        book.end("a", T0 + 2 * HOUR)
        now = T0 + 12 * HOUR
        assert decide(daily(10), Spend(0, T0), book, demand("w", 5, 1), now).outcome is Outcome.WAITS
        assert decide(daily(10), Spend(0, T0), book, demand("w", 4, 1), now).outcome is Outcome.ADMITTED

    def test_spend_of_an_earlier_period_does_not_count(self):
        spend = Spend(10 * DOLLAR * HOUR, T0 - 1)
        assert decide(daily(10), spend, EncumbranceBook(), demand("w", 5, 1), T0).outcome is Outcome.ADMITTED

    def test_gpu_hours_are_limited_like_dollars(self):
        budget = replace(daily(10), measure=Measure.GPU_HOURS)
        decision = decide(budget, Spend(6 * DOLLAR * HOUR, T0), EncumbranceBook(), demand("w", 8, 1), T0)
        assert decision.message == (
            "Budget team-a has 4.0 GPU-hours left of 10.0 GPU-hours (6.0 GPU-hours spent and 0.0 GPU-hours encumbered);"
            " the workload costs up to 8.0 GPU-hours. The next period begins at 2026-03-03T00:00+00:00."
        )

    def test_the_strictest_budget_counts_and_names_itself(self):
        team, organisation = daily(100), replace(daily(4), name="organisation")
        decisions = [
            decide(each, Spend(0, T0), EncumbranceBook(), demand("w", 5, 1), T0) for each in (team, organisation)
        ]
        strictest = choose_strictest(decisions)
        assert strictest is not None
        assert strictest.message == (
            "Budget organisation is too small: the workload costs up to $5.00 in one period; the limit is $4.00."
            " Ask for fewer or cheaper GPUs or for a shorter run time, or raise the limit."
        )
        assert choose_strictest([]) is None

    def test_throttled_workloads_come_last_in_their_order(self):
        assert order_by_throttle(["a", "b", "c", "d"], frozenset({"a", "c"})) == ["b", "d", "a", "c"]

    @given(
        st.lists(st.tuples(st.integers(0, 20), st.integers(1, 200), st.integers(0, 72 * 3600)), max_size=25),
        st.integers(1, 500),
        st.sampled_from([Policy.BLOCK, Policy.THROTTLE]),
    )
    def test_known_durations_never_overspend(self, arrivals: list[tuple[int, int, int]], limit: int, policy: Policy):
        """Whatever was admitted: what it costs in each period is within the limit."""
        budget, book, now = daily(limit, policy), EncumbranceBook(), T0
        costs: dict[Period, int] = {}
        for number, (gap, rate, seconds) in enumerate(arrivals):
            now += gap * HOUR
            wanted = Demand(str(number), rate * DOLLAR, seconds, seconds)
            period = find_period(budget.length, budget.zone, now)
            for other in book.list_running():
                if other.start_s + other.duration_s <= now:
                    book.end(other.owner, other.start_s + other.duration_s)
            # The cost engine publishes every day at noon, and is down otherwise.
            until = max(period.start_s, min(now, period.start_s + 12 * HOUR))
            spend = Spend(
                sum(
                    each.rate * Period(period.start_s, until).overlap_s(each.start_s, each.end_at(now))
                    for each in book._by_owner.values()
                ),
                until,
            )
            if decide(budget, spend, book, wanted, now).is_admitted:
                book.add(Encumbrance(wanted.owner, wanted.rate, now, seconds))
                for each in list_periods(budget.length, budget.zone, now, now + seconds):
                    costs[each] = costs.get(each, 0) + wanted.rate * each.overlap_s(now, now + seconds)
        assert max(costs.values(), default=0) <= budget.limit_ticks

    @given(st.integers(1, 10**9), st.fractions(Fraction(1, 10), 1))
    def test_a_budget_under_its_soft_limit_blocks_nothing(self, limit: int, soft: Fraction):
        budget = Budget("b", limit, length=PeriodLength.DAILY, policy=Policy.THROTTLE, soft=soft)
        wanted = Demand("w", int(limit * soft), HOUR, HOUR)
        assert decide(budget, Spend(0, T0), EncumbranceBook(), wanted, T0).outcome is Outcome.ADMITTED


class TestAlerts:
    day = Period(T0, T0 + 24 * HOUR)

    def test_a_threshold_fires_once_per_period_and_again_in_the_next(self):
        state, new = alerts.advance_alerts(None, self.day, 0.85, [0.5, 0.8, 1.0], T0)
        assert new == (0.5, 0.8)
        state, new = alerts.advance_alerts(state, self.day, 0.4, [0.5, 0.8, 1.0], T0)
        assert new == ()
        state, new = alerts.advance_alerts(state, self.day, 1.2, [0.5, 0.8, 1.0], T0 + 60)
        assert new == (1.0,)
        assert state.exceeded_since_s == T0 + 60
        _, new = alerts.advance_alerts(state, Period(T0 + 24 * HOUR, T0 + 48 * HOUR), 0.6, [0.5], T0)
        assert new == (0.5,)

    def test_grace_counts_from_when_the_limit_was_exceeded(self):
        state, _ = alerts.advance_alerts(None, self.day, 1.1, [], T0)
        state, _ = alerts.advance_alerts(state, self.day, 1.2, [], T0 + HOUR)
        assert not alerts.is_grace_over(state, HOUR, T0 + HOUR - 1)
        assert alerts.is_grace_over(state, HOUR, T0 + HOUR)

    def test_a_short_peak_alone_is_not_burning(self):
        short = alerts.compute_burn_rate(0.05, HOUR, self.day)
        long = alerts.compute_burn_rate(0.05, 6 * HOUR, self.day)
        assert short == pytest.approx(1.2)
        assert not alerts.is_burning(10.0, long)
        assert alerts.is_burning(10.0, 3.0)

    def test_a_projection_has_an_interval_once_three_days_are_known(self):
        known = alerts.project_spend(100, 0, [10, 12, 8, 10], 10 * 86_400)
        assert known.expected == pytest.approx(200)
        assert known.lower is not None
        assert known.upper is not None
        assert 100 < known.lower < 200 < known.upper
        assert alerts.project_spend(100, 30, [10], 86_400) == alerts.Projection(130, None, None)

    def test_a_projection_is_at_least_what_is_encumbered(self):
        assert alerts.project_spend(100, 500, [1, 1, 1], 86_400).expected == 600
