"""Owners and the text under which they are known."""

from __future__ import annotations

import pytest

from kgwe.cluster.workload.owner import (
    ExternalGangOwner,
    Nomination,
    PodOwner,
    Replacement,
    Reservation,
    WorkloadOwner,
    device_claim_text,
    owner_of_holder,
    parse_gang,
    parse_replacement,
    requester_of,
)
from kgwe.kube.dialects import Key
from kgwe.placement.live.ledger import seat_key

GANG = ExternalGangOwner(Key("team", "PodGroup.scheduling.x-k8s.io", "train"))


def test_stored_texts_are_those_of_earlier_releases():
    """Pods carry them in their annotations."""
    assert GANG.text == "gang:team/PodGroup.scheduling.x-k8s.io/train"
    assert Replacement("uid").text == "lost:uid"
    assert Reservation("uid").text == "claim:uid"
    assert Nomination("uid").text == "nominated:uid"
    assert device_claim_text("uid") == "claim/uid"
    assert WorkloadOwner("uid").text == PodOwner("uid").text == "uid"


def test_a_gang_is_read_from_its_text():
    assert parse_gang(GANG.text) == GANG
    assert parse_gang("0f1c-22") is None
    assert parse_gang(Replacement(GANG.text).text) is None


@pytest.mark.parametrize("owner", ["uid", GANG.text])
def test_a_replacement_is_requested_by_the_owner_that_lost_members(owner):
    text = Replacement(owner).text
    assert parse_replacement(text) == Replacement(owner)
    assert parse_replacement(owner) is None
    assert requester_of(text) == requester_of(owner) == owner


@pytest.mark.parametrize("owner", ["uid", GANG.text, Replacement("uid").text])
def test_the_holder_of_a_seat_belongs_to_its_owner(owner):
    assert owner_of_holder(seat_key(owner, 12)) == owner
    assert owner_of_holder(device_claim_text("ab-c")) == device_claim_text("ab-c")
