"""A gang grows until all its pods exist."""

from __future__ import annotations

import pytest
from tests.support.builders.gangs import gangs, heard, member, state
from tests.support.builders.objects import added, removed

__all__ = ["gangs", "heard", "state"]


def test_a_gang_that_waits_for_pods_grows_until_the_last_one_is_there(state, gangs, heard):
    assert gangs.last_growth() is None
    state.on_pod(added(member("p")))
    heard.settle()
    assert gangs.last_growth() is not None
    state.on_pod(added(member("q")))
    heard.settle()
    assert heard.asked
    assert gangs.last_growth() is None


def test_a_change_of_a_pod_is_no_growth(state, gangs, heard):
    state.on_pod(added(member("p")))
    heard.settle()
    before = gangs.last_growth()
    state.on_pod(added(member("p", phase="Pending")))
    heard.settle()
    assert gangs.last_growth() == before


@pytest.mark.usefixtures("heard")
def test_a_gang_without_pods_grows_no_more(state, gangs):
    pod = member("p")
    state.on_pod(added(pod))
    state.on_pod(removed(pod))
    assert gangs.last_growth() is None
