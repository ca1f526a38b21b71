"""Everything killed at random while work of every kind comes and goes; afterwards the books must balance.

The seed is printed. `KGWE_CHAOS_SEED=… pytest tests/integration/scheduler/test_kill_anywhere.py` gives the same work
and the same order of blows (not the same moments: processes have their own).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import sys
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.clusters.bed import kgwe
from tests.support.clusters.pods import gang, pod
from tests.support.patience import PATIENCE_S

from kgwe import errors
from kgwe.kube.api import resources
from kgwe.kube.translate import podspec
from kgwe.local.cluster import components
from kgwe.local.fleet import faults
from kgwe.model.units import amounts

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.support.clusters.bed import Replica
    from tests.support.clusters.pods import Live

UNITS = int(os.environ.get("KGWE_CHAOS_UNITS", "300"))
BLOWS = max(UNITS // 15, 4)
LONGEST_S = 600


class Chaos:
    """Work, blows and the audit, all from one seed."""

    def __init__(self, live: Live, seed: int) -> None:
        self.live = live
        # One each: who comes first must not change what the other draws.
        self.rng, self.wrath = random.Random(seed), random.Random(~seed)
        self.replicas: list[Replica] = []
        self.workloads: list[Any] = []
        self.gangs: dict[str, int] = {}
        self.finished: set[str] = set()  # names of plain pods that ran to their end
        self.overbooked: list[str] = []
        self.blows: list[str] = []
        live.bed.pods.on_change(self.look)

    # --- audit, at every event ---------------------------------------------------------------------------

    def look(self, change: Any) -> None:
        found = change.new
        if found is not None and found.status.phase == "Succeeded":
            self.finished.add(found.metadata.name)
        held: dict[str, int] = {}
        for each in self.live.bed.pods.store.values():
            if each.spec.nodeName and not podspec.is_terminal(each):
                gpus = podspec.sum_requests(each.spec).get(amounts.GPU, 0)
                held[each.spec.nodeName] = held.get(each.spec.nodeName, 0) + gpus
        for node, gpus in held.items():
            if gpus > 8:  # what every node has
                self.overbooked.append(f"{gpus} GPUs on {node} after {change.key}")

    # --- work --------------------------------------------------------------------------------------------

    async def surely(self, act: Callable[[], Awaitable[Any]]) -> Any:
        """Until it is done: the API server is killed now and then."""
        while True:
            try:
                return await act()
            except errors.AlreadyExists:
                return None
            except errors.KgweError:
                await asyncio.sleep(0.2)

    async def submit(self, number: int) -> None:
        kind, duration = self.rng.random(), f"{self.rng.randint(1, 3)}s"
        if kind < 0.6:
            priority = self.rng.choice((0, 0, 100))
            body = kgwe(f"w-{number}", self.rng.choice((1, 1, 2, 4)), duration=duration, priority=priority)
            body["spec"]["preemptible"] = priority == 0
            await self.workload(body)
        elif kind < 0.8:
            count = self.rng.choice((8, 16))
            await self.workload(kgwe(f"w-{number}", count, duration=duration, gpusPerPod=4))
        else:
            name, size = f"g-{number}", self.rng.randint(2, 3)
            self.gangs[name] = size
            said = gang(name, size, preferred="leaf") | {"kgwe.nvidia.io/simulated-duration": duration}
            for member in range(size):
                await self.plain_pod(pod(f"{name}-{member}", 4, annotations=said))

    async def plain_pod(self, body: dict[str, Any]) -> None:
        await self.surely(lambda: self.live.bed.client.create(resources.POD, body, "default"))

    async def workload(self, body: dict[str, Any]) -> None:
        made = await self.surely(lambda: self.live.bed.submit(body))
        if made is None:
            made = await self.surely(
                lambda: self.live.bed.client.get(resources.GPU_WORKLOAD, body["metadata"]["name"], "default")
            )
        self.workloads.append(made)

    # --- blows -------------------------------------------------------------------------------------------

    async def strike(self) -> None:
        blow = self.wrath.choice(("scheduler", "scheduler", "kube-scheduler", "kube-apiserver", "etcd", "node"))
        self.blows.append(blow)
        if blow == "scheduler":
            victim = self.replicas.pop(self.wrath.randrange(len(self.replicas)))
            victim.kill()
            self.replicas.append(await self.live.scheduler())
        elif blow == "node":
            node = f"{self.wrath.choice('ab')}-{self.wrath.randrange(4)}"
            await self.surely(lambda: faults.node_down(self.live.bed.client, node))
            await asyncio.sleep(self.wrath.uniform(1, 8))
            await self.surely(lambda: faults.clear(self.live.bed.client, node))
        else:
            component = {
                "kube-scheduler": components.SCHEDULER,
                "kube-apiserver": components.APISERVER,
                "etcd": components.ETCD,
            }[blow]
            cluster = self.live.bed.cluster
            await asyncio.to_thread(cluster.kill, component)
            await asyncio.sleep(self.wrath.uniform(0, 1))
            await asyncio.to_thread(cluster.restart, component)

    async def rage(self) -> None:
        for _ in range(BLOWS):
            await asyncio.sleep(self.wrath.uniform(1, 4))
            await self.strike()

    async def until_finished(self) -> None:
        """Tells now and then what is left: when it takes long, that is what one wants to know."""
        while self.unfinished():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.changed(), PATIENCE_S)
                continue
            left = self.unfinished()
            sys.stdout.write(f"{len(left)} left: {', '.join(left[:5])}\n")

    async def changed(self) -> None:
        before = len(self.unfinished())
        await self.live.bed.until(lambda: len(self.unfinished()) != before, timeout_s=LONGEST_S)

    async def settled(self) -> Any:
        """What the scheduler believes, given a moment to hear of the last pods that ended."""
        for _ in range(40):
            snapshot = await self.live.snapshot()
            if not snapshot["seats"] and not snapshot["assumed"]:
                break
            await asyncio.sleep(0.5)
        return snapshot

    # --- afterwards --------------------------------------------------------------------------------------

    def unfinished(self) -> list[str]:
        left = [
            f"{each.metadata.name} {self.live.bed.phase(each)}"
            for each in self.workloads
            if self.live.bed.phase(each) != "Succeeded"
        ]
        for name, size in self.gangs.items():
            done = sum(f"{name}-{member}" in self.finished for member in range(size))
            if done < size:
                left.append(f"gang {name}: {done} of {size} pods ended")
        return left


@pytest.mark.slow
@pytest.mark.timeout(LONGEST_S + 120)
async def test_nothing_is_lost_doubled_or_leaked_whatever_is_killed(live: Live):
    seed = int(os.environ.get("KGWE_CHAOS_SEED", random.SystemRandom().randrange(10**6)))
    sys.stdout.write(f"seed {seed}, {UNITS} units of work, {BLOWS} blows\n")
    await live.nodes({"a": 4, "b": 4})
    chaos = Chaos(live, seed)
    chaos.replicas = [await live.scheduler(), await live.scheduler()]
    async with asyncio.timeout(LONGEST_S):
        async with asyncio.TaskGroup() as group:
            group.create_task(chaos.rage())
            for number in range(UNITS):
                await chaos.submit(number)
        await chaos.until_finished()

    assert chaos.overbooked == []
    assert chaos.unfinished() == []
    snapshot = await chaos.settled()
    assert snapshot["seats"] == {}
    assert snapshot["assumed"] == []
    assert {name: node["free"] for name, node in snapshot["nodes"].items()} == dict.fromkeys(snapshot["nodes"], 8)
    sys.stdout.write(f"blows: {' '.join(chaos.blows)}\n")
