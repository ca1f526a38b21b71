"""Which sizes the recovery benchmark refuses before minutes are spent."""

from __future__ import annotations

import pytest

from kgwe.bench.cluster.recovery import Options
from kgwe.errors import Permanent


def test_the_usual_size_makes_sense():
    Options().check()


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"gangs": 6}, "room for 5"),
        ({"leaf": 8}, "room for 0"),
        ({"faults": 0}, "--faults 0: must be at least 1"),
        ({"gang_size": 0}, "--gang-size 0: must be at least 1"),
    ],
)
def test_what_cannot_be_measured_is_refused(given: dict[str, int], why: str):
    with pytest.raises(Permanent, match=why):
        Options(**given).check()
