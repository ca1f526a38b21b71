from __future__ import annotations

import pytest

from kgwe.model.devices import assignment
from kgwe.model.devices.assignment import DeviceSet


@pytest.mark.parametrize(
    "given",
    [
        DeviceSet(),
        DeviceSet(0b1),
        DeviceSet(0xF0),
        DeviceSet(1 << 62),
        DeviceSet(0, ((0, 4), (1, 0))),
        DeviceSet(2, ((0, 0),)),
    ],
)
def test_annotations_read_back(given: DeviceSet):
    assert assignment.parse_planned(assignment.format_annotations(given)) == given


@pytest.mark.parametrize("text", ["", "F0", "0xf0", "-1", "f0 ", "g", "1" * 17, "१"])
def test_a_mask_that_we_would_not_write_is_not_believed(text: str):
    assert assignment.parse_planned({assignment.CARDS_ANNOTATION: text}) == DeviceSet()


@pytest.mark.parametrize("text", ["", "0", "0@", "@1", "0@0,", "0@0;1@1", "0@0 ,1@1", "9999@0"])
def test_slices_that_we_would_not_write_are_not_believed(text: str):
    assert assignment.parse_planned({assignment.SLICES_ANNOTATION: text}) == DeviceSet()


def test_places_in_words():
    assert str(DeviceSet(0b101, ((3, 4),))) == "GPU 0, GPU 2, slice 3@4"
    assert str(DeviceSet()) == "nothing"


def test_within():
    assert DeviceSet(0b01).is_subset(DeviceSet(0b11))
    assert not DeviceSet(0b11).is_subset(DeviceSet(0b01))
    assert DeviceSet().is_subset(DeviceSet())
    assert not DeviceSet(slices=((0, 4),)).is_subset(DeviceSet(0b1))
