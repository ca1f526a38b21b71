"""Pods of a gang come one by one: it is complete when it would be at a look at all of it, and not before."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.builders.gang_listener import Listener, member
from tests.support.builders.objects import added, removed
from tests.support.examples import examples

from kgwe.kube import dialects
from kgwe.model.units.phrasing import format_count


def test_a_gang_is_looked_at_when_its_first_pod_comes_and_when_its_last_does():
    heard = Listener()
    for number in range(5):
        assert not heard.asked
        heard.state.on_pod(added(member(f"p{number}")))
        heard.catch_up()
        if number < 4:
            assert heard.group.problem == f"gang team/g incomplete: waiting for {format_count(4 - number, 'more pod')}"
    assert [ask.pods for ask in heard.asked] == [5]
    assert heard.looks == 2


@pytest.mark.parametrize("odd", [{"size": 3}, {"gates": ("somebody.else/gate",)}])
def test_one_that_says_or_is_something_else_is_looked_at(odd: dict[str, Any]):
    heard = Listener()
    heard.state.on_pod(added(member("p0")))
    heard.catch_up()
    heard.state.on_pod(added(member("p1", **odd)))
    heard.catch_up()
    assert heard.looks == 2
    assert heard.group.lacking in (0, 4)


pods = st.tuples(st.integers(0, 7), st.sampled_from(["come", "come", "come", "go"]), st.sampled_from([4, 4, 4, 6]))


@examples(60)
@given(st.lists(st.tuples(pods, st.booleans()), max_size=25))
def test_what_is_said_to_be_missing_is_what_is_missing(history: list[tuple[tuple[int, str, int], bool]]):
    heard, there = Listener(), {}
    for (number, what, size), pause in history:
        name = f"p{number}"
        if what == "come" and name not in there:
            there[name] = member(name, size)
            heard.state.on_pod(added(there[name]))
        elif what == "go" and name in there:
            heard.state.on_pod(removed(there.pop(name)))
        if pause:
            heard.catch_up()
    heard.catch_up()
    if not there:
        assert not list(heard.gangs.owners())
        return
    group = heard.group
    lacking = dialects.count_missing(list(group.members.values()))
    sizes_agree = len({member.size for _, member in group.members.values()}) == 1
    assert bool(heard.asked) == (not lacking and sizes_agree and len(there) <= 4)
    if lacking:
        assert group.problem == f"gang team/g incomplete: waiting for {format_count(lacking, 'more pod')}"
