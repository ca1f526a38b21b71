"""Several replicas, and replicas that die: exactly one acts, and nothing is lost or done twice."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.clusters.bed import kgwe, warp
from tests.support.patience import PATIENCE_S

from kgwe import errors
from kgwe.kube.api import resources

if TYPE_CHECKING:
    from tests.support.clusters.bed import Bed, Replica


# No busy machine makes a leader lose this Lease.
LASTING = {"lease_duration_seconds": "300", "renew_deadline_seconds": "200"}


async def leaders(*replicas: Replica) -> list[Replica]:
    """By readiness: metrics that are asked for again and again may be a second old."""
    return [replica for replica in replicas if (await replica.get("/readyz")).is_success]


async def until_one_leads(*replicas: Replica, timeout_s: float = PATIENCE_S) -> Replica:
    async with asyncio.timeout(timeout_s):
        while True:
            found = await leaders(*replicas)
            if len(found) > 1:
                found = await leaders(*replicas)  # the first may have lost its lease while the second was asked
                assert len(found) == 1
            if found:
                return found[0]
            await asyncio.sleep(0.05)


async def scheduled(replica: Replica, strategy: str = "score") -> float:
    return await replica.metric(f'warp_gpuworkload_scheduled_total{{strategy="{strategy}"}}')


async def test_of_two_replicas_exactly_one_acts(bed: Bed):
    await bed.node("n1")
    first, second = await bed.controller(**LASTING), await bed.controller(**LASTING)
    leader = await until_one_leads(first, second)
    standby = second if leader is first else first

    made = [await bed.submit(warp(f"w{i}", 1)) for i in range(5)]
    for workload in made:
        await bed.until_phase(workload, "Running", "Succeeded")

    assert await scheduled(leader, "leastLoaded") == 5
    assert await scheduled(standby, "leastLoaded") == 0
    assert (await leader.get("/readyz")).is_success
    assert (await standby.get("/readyz")).status_code == 503, "kube-scheduler's calls go to the one that acts"


async def test_the_standby_takes_over_when_the_leader_is_killed(bed: Bed):
    await bed.node("n1")
    first, second = await bed.controller(), await bed.controller()
    leader = await until_one_leads(first, second)
    standby = second if leader is first else first
    running = await bed.submit(kgwe("running", 2))
    await bed.until_phase(running, "Running")
    (job,) = bed.jobs_of(running)

    leader.kill()
    after = await bed.submit(kgwe("after", 6))

    await bed.until_phase(after, "Running")
    assert await leaders(standby) == [standby]
    assert [j.metadata.uid for j in bed.jobs_of(running)] == [job.metadata.uid]
    await bed.until(lambda: bed.gpus_bound() == {"n1": 8})


async def test_a_stopping_leader_hands_over_without_waiting_for_the_lease_to_expire(bed: Bed):
    await bed.node("n1")
    leader = await bed.controller(**LASTING)
    await until_one_leads(leader)
    standby = await bed.controller(**LASTING)

    assert leader.stop() == 0

    assert await until_one_leads(standby) is standby


async def test_a_leader_that_slept_through_its_lease_does_not_act(bed: Bed):
    await bed.node("n1", 1)
    sleeper = await bed.controller()
    await until_one_leads(sleeper)
    sleeper.pause()
    other = await bed.controller(**LASTING)
    await until_one_leads(other)
    made = [await bed.submit(kgwe(f"w{i}", 1)) for i in range(3)]
    await bed.until(lambda: sum(bed.phase(w) == "Running" for w in made) == 1)

    sleeper.resume()
    ended = next(w for w in made if bed.phase(w) == "Running")
    await bed.delete(ended)
    # The watch may still show the deleted one as running.
    await bed.until(lambda: sum(bed.phase(w) == "Running" for w in made if w is not ended) == 1)

    assert await scheduled(sleeper) == 0
    assert await scheduled(other) == 2
    await bed.until(lambda: bed.gpus_bound() == {"n1": 1})


async def test_an_api_server_that_restarts_loses_nothing(bed: Bed):
    await bed.node("n1")
    await bed.controller()
    before = await bed.submit(kgwe("before", 4))
    await bed.until_phase(before, "Running")

    bed.cluster.kill("kube-apiserver")
    bed.cluster.restart("kube-apiserver")

    after = await bed.submit(kgwe("after", 4))
    await bed.until_phase(after, "Running")
    await bed.until(lambda: bed.gpus_bound() == {"n1": 8})
    assert bed.phase(before) == "Running"


KILLS = 12


class Killer:
    """Starts a controller, kills it at a random moment, starts the next."""

    def __init__(self, bed: Bed, rng: random.Random) -> None:
        self.kills = 0
        self._killed = asyncio.Condition()
        self._bed = bed
        self._rng = rng

    async def run(self) -> None:
        for _ in range(KILLS):
            replica = await self._start()
            await asyncio.sleep(self._rng.random() * 2.5)
            replica.kill()
            async with self._killed:
                self.kills += 1
                self._killed.notify_all()
        await self._start()

    async def reached(self, kills: int) -> None:
        async with self._killed:
            await self._killed.wait_for(lambda: self.kills >= kills)

    async def _start(self) -> Replica:
        times = {"lease_duration_seconds": "2", "renew_deadline_seconds": "1.5", "retry_period_seconds": "0.3"}
        return await self._bed.controller(**times)


async def churn(bed: Bed, rng: random.Random, total: int, killer: Killer) -> list[Any]:
    """Create `total` workloads of both kinds, spread over all the kills; two in five are deleted again."""
    kept: list[Any] = []
    doomed: list[Any] = []
    for number in range(total):
        await killer.reached(number * KILLS // total - 1)
        gpus = rng.choice((1, 1, 2, 4))
        make = warp if rng.random() < 0.5 else kgwe
        workload = await bed.submit(make(f"w{number}", gpus))
        (doomed if rng.random() < 0.4 else kept).append(workload)
        if doomed and rng.random() < 0.5:
            await bed.delete(doomed.pop(rng.randrange(len(doomed))))
        await asyncio.sleep(rng.random() * 0.05)
    for workload in doomed:
        await bed.delete(workload)
    return kept


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_killed_at_random_while_200_workloads_come_and_go_nothing_is_lost_or_doubled(bed: Bed):
    rng = random.Random(20261115)
    for number in range(6):
        await bed.node(f"n{number}", 8)
    oversubscribed: list[dict[str, int]] = []

    def look(_: object) -> None:
        if max((bound := bed.gpus_bound()).values(), default=0) > 8:
            oversubscribed.append(bound)

    bed.pods.on_change(look)
    killer = Killer(bed, rng)

    kept, _ = await asyncio.gather(churn(bed, rng, 200, killer), killer.run())

    # Whatever was deleted is gone, finalizers and all; whatever was kept runs, waits for room, or has run.
    wanted = {w.metadata.uid for w in kept}
    alive = lambda: {w.metadata.uid for i in bed.workloads.values() for w in i.store.values()}  # noqa: E731 - read twice
    await bed.until(lambda: alive() == wanted)
    await bed.until(lambda: all(bed.phase(w) in ("Running", "Succeeded", "Pending") for w in kept), timeout_s=120)
    await bed.until(
        lambda: {j.metadata.labels["kgwe.nvidia.io/workload-uid"] for j in bed.jobs.store.values()} <= wanted
    )
    # A status is written up to a second after the Job.
    await bed.until(lambda: all(len(bed.jobs_of(w)) == (0 if bed.phase(w) == "Pending" else 1) for w in kept))
    for workload in kept:
        assert all(c.reason != "NodeRefused" for c in bed.now(workload).status.conditions)
    assert not oversubscribed
    # As room comes free all of them get their turn: the small kind's work ends by itself, the rest is deleted.
    for workload in [w for w in kept if isinstance(w, resources.GPU_WORKLOAD.type)]:
        await bed.until_phase(workload, "Running", "Succeeded", timeout_s=120)
        await bed.delete(workload)
    small = [w for w in kept if isinstance(w, resources.WARP_GPU_WORKLOAD.type)]
    await bed.until(lambda: all(bed.phase(w) == "Succeeded" for w in small), timeout_s=240)
    for workload in small:
        await bed.delete(workload)
    await bed.until(lambda: not alive() and not bed.jobs.store and not bed.gpus_bound())
    with pytest.raises(errors.NotFound):
        await bed.client.get(resources.WARP_GPU_WORKLOAD, "w0", "default")
