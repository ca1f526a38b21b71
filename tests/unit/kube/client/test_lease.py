"""Who may call itself leader, and until when: attempts made one by one, on a clock that the test moves.

`tests/integration/test_lease.py` runs the campaigns themselves against a real API server.
"""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import httpx2
import pytest
from tests.support.patience import PATIENCE_S

from kgwe import errors
from kgwe.kube.client.client import KubeClient
from kgwe.kube.client.lease import LeaderElector, LeaseTimes
from kgwe.kube.transport.httpx_transport import HttpxTransport

TIMES = LeaseTimes(lease_s=7, renew_deadline_s=5.0, retry_s=1.0)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def server(lease_server: Any) -> Any:
    return lease_server


def elector(server: Any, identity: str, clock: Clock) -> LeaderElector:
    http = httpx2.AsyncClient(transport=httpx2.MockTransport(server), base_url="https://cluster.example")
    return LeaderElector(
        KubeClient(HttpxTransport(http)),
        name="l",
        namespace="n",
        identity=identity,
        times=TIMES,
        clock=clock,
        rng=random.Random(3),
    )


@pytest.fixture
def ann(server: Any, clock: Clock) -> LeaderElector:
    return elector(server, "ann", clock)


@pytest.fixture
def bob(server: Any, clock: Clock) -> LeaderElector:
    return elector(server, "bob", clock)


@pytest.mark.parametrize(
    ("lease_s", "renew_s", "retry_s"), [(5, 5.0, 1.0), (7, 5.0, 5.0), (7, 5.0, 0.0), (7, 8.0, 1.0), (7, -1.0, 1.0)]
)
def test_times_that_would_allow_two_leaders_are_refused(lease_s, renew_s, retry_s):
    with pytest.raises(errors.Permanent, match="must satisfy"):
        LeaseTimes(lease_s, renew_s, retry_s)


async def test_the_first_to_ask_leads_and_the_second_knows_who_does(ann, bob):
    await ann._renew_or_acquire()
    await bob._renew_or_acquire()

    assert ann.is_leader()
    assert not bob.is_leader()
    assert bob.holder() == "ann"


async def test_one_that_withdraws_gives_the_lease_back_and_takes_it_again_only_when_it_campaigns(ann, bob, server):
    running = asyncio.create_task(ann.run())
    try:
        await asyncio.wait_for(ann.wait_leading(), PATIENCE_S)
        await ann.withdraw()
        assert not ann.is_leader()
        assert server.spec["holderIdentity"] == ""
        await bob._renew_or_acquire()
        assert bob.is_leader()

        await bob._release_lease()
        server.calls.clear()
        await asyncio.sleep(1.5)  # longer than between two attempts
        assert server.calls == []
        ann.campaign()
        await asyncio.wait_for(ann.wait_leading(), PATIENCE_S)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_renewal_is_one_request_and_keeps_the_time_of_acquisition(ann, server, clock):
    await ann._renew_or_acquire()
    acquired, renewed = server.spec["acquireTime"], server.spec["renewTime"]
    server.calls.clear()
    clock.now += 1

    await ann._renew_or_acquire()

    assert server.calls == ["PUT"]
    assert server.spec["acquireTime"] == acquired
    assert server.spec["renewTime"] > renewed
    assert server.spec["leaseTransitions"] == 0


async def test_a_standby_takes_over_once_the_lease_was_silent_for_its_whole_duration(ann, bob, server, clock):
    await ann._renew_or_acquire()
    await bob._renew_or_acquire()
    clock.now += 6.99
    await bob._renew_or_acquire()
    assert not bob.is_leader()

    clock.now += 0.01
    await bob._renew_or_acquire()

    assert bob.is_leader()
    assert server.spec["holderIdentity"] == "bob"
    assert server.spec["leaseTransitions"] == 1


async def test_a_standby_waits_as_long_as_the_holder_asked_for_not_as_it_would_itself(ann, bob, server, clock):
    await ann._renew_or_acquire()
    server.store({**server.lease, "spec": {**server.spec, "leaseDurationSeconds": 60}})
    await bob._renew_or_acquire()

    clock.now += 59
    await bob._renew_or_acquire()
    assert not bob.is_leader()

    clock.now += 1
    await bob._renew_or_acquire()
    assert bob.is_leader()


async def test_a_leader_stops_before_anybody_may_take_over(ann, bob, clock):
    """At no instant of the clock do two lead, whichever of them looks."""
    await ann._renew_or_acquire()
    await bob._renew_or_acquire()
    led = []
    for _ in range(100):
        clock.now += 0.1
        await bob._renew_or_acquire()
        led.append((ann.is_leader(), bob.is_leader()))

    assert (True, True) not in led
    assert led[0] == (True, False)
    assert led[-1] == (False, True)


async def test_a_slow_answer_does_not_make_a_standby_take_over_early(ann, bob, server, clock):
    """Bob's question is old when it is answered; Ann renewed just before. Bob must count from the answer."""
    await ann._renew_or_acquire()

    async def ann_renews_meanwhile(_: httpx2.Request) -> None:
        server.on_request = None
        clock.now += 4
        await ann._renew_or_acquire()

    server.on_request = ann_renews_meanwhile
    await bob._renew_or_acquire()

    clock.now += 4.9
    await bob._renew_or_acquire()
    assert ann.is_leader()
    assert not bob.is_leader()


async def test_a_slow_renewal_counts_from_when_it_was_asked_for(ann, server, clock):
    async def slow(_: httpx2.Request) -> None:
        clock.now += 2

    server.on_request = slow
    await ann._renew_or_acquire()  # asks twice, GET and POST: 4 s
    assert ann.is_leader()

    clock.now += 1
    assert not ann.is_leader()


async def test_a_leader_that_was_suspended_and_renews_again_is_noticed_by_who_waits_to_lead(ann, clock):
    """The lapse was seen by the clock alone; nobody took over; the next renewal must wake the waiter."""
    await ann._renew_or_acquire()
    clock.now += 6  # stopped, or hung: longer than the deadline
    async with asyncio.timeout(PATIENCE_S):
        await ann.wait_lost()
    waiting = asyncio.ensure_future(ann.wait_leading())
    await asyncio.sleep(0)
    assert not waiting.done()

    await ann._renew_or_acquire()

    async with asyncio.timeout(PATIENCE_S):
        await waiting
    assert ann.is_leader()


async def test_whoever_waits_for_the_end_of_leadership_sees_it_end_by_time_alone(ann, clock):
    await ann._renew_or_acquire()
    waiting = asyncio.ensure_future(ann.wait_lost())
    await asyncio.sleep(0)
    assert not waiting.done()

    clock.now += 5

    async with asyncio.timeout(PATIENCE_S):
        await waiting


async def test_a_suspended_leader_finds_the_lease_taken_and_steps_down(ann, bob, clock):
    await ann._renew_or_acquire()
    await bob._renew_or_acquire()
    clock.now += 7
    await bob._renew_or_acquire()

    await ann._renew_or_acquire()

    assert bob.is_leader()
    assert not ann.is_leader()
    assert ann.holder() == "bob"


async def test_of_two_who_find_the_lease_expired_one_takes_it(ann, bob, server, clock):
    carl = elector(server, "carl", clock)
    await ann._renew_or_acquire()
    await bob._renew_or_acquire()
    await carl._renew_or_acquire()
    clock.now += 7

    async def carl_first(request: httpx2.Request) -> None:
        if request.method == "PUT":
            server.on_request = None
            await carl._renew_or_acquire()

    server.on_request = carl_first
    await bob._renew_or_acquire()

    assert carl.is_leader()
    assert not bob.is_leader()


async def test_somebody_labelling_the_lease_does_not_depose_the_leader_and_keeps_the_label(ann, server, clock):
    await ann._renew_or_acquire()
    server.lease["metadata"]["labels"] = {"team": "gpu"}
    server.store(server.lease)
    clock.now += 4.9

    await ann._renew_or_acquire()

    clock.now += 4.9
    assert ann.is_leader()
    assert server.lease["metadata"]["labels"] == {"team": "gpu"}


async def test_somebody_labelling_the_lease_over_and_over_does_not_keep_a_dead_leader_alive(ann, bob, server, clock):
    await ann._renew_or_acquire()
    for _ in range(8):
        await bob._renew_or_acquire()
        server.store(server.lease)
        clock.now += 1

    await bob._renew_or_acquire()

    assert bob.is_leader()


async def test_a_lease_touched_between_look_and_write_leaves_the_question_open(ann, server):
    """The leader keeps its right until its time is up, and hurries."""
    await ann._renew_or_acquire()

    async def touch(request: httpx2.Request) -> None:
        if request.method == "PUT":
            server.store(server.lease)

    server.on_request = touch
    held = await ann._renew_or_acquire()

    assert held is None
    assert ann.is_leader()
    assert ann._pause_s(held=held) < TIMES.retry_s


async def test_a_lease_deleted_under_its_holder_is_made_again_by_the_holder(ann, bob, server, clock):
    await ann._renew_or_acquire()
    await bob._renew_or_acquire()
    server.lease = None
    clock.now += 1

    await bob._renew_or_acquire()
    assert not bob.is_leader()
    await ann._renew_or_acquire()

    assert ann.is_leader()
    assert server.spec["holderIdentity"] == "ann"


async def test_a_lease_deleted_by_hand_and_made_by_another_ends_the_term(ann, server, clock):
    await ann._renew_or_acquire()
    server.lease = None
    newcomer = elector(server, "new", clock)

    async def newcomer_first(request: httpx2.Request) -> None:
        if request.method == "POST":
            server.on_request = None
            await newcomer._renew_or_acquire()

    server.on_request = newcomer_first
    await ann._renew_or_acquire()

    assert newcomer.is_leader()
    assert not ann.is_leader()


async def test_a_server_that_fails_costs_the_leadership_only_at_the_deadline(ann, server, clock):
    await ann._renew_or_acquire()

    async def fail(_: httpx2.Request) -> None:
        raise httpx2.ConnectError("refused")

    server.on_request = fail
    clock.now += 4.9
    await ann._renew_or_acquire()
    assert ann.is_leader()

    clock.now += 0.1
    await ann._renew_or_acquire()
    assert not ann.is_leader()


async def test_an_answer_that_makes_no_sense_is_a_failed_attempt_not_the_end(ann, server):
    await ann._renew_or_acquire()
    server.lease = {"metadata": {"name": 5, "resourceVersion": "x"}}

    assert await ann._renew_or_acquire() is None
    assert ann.is_leader()


async def test_a_standby_comes_back_when_the_lease_expires_rather_than_a_period_later(ann, bob, clock):
    await ann._renew_or_acquire()
    await bob._renew_or_acquire()
    assert bob._pause_s(held=False) >= TIMES.retry_s

    clock.now += 6.7
    held = await bob._renew_or_acquire()

    assert 0.3 <= bob._pause_s(held=held) <= 0.3 + 0.2 * TIMES.retry_s


async def campaign_and_stop(candidate: LeaderElector) -> None:
    running = asyncio.ensure_future(candidate.run())
    async with asyncio.timeout(PATIENCE_S):
        await candidate.wait_leading()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_a_leader_that_stops_gives_the_lease_up_and_is_followed_at_once(ann, bob, server):
    await campaign_and_stop(ann)

    assert not ann.is_leader()
    assert server.spec["holderIdentity"] == ""
    await bob._renew_or_acquire()
    assert bob.is_leader()
    assert server.spec["leaseTransitions"] == 1


async def test_a_renewal_cut_off_by_the_stop_does_not_keep_the_lease(ann, server):
    """The write arrived, its answer did not: the version we know is not the one stored."""
    await ann._renew_or_acquire()
    arrived = asyncio.Event()

    async def hang(request: httpx2.Request) -> None:
        if request.method == "PUT":
            server.on_request = None
            body = json.loads(request.content)
            server.store(body)
            arrived.set()
            await asyncio.Event().wait()

    server.on_request = hang
    running = asyncio.ensure_future(ann.run())
    async with asyncio.timeout(PATIENCE_S):
        await arrived.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    assert server.spec["holderIdentity"] == ""


async def test_a_standby_that_stops_leaves_the_lease_alone(ann, bob, server):
    await ann._renew_or_acquire()
    await bob._renew_or_acquire()
    before = server.version

    running = asyncio.ensure_future(bob.run())
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    assert server.version == before
    assert server.spec["holderIdentity"] == "ann"


async def test_a_lease_somebody_else_took_meanwhile_is_not_given_up_by_the_loser(ann, server):
    await ann._renew_or_acquire()
    server.store({**server.lease, "spec": {**server.spec, "holderIdentity": "bob"}})

    await ann._release_lease()

    assert server.spec["holderIdentity"] == "bob"


async def test_waiting_for_the_loss_ends_when_it_is_cancelled_together_with_a_change(ann):
    await ann._renew_or_acquire()
    waiting = asyncio.create_task(ann.wait_lost())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    ann._changed.set()
    await asyncio.sleep(0)
    waiting.cancel()
    done, _ = await asyncio.wait({waiting}, timeout=5)
    waiting.cancel()
    assert done, "the cancellation was lost"
    assert waiting.cancelled()
