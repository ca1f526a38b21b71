"""Leader election on a real API server: takeovers, kills, suspensions and outages, with processes where it matters."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.patience import PATIENCE_S

from kgwe.kube.api import resources
from kgwe.kube.client.lease import LeaderElector, LeaseTimes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from kgwe.kube.client.client import KubeClient

pytestmark = pytest.mark.cluster

# Long enough for a busy machine to renew in, short enough to wait for.
TIMES = LeaseTimes(lease_s=3, renew_deadline_s=2.0, retry_s=0.25)
# Nothing expires while the test runs: only what is released, deleted or edited moves anything.
PATIENT = LeaseTimes(lease_s=3600, renew_deadline_s=3000.0, retry_s=0.1)

# A replica as a process of its own: says when it leads, and answers every line it is sent.
REPLICA = f"""
import asyncio, sys
from kgwe.kube.client.client import KubeClient
from kgwe.kube.client.lease import LeaderElector, LeaseTimes
from kgwe.telemetry import logs

async def main(kubeconfig, namespace):
    logs.configure(level="warning")
    async with KubeClient.connect(kubeconfig) as client:
        times = LeaseTimes({TIMES.lease_s}, {TIMES.renew_deadline_s}, {TIMES.retry_s})
        elector = LeaderElector(client, name="lease", namespace=namespace, identity="replica", times=times)
        running = asyncio.ensure_future(elector.run())
        await elector.wait_leading()
        print("leads", flush=True)
        reader = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while await reader.readline():
            print("leads" if elector.is_leader() else "follows", flush=True)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

asyncio.run(main(*sys.argv[1:]))
"""


def elector(client: KubeClient, namespace: str, identity: str, times: LeaseTimes = TIMES) -> LeaderElector:
    return LeaderElector(client, name="lease", namespace=namespace, identity=identity, times=times)


@contextlib.asynccontextmanager
async def campaigning(*candidates: LeaderElector) -> AsyncIterator[list[asyncio.Task[None]]]:
    tasks = [asyncio.ensure_future(candidate.run()) for candidate in candidates]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def replica(cluster: Any, namespace: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process that leads."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        REPLICA,
        str(cluster.kubeconfig),
        namespace,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert await answer(process) == "leads"
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


async def answer(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    async with asyncio.timeout(PATIENCE_S):
        return (await process.stdout.readline()).decode().strip()


async def leads(candidate: LeaderElector, within_s: float = PATIENCE_S) -> None:
    async with asyncio.timeout(within_s):
        await candidate.wait_leading()


async def stored(client: KubeClient, namespace: str) -> Any:
    return (await client.get(resources.LEASE, "lease", namespace)).spec


async def test_of_several_candidates_exactly_one_leads_and_all_know_who(client, namespace, eventually):
    candidates = [elector(client, namespace, f"c{number}", PATIENT) for number in range(4)]
    async with campaigning(*candidates):
        await eventually(
            lambda: len({c.holder() for c in candidates} - {""}) == 1 and all(c.holder() for c in candidates)
        )

        leading = [c for c in candidates if c.is_leader()]
        assert len(leading) == 1
        assert {c.holder() for c in candidates} == {leading[0].identity}
        assert (await stored(client, namespace)).holderIdentity == leading[0].identity


async def test_a_leader_that_stops_cleanly_is_followed_without_waiting_for_the_lease(client, namespace):
    """With a lease of an hour, only a release lets anybody else in."""
    first, second = elector(client, namespace, "first", PATIENT), elector(client, namespace, "second", PATIENT)
    async with campaigning(first) as (running,):
        await leads(first)
        async with campaigning(second):
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            assert not first.is_leader()
            await leads(second)
            assert (await stored(client, namespace)).leaseTransitions == 1


async def test_a_killed_leader_is_followed_when_its_lease_has_expired(cluster, client, namespace):
    standby = elector(client, namespace, "standby")
    async with replica(cluster, namespace) as process, campaigning(standby):
        process.kill()
        await process.wait()
        assert (await stored(client, namespace)).holderIdentity == "replica"

        await leads(standby)
        assert (await stored(client, namespace)).leaseTransitions == 1


async def test_a_suspended_leader_wakes_up_knowing_that_it_no_longer_leads(cluster, client, namespace):
    standby = elector(client, namespace, "standby")
    async with replica(cluster, namespace) as process, campaigning(standby):
        assert process.stdin is not None
        process.stdin.write(b"?\n")
        assert await answer(process) == "leads"

        os.kill(process.pid, signal.SIGSTOP)
        await leads(standby)
        process.stdin.write(b"?\n")
        os.kill(process.pid, signal.SIGCONT)

        assert await answer(process) == "follows"


async def test_a_leader_suspended_with_nobody_to_take_over_leads_again(cluster, client, namespace):
    async with replica(cluster, namespace) as process:
        assert process.stdin is not None
        os.kill(process.pid, signal.SIGSTOP)
        before = (await stored(client, namespace)).renewTime
        await asyncio.sleep(TIMES.renew_deadline_s)  # its right lapses by time alone
        os.kill(process.pid, signal.SIGCONT)

        async with asyncio.timeout(PATIENCE_S):
            while (await stored(client, namespace)).renewTime == before:  # noqa: ASYNC110 - only the server knows
                await asyncio.sleep(0.02)
            process.stdin.write(b"?\n")
            while await answer(process) != "leads":
                process.stdin.write(b"?\n")
        assert (await stored(client, namespace)).leaseTransitions == 0


@pytest.mark.parametrize("fault", ["cut", "freeze"])
async def test_a_leader_that_cannot_reach_the_server_steps_down_and_a_standby_that_can_takes_over(
    client, far_client, proxy, namespace, fault
):
    far, near = elector(far_client, namespace, "far"), elector(client, namespace, "near")
    async with campaigning(far):
        await leads(far)
        async with campaigning(near):
            getattr(proxy, fault)()
            async with asyncio.timeout(PATIENCE_S):
                await far.wait_lost()
            assert not near.is_leader()
            await leads(near)
            assert not far.is_leader()
            proxy.mend()


async def test_a_renewal_that_hangs_on_a_dead_connection_is_made_on_another(client, far_client, proxy, namespace):
    """One half-open connection must not cost the leadership: the deadline leaves room for a second attempt."""
    patient = LeaseTimes(lease_s=9, renew_deadline_s=6.0, retry_s=0.25)
    far = elector(far_client, namespace, "far", patient)
    async with campaigning(far):
        await leads(far)
        before = (await stored(client, namespace)).renewTime
        proxy.freeze()
        proxy.mend()
        lost = asyncio.ensure_future(far.wait_lost())
        async with asyncio.timeout(PATIENCE_S):
            while (await stored(client, namespace)).renewTime <= before:  # noqa: ASYNC110 - only the server knows
                await asyncio.sleep(0.05)
        assert not lost.done()
        lost.cancel()


async def test_an_edit_by_hand_does_not_depose_the_leader(client, namespace):
    leader = elector(client, namespace, "leader", PATIENT)
    async with campaigning(leader):
        await leads(leader)
        lost = asyncio.ensure_future(leader.wait_lost())
        for number in range(5):
            patch = {"metadata": {"annotations": {"note": str(number)}}}
            await client.patch(resources.LEASE, "lease", patch, namespace)
            before = (await stored(client, namespace)).renewTime
            async with asyncio.timeout(PATIENCE_S):
                while (await stored(client, namespace)).renewTime <= before:  # noqa: ASYNC110 - only the server knows
                    await asyncio.sleep(0.02)
        assert not lost.done()
        lost.cancel()
        kept = await client.get(resources.LEASE, "lease", namespace)
        assert kept.metadata.annotations == {"note": "4"}


async def test_a_lease_deleted_by_hand_is_made_again_by_its_holder(client, namespace):
    holder, standby = elector(client, namespace, "holder", PATIENT), elector(client, namespace, "standby", PATIENT)
    async with campaigning(holder):
        await leads(holder)
        async with campaigning(standby):
            async with asyncio.timeout(PATIENCE_S):
                while standby.holder() != "holder":  # noqa: ASYNC110 - nobody announces it
                    await asyncio.sleep(0.02)
            await client.delete(resources.LEASE, "lease", namespace)
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    found = await client.list(resources.LEASE, namespace, fieldSelector="metadata.name=lease")
                    if found:
                        break
                    await asyncio.sleep(0.02)
            assert found[0].spec.holderIdentity == "holder"
            assert holder.is_leader()
            assert not standby.is_leader()


async def test_at_no_time_do_two_lead_while_leaders_come_and_go(client, namespace):
    """Twelve replicas over a few seconds, each stopped soon after it leads, sampled by all at every change."""
    candidates = [elector(client, namespace, f"c{number}", PATIENT) for number in range(12)]
    tasks = {candidate: asyncio.ensure_future(candidate.run()) for candidate in candidates}
    try:
        for _ in range(len(candidates)):
            waits = [asyncio.ensure_future(candidate.wait_leading()) for candidate in tasks]
            async with asyncio.timeout(PATIENCE_S):
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()
            leading = [candidate for candidate in tasks if candidate.is_leader()]
            assert len(leading) == 1
            task = tasks.pop(leading[0])
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        assert (await stored(client, namespace)).holderIdentity == ""
    finally:
        for task in tasks.values():
            task.cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)
