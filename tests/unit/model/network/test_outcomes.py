"""What became of workloads in a domain, as a score."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgwe.model.network.outcomes import HALF_LIFE_S, Outcomes

counts = st.floats(0, 1e6)


def test_a_domain_without_a_past_is_not_suspected():
    assert Outcomes().score == Outcomes().step == 1.0
    assert Outcomes().is_forgotten


def test_losses_lower_the_score_and_completions_raise_it_again():
    lost = Outcomes().plus(0.0, lost=1.0)
    assert lost.score == pytest.approx(0.8)
    assert lost.plus(0.0, lost=1.0).score < lost.score
    assert lost.score < lost.plus(0.0, completed=4.0).score < 1.0


def test_what_is_long_past_counts_for_little():
    lost = Outcomes(at_s=0.0).plus(0.0, lost=4.0)
    assert lost.decay_to(HALF_LIFE_S).lost == pytest.approx(2.0)
    assert lost.decay_to(0.0).score < lost.decay_to(HALF_LIFE_S).score < lost.decay_to(20 * HALF_LIFE_S).score
    assert lost.decay_to(20 * HALF_LIFE_S).is_forgotten
    assert lost.decay_to(-5.0) == lost, "a clock that went back"


@given(counts, counts, st.floats(0, 1e9))
def test_a_score_is_always_a_share(completed, lost, later):
    past = Outcomes().plus(0.0, completed=completed, lost=lost).decay_to(later)
    assert 0.0 < past.score <= 1.0
    assert 0.0 <= past.step <= 1.0
    assert abs(past.step - past.score) <= 0.026
