"""The leader loop: terms begin with the Lease and a fresh read, and end with either the Lease or the process."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from tests.support.fakes.memory_api import MemoryApi
from tests.support.patience import PATIENCE_S
from tests.unit.kube.conftest import LeaseServer

from kgwe import errors
from kgwe.apps import background
from kgwe.apps.leading import LEADER_LABEL, LeaderLabel, LeaderLoop, Term, make_identity
from kgwe.kube.api import resources
from kgwe.kube.client.client import KubeClient
from kgwe.kube.client.informer import Informer
from kgwe.kube.client.lease import LeaderElector, LeaseTimes
from kgwe.kube.transport.httpx_transport import HttpxTransport

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


def connect(server: Any) -> KubeClient:
    http = httpx2.AsyncClient(transport=httpx2.MockTransport(server), base_url="https://cluster.example")
    return KubeClient(HttpxTransport(http))


@pytest.fixture
async def elector() -> AsyncIterator[LeaderElector]:
    times = LeaseTimes(lease_s=7, renew_deadline_s=5.0, retry_s=0.1)
    made = LeaderElector(connect(LeaseServer()), name="l", namespace="n", identity="ann", times=times)
    async with background.run_in_background([made.run()]):
        yield made


class Terms:
    """Records the terms that a loop leads."""

    def __init__(self) -> None:
        self.begun = 0
        self.ended = 0
        self.changed = asyncio.Event()

    async def lead(self, term: Term) -> None:
        assert await term.resync()
        self.begun += 1
        self.changed.set()
        await term.wait_end()
        self.ended += 1
        self.changed.set()

    async def wait(self, begun: int, ended: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while (self.begun, self.ended) != (begun, ended):
                self.changed.clear()
                await self.changed.wait()


@contextlib.asynccontextmanager
async def running(loop: LeaderLoop, stop: asyncio.Event) -> AsyncIterator[Terms]:
    terms = Terms()
    task = asyncio.create_task(loop.run(stop, terms.lead))
    try:
        yield terms
        stop.set()
        async with asyncio.timeout(PATIENCE_S):
            await task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_replica_without_elector_leads_until_it_stops():
    loop = LeaderLoop(None, list)
    async with running(loop, asyncio.Event()) as terms:
        await terms.wait(1, 0)
        assert loop.is_leading()
        loop.check_leading()
    assert (terms.begun, terms.ended) == (1, 1)


async def test_a_term_ends_with_the_lease_and_the_next_begins_when_it_is_held_again(elector):
    loop = LeaderLoop(elector, list)
    async with running(loop, asyncio.Event()) as terms:
        await terms.wait(1, 0)
        await elector.withdraw()
        await terms.wait(1, 1)
        assert not loop.is_leading()
        with pytest.raises(errors.Transient, match="no longer the leader"):
            loop.check_leading()

        elector.campaign()
        await terms.wait(2, 1)
        loop.check_leading()
    assert terms.ended == 2


async def test_a_standby_that_stops_never_leads(elector):
    await asyncio.wait_for(elector.wait_leading(), PATIENCE_S)
    await elector.withdraw()
    async with running(LeaderLoop(elector, list), asyncio.Event()) as terms:
        pass
    assert terms.begun == 0


async def test_an_error_of_a_term_ends_the_loop():
    async def lead(_term: Term) -> None:
        raise errors.Transient("broken")

    with pytest.raises(errors.Transient, match="broken"):
        await LeaderLoop(None, list).run(asyncio.Event(), lead)


async def test_a_leader_that_cannot_read_the_cluster_says_so():
    async def silent(_request: httpx2.Request) -> httpx2.Response:
        await asyncio.Event().wait()
        raise AssertionError

    informer: Informer[Any] = Informer(connect(silent), resources.NODE)
    loop = LeaderLoop(None, lambda: [informer], resync_s=0.01)
    assert loop.describe_unsynced() == "waiting for first list of nodes"
    async with background.run_in_background([informer.run()]):
        with pytest.raises(errors.Transient, match="could not read the cluster within 0 s of becoming leader"):
            await Term(loop, asyncio.Event()).resync()


async def test_a_process_that_stops_does_not_wait_for_the_read():
    async def silent(_request: httpx2.Request) -> httpx2.Response:
        await asyncio.Event().wait()
        raise AssertionError

    informer: Informer[Any] = Informer(connect(silent), resources.NODE)
    stop = asyncio.Event()
    stop.set()
    async with background.run_in_background([informer.run()]):
        assert not await Term(LeaderLoop(None, lambda: [informer]), stop).resync()


def test_two_replicas_of_a_machine_have_different_names():
    assert make_identity() != make_identity()


async def test_the_pod_of_the_acting_replica_is_labelled(monkeypatch):
    api = MemoryApi()
    api.call(
        "POST", "/api/v1/namespaces/kgwe-system/pods", {"metadata": {"name": "a", "labels": {LEADER_LABEL: "true"}}}
    )
    monkeypatch.setenv("KGWE_POD_NAME", "a")
    monkeypatch.setenv("KGWE_POD_NAMESPACE", "kgwe-system")
    acting = [False]
    label = LeaderLabel.from_environment(KubeClient(api), lambda: acting[0])
    assert label is not None
    seen = []
    for acting[0] in (False, True, True, False):
        await label.write()
        meta = api.call("GET", "/api/v1/namespaces/kgwe-system/pods/a")["metadata"]
        seen.append((meta.get("labels") or {}).get(LEADER_LABEL))
    # The label of a process that was killed is removed first.
    assert seen == [None, "true", "true", None]


def test_a_process_outside_of_a_pod_has_no_label(monkeypatch):
    monkeypatch.delenv("KGWE_POD_NAME", raising=False)
    assert LeaderLabel.from_environment(KubeClient(MemoryApi()), lambda: True) is None
