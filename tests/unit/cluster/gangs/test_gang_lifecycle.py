"""The phases of an externally created gang, and the transitions between them."""

from __future__ import annotations

import pytest

from kgwe import errors
from kgwe.cluster.gangs.gang_group import Group
from kgwe.cluster.gangs.gang_lifecycle import TRANSITIONS, GangEvent, GangPhase, next_phase
from kgwe.kube.dialects import Key

REQUESTS = (GangEvent.WHOLE_REQUESTED, GangEvent.REST_REQUESTED, GangEvent.PLAN_ASSIGNED)


def test_every_phase_has_transitions_and_can_be_reached_from_the_first():
    assert set(TRANSITIONS) == set(GangPhase)
    reached, todo = set(), [GangPhase.COLLECTING]
    while todo:
        phase = todo.pop()
        if phase not in reached:
            reached.add(phase)
            todo.extend(TRANSITIONS[phase].values())
    assert reached == set(GangPhase)


def test_every_event_is_used():
    assert {event for events in TRANSITIONS.values() for event in events} == set(GangEvent)


@pytest.mark.parametrize("event", REQUESTS)
def test_a_gang_whose_seats_were_released_is_not_planned_before_a_retry(event):
    with pytest.raises(errors.InvariantBroken):
        next_phase(GangPhase.RELEASED, event)
    assert next_phase(next_phase(GangPhase.RELEASED, GangEvent.RETRIED), GangEvent.WHOLE_REQUESTED) is GangPhase.QUEUED


def test_only_a_retry_ends_the_release():
    assert {event for event, after in TRANSITIONS[GangPhase.RELEASED].items() if after is not GangPhase.RELEASED} == {
        GangEvent.RETRIED
    }
    assert [phase for phase, events in TRANSITIONS.items() if GangEvent.RETRIED in events] == [GangPhase.RELEASED]


def test_seats_can_be_released_in_every_phase():
    assert all(events[GangEvent.SEATS_RELEASED] is GangPhase.RELEASED for events in TRANSITIONS.values())


def test_a_gang_is_queued_placed_drained_and_placed_again():
    group = Group(Key("team", "kgwe.nvidia.io", "g"))
    assert group.phase is GangPhase.COLLECTING
    steps = {
        GangEvent.FOUND_INCOMPLETE: GangPhase.COLLECTING,
        GangEvent.WHOLE_REQUESTED: GangPhase.QUEUED,
        GangEvent.PLAN_ASSIGNED: GangPhase.PLACED,
        GangEvent.SEATS_KEPT: GangPhase.AWAITING,
        GangEvent.REST_REQUESTED: GangPhase.PARTIAL,
        GangEvent.FOUND_PLACED: GangPhase.PLACED,
    }
    for event, phase in steps.items():
        group.advance(event)
        assert group.phase is phase


def test_an_event_that_cannot_happen_changes_nothing():
    group = Group(Key("team", "kgwe.nvidia.io", "g"), phase=GangPhase.PLACED)
    with pytest.raises(errors.InvariantBroken):
        group.advance(GangEvent.RETRIED)
    assert group.phase is GangPhase.PLACED
