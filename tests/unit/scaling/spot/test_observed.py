"""What is observed of one spot offer."""

from __future__ import annotations

import itertools

import pytest

from kgwe.scaling.spot.observed import ObservedOffer, estimate_break_share
from kgwe.scaling.spot.run_rates import TYPICAL


@pytest.mark.parametrize(("held", "lost", "gang"), [(6, 2, 1), (6, 2, 3), (6, 6, 2), (6, 1, 6), (4, 1, 9), (5, 0, 2)])
def test_the_share_of_broken_gangs_is_that_of_all_gangs_of_the_size(held: int, lost: int, gang: int) -> None:
    gangs = list(itertools.combinations(range(held), min(gang, held)))
    broken = sum(any(node < lost for node in each) for each in gangs)
    assert estimate_break_share(held, lost, gang) == pytest.approx(broken / len(gangs))


def test_nodes_that_are_lost_together_break_large_gangs_no_more_often_than_they_are_lost() -> None:
    together, one_by_one = ObservedOffer(), ObservedOffer()
    for hour in range(400):
        together.observe_held(16, 16 if hour % 100 == 99 else 0, 1.0)
        one_by_one.observe_held(16, 1 if hour % 6 == 5 else 0, 1.0)
    # The same nodes are lost per hour: 16 of 100 hours at once, or one every 6 hours.
    assert together.estimate_rates(16).available[3] < 0.05
    assert one_by_one.estimate_rates(16).available[3] > 0.1
    assert one_by_one.estimate_rates(1).available[3] < 0.05


def test_times_without_capacity_end_with_the_first_sale() -> None:
    seen = ObservedOffer()
    assert not seen.is_known
    assert seen.estimate_rates(1).away == pytest.approx(TYPICAL.away)
    for _ in range(20):
        seen.observe_refused(0.1)
    assert seen.find_age_h(1, is_available=False) == pytest.approx(2.0)
    seen.observe_sold()
    seen.observe_sold()
    assert sum(seen.away.ends) == 1.0
    assert seen.away.age_h == 0.0
