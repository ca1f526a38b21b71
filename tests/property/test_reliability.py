"""Reliability: 1.0 without trouble, less with every incident, and back to 1.0 with time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgwe.model.health import reliability
from kgwe.model.health.reliability import CLEAN, HALF_LIFE_S, MOST, Record, Weight

weights = st.sampled_from(list(Weight))
past = st.lists(st.tuples(st.floats(0, 30 * 86_400), weights), max_size=30)


def charged(story: list[tuple[float, Weight]]) -> tuple[Record, float]:
    record, now_s = CLEAN, 1e9
    for after_s, weight in story:
        now_s += after_s
        record = record.charge(weight, now_s)
    return record, now_s


@given(past)
def test_a_score_is_between_nothing_and_one(story):
    record, now_s = charged(story)
    assert 0 < record.score(now_s) <= 1
    assert record.demerits <= MOST


@given(past, weights)
def test_an_incident_never_makes_it_better(story, weight):
    record, now_s = charged(story)
    assert record.charge(weight, now_s).score(now_s) <= record.score(now_s) + 1e-12


@given(past, st.floats(0, 1e9))
def test_time_only_forgives(story, later_s):
    record, now_s = charged(story)
    assert record.score(now_s + later_s) >= record.score(now_s)
    assert record.score(now_s - later_s) <= record.score(now_s), "time that has not passed forgives nothing"
    assert record.score(now_s + 20 * HALF_LIFE_S) == 1.0


@given(past)
def test_the_order_of_incidents_of_one_moment_does_not_matter(story):
    there, back = CLEAN, CLEAN
    serious = [weight for _, weight in story if weight > Weight.APPLICATION]
    for weight in serious:
        there = there.charge(weight, 1e9)
    for weight in reversed(serious):
        back = back.charge(weight, 1e9)
    assert there.demerits == pytest.approx(back.demerits)


@given(past)
def test_programs_alone_cost_little(story):
    record, now_s = charged([(after_s, Weight.APPLICATION) for after_s, _ in story])
    assert record.score(now_s) >= 0.9


@given(st.lists(past, min_size=1, max_size=5))
def test_what_needs_all_is_no_better_than_the_worst(stories):
    records = [charged(story)[0] for story in stories]
    now_s = max(charged(story)[1] for story in stories)
    assert reliability.combined_score(records, now_s) <= min(record.score(now_s) for record in records) + 1e-12


def test_nothing_known_is_no_trouble():
    assert CLEAN.score(0) == reliability.combined_score((), 0) == 1.0


def test_half_of_it_is_forgiven_in_a_half_life():
    record = CLEAN.charge(Weight.FATAL, 1e9)
    assert record.demerits_at(1e9 + HALF_LIFE_S) == pytest.approx(0.5)
    assert record.score(1e9) == pytest.approx(0.368, abs=1e-3)


@given(st.floats(0.001, 1.0), st.floats(0.0, 1.0))
def test_what_is_told_stays_while_the_difference_is_small(score, before):
    told = reliability.published_score(score, before)
    assert abs(told - score) < reliability.TELLING + 0.006
    assert reliability.published_score(score, told) == told
