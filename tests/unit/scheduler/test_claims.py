"""Room that is kept for one piece of work: nobody else gets it, and it is given back when the work is gone."""

from __future__ import annotations

import asyncio
import random

import pytest
from tests.support.builders.objects import TWO, UID, added, changed, free, job, node, pod, removed, workload
from tests.support.patience import until

from kgwe.apps.scheduler.metrics import Metrics
from kgwe.apps.scheduler.planning.planner import Planner
from kgwe.apps.scheduler.planning_errors import PlanningErrors
from kgwe.cluster.registry.announcer import ClusterListener
from kgwe.cluster.state.cluster_state import ClusterState
from kgwe.cluster.workload.owner import Reservation
from kgwe.model.units import amounts
from kgwe.placement.fleet.node import Gpus, Request
from kgwe.placement.live.holding import Holding
from kgwe.placement.planning.ask import Ask
from kgwe.placement.planning.plan import Seat
from kgwe.placement.refusal import Reason

EIGHT = {amounts.GPU: 8, amounts.PODS: 1}


def ask(owner, gpus=8, **more):
    return Ask(owner, Request(Gpus(count=gpus)), {amounts.GPU: gpus, amounts.PODS: 1}, **more)


@pytest.fixture
def state():
    made = ClusterState()
    made.on_node(added(node("n1")))
    return made


@pytest.fixture
def decisions():
    """Owner -> the last decision."""
    return {}


@pytest.fixture
async def planner(state, decisions):
    metrics = Metrics()
    made = Planner(
        state, {}, random.Random(1), metrics, faults=PlanningErrors(metrics), on_decided=decisions.__setitem__
    )
    state.announcer.subscribe(ClusterListener(capacity_freed=made.plan_soon))
    yield made
    made.close()


async def settled(planner):
    """After the passes that are due."""
    await asyncio.sleep(0.01)
    await until(lambda: planner._passes._soon is None and planner._passes._running is None)


async def test_claimed_room_goes_to_whom_it_is_kept_for_however_long_others_have_waited(state, planner, decisions):
    planner.reserve("mine", {0: Holding("n1", EIGHT, 0xFF)}, ready=True)
    planner.request_place(ask("other", since="2020-01-01T00:00:00Z"))
    await settled(planner)
    assert planner.refusal_of("other")
    planner.request_place(ask("mine", since="2026-01-01T00:00:00Z"))
    assert decisions["mine"].nodes == ("n1",), "at once, without waiting for a pass"
    assert not state.ledger.has_seats(Reservation("mine").text)


async def test_a_claim_that_is_not_ready_waits_to_be_served(state, planner, decisions):
    state.on_pod(added(pod("victim", "", gpus=8)))
    planner.request_place(ask("mine"))
    planner.reserve("mine", {0: Holding("n1", EIGHT, 0xFF)}, ready=False)
    await settled(planner)
    assert planner.refusal_of("mine")
    state.on_pod(removed(pod("victim", "", gpus=8)))
    planner.request_place(ask("other"))
    await settled(planner)
    assert planner.refusal_of("other"), "what the victim left is kept"
    planner.place_reserved("mine")
    assert decisions["mine"].seats == (Seat("n1", 0xFF),)
    assert free(state) == {"n1": 0}


async def test_served_before_it_asks_the_work_gets_its_room_when_it_does(state, planner):
    planner.reserve("mine", {0: Holding("n1", EIGHT, 0xFF)}, ready=False)
    planner.place_reserved("mine")
    assert free(state) == {"n1": 0}
    planner.request_place(ask("mine"))
    assert planner.has_plan("mine")


async def test_room_kept_for_work_that_is_gone_is_given_back(planner):
    planner.reserve("mine", {0: Holding("n1", EIGHT, 0xFF)}, ready=False)
    planner.request_place(ask("other"))
    await settled(planner)
    planner.forget("mine")
    await settled(planner)
    assert planner.has_plan("other")


async def test_claims_end_with_the_term(state, planner):
    planner.reserve("mine", {0: Holding("n1", EIGHT, 0xFF)}, ready=True)
    planner.close()
    assert free(state) == {"n1": 8}


async def test_why_work_lost_its_place_is_told_while_it_waits(state, planner):
    state.on_pod(added(pod("big", "", gpus=8)))
    planner.interruptions.record("mine", Reason.PREEMPTED, "stopped for other")
    planner.request_place(ask("mine"))
    await settled(planner)
    held = planner.refusal_of("mine")
    assert held.code is Reason.PREEMPTED
    assert held.message.startswith("stopped for other. 0/1 nodes available for 8 GPUs")
    state.on_pod(removed(pod("big", "", gpus=8)))
    planner.plan_soon()
    await settled(planner)
    assert planner.has_plan("mine")
    assert planner.interruptions.get("mine") is None


async def test_work_that_lost_its_place_to_a_failure_goes_first(state, planner):
    state.on_pod(added(pod("big", "", gpus=8)))
    planner.interruptions.record("hit", Reason.RECOVERING, "node n9 is lost")
    planner.request_place(ask("older", since="2020-01-01T00:00:00Z"))
    planner.request_place(ask("hit", since="2026-01-01T00:00:00Z"))
    await settled(planner)
    state.on_pod(removed(pod("big", "", gpus=8)))
    planner.plan_soon()
    await settled(planner)
    assert planner.has_plan("hit")
    assert not planner.has_plan("older")


# --- plans that a run does not show yet -------------------------------------------------------------------

MOVED = (TWO[0], Seat("n3", 0b1111))


@pytest.fixture
def gang(state):
    for name in ("n2", "n3"):
        state.on_node(added(node(name)))
    state.on_kgwe(added(workload(count=8)))
    state.on_job(added(job(seats=TWO)))
    for index, seat in enumerate(TWO):
        state.on_pod(added(pod(f"p{index}", at=seat.node, index=index)))
    assert free(state) == {"n1": 4, "n2": 4, "n3": 8}
    return state


def test_a_seat_that_moves_holds_both_places_until_its_pod_has_gone(gang):
    gang.run_registry.move_seats(UID, MOVED)
    assert free(gang) == {"n1": 4, "n2": 4, "n3": 4}
    assert gang.runs[UID].seats == MOVED
    gang.on_pod(removed(pod("p1", at="n2", index=1)))
    assert free(gang) == {"n1": 4, "n2": 8, "n3": 4}
    gang.on_pod(added(pod("again", at="n3", index=1)))
    assert free(gang) == {"n1": 4, "n2": 8, "n3": 4}


def test_what_the_watch_shows_of_the_old_plan_does_not_undo_the_new_one(gang):
    gang.run_registry.move_seats(UID, MOVED)
    gang.on_job(changed(job(seats=TWO), job(seats=TWO, active=2)))
    assert gang.runs[UID].seats == MOVED
    gang.on_job(changed(job(seats=TWO), job(seats=MOVED)))
    gang.on_job(changed(job(seats=MOVED), job(seats=TWO)))
    assert gang.runs[UID].seats == TWO, "once it has been seen, the API has the last word"


def test_a_move_that_could_not_be_stored_is_taken_back(gang):
    gang.run_registry.move_seats(UID, MOVED)
    gang.run_registry.move_seats(UID, None)
    assert gang.runs[UID].seats == TWO
    assert free(gang) == {"n1": 4, "n2": 4, "n3": 8}
    gang.on_pod(removed(pod("p1", at="n2", index=1)))
    assert free(gang) == {"n1": 4, "n2": 4, "n3": 8}, "the seat is where it was"


def test_a_move_is_forgotten_with_its_run(gang):
    gang.run_registry.move_seats(UID, MOVED)
    gang.on_job(removed(job(seats=TWO)))
    gang.on_job(added(job("job-2", seats=TWO)))
    assert gang.runs[UID].seats == TWO
