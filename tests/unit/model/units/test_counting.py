"""Numbers with their nouns."""

from __future__ import annotations

from kgwe.model.units.counting import counted


def test_one_takes_the_singular_and_every_other_number_the_plural():
    assert [counted(number, "pod") for number in (0, 1, 2)] == ["0 pods", "1 pod", "2 pods"]
