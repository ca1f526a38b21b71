"""Admissions of one owner, and turns of namespaces."""

from __future__ import annotations

from kgwe.apps.scheduler.budgets.durations import Durations
from kgwe.apps.scheduler.budgets.encumbrance_table import Admission, EncumbranceTable
from kgwe.apps.scheduler.budgets.turns import take_in_turns
from kgwe.costing.rates import HourlyRate
from kgwe.costing.segments import Account


def test_a_workload_that_grows_within_a_second_encumbers_all_of_it() -> None:
    table = EncumbranceTable()
    for micros, seconds in ((10, 60), (30, 40)):
        table.add(Admission("w", Account("n"), HourlyRate(micros, micros), 100, Durations(seconds, seconds)))
    (found,) = table.find_running("w")
    assert (found.rate, found.durations) == (HourlyRate(40, 40), Durations(60, 60))
    table.end("w", 101)
    table.add(Admission("w", Account("n"), HourlyRate(5, 5), 100, Durations(1, 1)))
    (found,) = table.find_running("w")
    assert found.rate == HourlyRate(5, 5)


def test_many_of_one_namespace_delay_no_other() -> None:
    due = [f"tenant/{number}" for number in range(500)] + ["victim/a", "victim/b"]
    for look in range(5):
        first = take_in_turns(due, lambda each: each.partition("/")[0], 50, look)
        assert len(first) == 50
        assert {"victim/a", "victim/b"} <= set(first)
    seen = {each for look in range(500) for each in take_in_turns(due, lambda each: each[:6], 50, look)}
    assert seen == set(due)
    assert take_in_turns([], str, 50, 3) == []
