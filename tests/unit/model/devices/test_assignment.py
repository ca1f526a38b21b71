from __future__ import annotations

import pytest

from kgwe.model.devices import assignment
from kgwe.model.devices.assignment import Places


@pytest.mark.parametrize(
    "given", [Places(), Places(0b1), Places(0xF0), Places(1 << 62), Places(0, ((0, 4), (1, 0))), Places(2, ((0, 0),))]
)
def test_annotations_read_back(given: Places):
    assert assignment.planned(assignment.as_annotations(given)) == given


@pytest.mark.parametrize("text", ["", "F0", "0xf0", "-1", "f0 ", "g", "1" * 17, "१"])
def test_a_mask_that_we_would_not_write_is_not_believed(text: str):
    assert assignment.planned({assignment.CARDS_ANNOTATION: text}) == Places()


@pytest.mark.parametrize("text", ["", "0", "0@", "@1", "0@0,", "0@0;1@1", "0@0 ,1@1", "9999@0"])
def test_slices_that_we_would_not_write_are_not_believed(text: str):
    assert assignment.planned({assignment.SLICES_ANNOTATION: text}) == Places()


def test_places_in_words():
    assert str(Places(0b101, ((3, 4),))) == "card 0, card 2, slice 3@4"
    assert str(Places()) == "nothing"


def test_within():
    assert Places(0b01).within(Places(0b11))
    assert not Places(0b11).within(Places(0b01))
    assert Places().within(Places())
    assert not Places(slices=((0, 4),)).within(Places(0b1))
