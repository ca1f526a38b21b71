"""A trial changes the snapshot and leaves nothing behind, whatever happens inside."""

import pytest
from tests.support.builders.plans import Fleet, state

from kgwe import errors
from kgwe.placement.fleet.snapshot import Grant

FIRST = Grant(0, gpus=0b0011)
SECOND = Grant(0, gpus=0b1100)


def test_changes_are_visible_inside_and_gone_afterwards():
    fleet = Fleet("ab")
    before = state(fleet.snapshot)
    with fleet.snapshot.trial() as trial:
        trial.commit_all([FIRST, SECOND])
        assert fleet.snapshot.free[0] == 0
        assert len(trial) == 2
    assert state(fleet.snapshot) == before
    assert len(trial) == 0


def test_a_rollback_to_a_mark_keeps_what_came_before():
    fleet = Fleet("ab")
    with fleet.snapshot.trial() as trial:
        trial.commit(FIRST)
        mark = len(trial)
        trial.commit(SECOND)
        trial.rollback(mark)
        assert fleet.snapshot.free[0] == SECOND.gpus
        assert len(trial) == mark


def test_releases_are_booked_again():
    fleet = Fleet("ab")
    fleet.run("job", "ab", cards=4)
    before = state(fleet.snapshot)
    grants = [member.grant for member in fleet.running[0].members if member.grant is not None]
    with fleet.snapshot.trial() as trial:
        trial.release_all(grants)
        trial.commit(FIRST)
        assert fleet.snapshot.free.tolist() == [0b1100, 0b1111]
    assert state(fleet.snapshot) == before


def test_an_error_inside_is_raised_and_all_is_rolled_back():
    fleet = Fleet("a")
    before = state(fleet.snapshot)
    with pytest.raises(errors.InvariantBroken), fleet.snapshot.trial() as trial:
        trial.commit_all([FIRST, FIRST])
    assert state(fleet.snapshot) == before


def test_book_ignores_missing_cpu_and_is_rolled_back():
    fleet = Fleet("a", cpu=1000)
    before = state(fleet.snapshot)
    with fleet.snapshot.trial() as trial:
        trial.book(Grant(0, cpu_milli=5000, gpus=0b1))
        assert fleet.snapshot.cpu_milli[0] == -4000
    assert state(fleet.snapshot) == before


def test_commit_all_books_all_or_none():
    fleet = Fleet("a")
    before = state(fleet.snapshot)
    with pytest.raises(errors.InvariantBroken):
        fleet.snapshot.commit_all([FIRST, FIRST])
    assert state(fleet.snapshot) == before
    undo = fleet.snapshot.commit_all([FIRST, SECOND])
    assert fleet.snapshot.free[0] == 0
    undo()
    assert state(fleet.snapshot) == before
