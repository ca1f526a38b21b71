"""Seats of drained pods are kept for the pods that are made in their place, and for no longer than needed."""

from __future__ import annotations

import msgspec
import pytest
from tests.support.builders.gangs import gangs, heard, member, state
from tests.support.builders.objects import added, free, node, removed

__all__ = ["gangs", "heard", "state"]

EVICTED = [{"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}]


def seated(state, gangs):
    """A gang of two, a node each."""
    first = member("p")
    state.on_pod(added(first))
    owner = gangs.owner_of("uid-p")
    state.on_pod(removed(first))
    state.on_pod(added(member("p", at="n1", says=f"{owner}/0")))
    state.on_pod(added(member("q", at="n2", says=f"{owner}/1")))
    assert free(state) == {"n1": 0, "n2": 0}
    return owner


def leaves(state, owner, **how):
    pod = member("q", at="n2", says=f"{owner}/1", gone=True, **how)
    state.on_pod(added(pod))
    state.on_pod(removed(pod))


def cordoned(name, *, on):
    plain = node(name)
    return msgspec.structs.replace(plain, spec=msgspec.structs.replace(plain.spec, unschedulable=on))


def test_the_seat_of_an_evicted_pod_is_kept_and_given_to_the_next(state, gangs, heard):
    owner = seated(state, gangs)
    leaves(state, owner, conditions=EVICTED)
    assert free(state) == {"n1": 0, "n2": 0}, "nothing else gets the GPUs meanwhile"

    state.on_pod(added(member("r", phase="Pending")))
    heard.settle()

    assert heard.seated == [("r", 1)]
    heard.run_timers()
    assert state.ledger.reserved_seat(owner, 1).node == "n2"


def test_while_the_node_is_cordoned_the_next_pod_asks_first_and_gets_its_seat_with_the_node(state, gangs, heard):
    owner = seated(state, gangs)
    state.on_node(added(cordoned("n2", on=True)))
    leaves(state, owner, conditions=EVICTED)
    state.on_pod(added(member("r", phase="Pending")))
    heard.settle()
    assert not heard.seated
    assert heard.asked[-1].first_claim
    heard.run_timers()
    assert state.ledger.reserved_seat(owner, 1).node == "n2", "a pod waits for it: its time starts again"

    state.on_node(added(cordoned("n2", on=False)))
    heard.settle()

    assert heard.seated == [("r", 1)]


def test_a_pod_deleted_from_a_cordoned_node_counts_as_drained(state, gangs):
    owner = seated(state, gangs)
    state.on_node(added(cordoned("n2", on=True)))
    leaves(state, owner)
    assert state.ledger.reserved_seat(owner, 1) is not None


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"conditions": EVICTED, "controller": ""},
        {"conditions": [EVICTED[0] | {"reason": "PreemptionByScheduler"}]},
        {"conditions": [EVICTED[0] | {"status": "False"}]},
    ],
)
def test_nothing_is_kept_for_a_pod_that_was_deleted_preempted_or_that_nothing_replaces(state, gangs, how):
    leaves(state, seated(state, gangs), **how)
    assert free(state) == {"n1": 0, "n2": 8}


def test_nothing_is_kept_for_a_gang_that_makes_way(state, gangs):
    owner = seated(state, gangs)
    gangs.make_way(owner)
    leaves(state, owner, conditions=EVICTED)
    assert free(state) == {"n1": 0, "n2": 8}


def test_a_gang_that_makes_way_gives_up_what_was_kept_for_it(state, gangs):
    owner = seated(state, gangs)
    leaves(state, owner, conditions=EVICTED)
    gangs.make_way(owner)
    assert free(state) == {"n1": 0, "n2": 8}


def test_a_seat_is_given_up_when_no_pod_comes_for_it(state, gangs, heard):
    owner = seated(state, gangs)
    leaves(state, owner, conditions=EVICTED)
    heard.run_timers()
    assert free(state) == {"n1": 0, "n2": 8}
    state.on_pod(removed(member("p", at="n1", says=f"{owner}/0")))
    assert gangs.group(owner) is None


def test_a_gang_that_is_drained_as_a_whole_keeps_its_seats_and_is_forgotten_after_them(state, gangs, heard):
    owner = seated(state, gangs)
    leaves(state, owner, conditions=EVICTED)
    last = member("p", at="n1", says=f"{owner}/0", gone=True, conditions=EVICTED)
    state.on_pod(added(last))
    state.on_pod(removed(last))
    assert free(state) == {"n1": 0, "n2": 0}
    heard.run_timers()
    assert free(state) == {"n1": 8, "n2": 8}
    assert gangs.group(owner) is None


def small(made):
    """The pod, asking for no GPU."""
    container = msgspec.structs.replace(made.spec.containers[0], resources=type(made.spec.containers[0].resources)())
    return msgspec.structs.replace(made, spec=msgspec.structs.replace(made.spec, containers=(container,)))


def test_a_pod_that_its_user_bound_gives_the_rest_of_its_gang_no_first_claim(state, heard):
    state.on_pod(added(small(member("p", at="n1"))))
    state.on_pod(added(member("q", phase="Pending")))
    heard.settle()
    assert heard.asked[-1].pods == 1, "it is planned beside the first"
    assert not heard.asked[-1].first_claim


def test_a_gang_that_lost_a_small_pod_gets_no_first_claim_for_a_larger_one(state, gangs, heard):
    owner = seated(state, gangs)
    lost = small(member("q", at="n2", says=f"{owner}/1"))
    state.on_pod(added(lost))
    state.on_pod(removed(lost))
    state.on_pod(added(member("r", phase="Pending")))
    heard.settle()
    assert not heard.asked[-1].first_claim


def test_a_gang_that_lost_a_pod_gets_the_first_claim_for_one_like_it(state, gangs, heard):
    owner = seated(state, gangs)
    leaves(state, owner)
    state.on_pod(added(member("r", phase="Pending")))
    heard.settle()
    assert heard.asked[-1].first_claim
